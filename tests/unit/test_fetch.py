"""Fetching a file: whole, checked, or not at all."""

from __future__ import annotations

import errno
import hashlib
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hasten.errors import BadFile, ModelError, UsageError
from hasten.weights import fetch
from tests.support.wheels import Page, file_server

MODEL = b"GGUF" + bytes(range(256)) * 16384
SHA256 = hashlib.sha256(MODEL).hexdigest()


def visible(folder: Path) -> list[str]:
    """What is in the folder but for lock files, which stay."""
    return sorted(path.name for path in folder.iterdir() if not path.name.endswith(".lock"))


def test_url_arrives_whole(tmp_path: Path) -> None:
    seen: list[tuple[int, int | None]] = []
    with file_server({"/a/toy%20model.gguf": Page(MODEL)}) as files:
        path = fetch.fetch_url(
            f"{files.url}/a/toy%20model.gguf", tmp_path, sha256=SHA256.upper(), progress=lambda *now: seen.append(now)
        )
        again = fetch.fetch_url(f"{files.url}/a/toy%20model.gguf", tmp_path)
        assert files.asked == ["/a/toy%20model.gguf"], "what is there is not fetched again"
    assert path == again == tmp_path / "toy model.gguf"
    assert path.read_bytes() == MODEL
    assert visible(tmp_path) == ["toy model.gguf"]
    assert seen[-1] == (len(MODEL), len(MODEL))


def test_redirects_are_followed(tmp_path: Path) -> None:
    with file_server({"/x.gguf": Page(status=302, location="/y"), "/y": Page(MODEL)}) as files:
        assert fetch.fetch_url(f"{files.url}/x.gguf", tmp_path).name == "x.gguf"


@pytest.mark.parametrize(
    ("page", "words"),
    [
        (Page(MODEL, claimed=len(MODEL) + 1), "nothing was kept"),
        (Page(MODEL[:-1]), "wrong checksum: sha256"),
        (Page(b"<html>please log in</html>"), "not a GGUF file"),
        (Page(b""), "empty"),
        (Page(status=404), "answered 404"),
        (Page(status=503), "answered 503"),
    ],
)
def test_bad_answers_leave_nothing(tmp_path: Path, page: Page, words: str) -> None:
    with file_server({"/m.gguf": page}) as files, pytest.raises(ModelError, match=words):
        fetch.fetch_url(f"{files.url}/m.gguf", tmp_path, sha256=SHA256)
    assert visible(tmp_path) == []


def test_nobody_listens(tmp_path: Path) -> None:
    with file_server({}) as files:
        url = files.url
    with pytest.raises(ModelError, match="nothing was kept"):
        fetch.fetch_url(f"{url}/m.gguf", tmp_path)
    assert visible(tmp_path) == []


def test_existing_file_is_checked_against_the_checksum(tmp_path: Path) -> None:
    (tmp_path / "m.gguf").write_bytes(b"GGUF other")
    with pytest.raises(BadFile, match=f"expected {SHA256}"):
        fetch.fetch_url("http://127.0.0.1:9/m.gguf", tmp_path, sha256=SHA256)


@pytest.mark.parametrize("name", ["", "..", ".hidden", "a/b"])
def test_names_that_are_no_file_names(tmp_path: Path, name: str) -> None:
    with pytest.raises(UsageError, match="--name"):
        fetch.fetch_url("http://127.0.0.1:9/m.gguf", tmp_path, name=name)
    assert list(tmp_path.iterdir()) == []


def test_disk_full_is_said_before_the_first_byte(tmp_path: Path) -> None:
    too_much = 1 << 60
    with file_server({"/m.gguf": Page(MODEL, claimed=too_much)}) as files, pytest.raises(ModelError) as caught:
        fetch.fetch_url(f"{files.url}/m.gguf", tmp_path)
    assert f"{too_much:,} are needed" in str(caught.value)
    assert "HASTEN_HOME" in str(caught.value)
    assert visible(tmp_path) == []


def test_disk_full_on_the_way_leaves_nothing(tmp_path: Path) -> None:
    def chunks() -> Iterator[bytes]:
        yield b"GGUF"
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ModelError, match="bytes are free"), fetch.partial_folder(tmp_path, "m") as folder:
        fetch.copy_checked(chunks(), folder / "m", source="here", expected_bytes=None, sha256=None)
    assert visible(tmp_path) == []


def test_other_errors_of_the_system_keep_their_words(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), fetch.partial_folder(tmp_path, "m"):
        raise PermissionError(errno.EACCES, "no")
    assert visible(tmp_path) == []


@pytest.mark.parametrize("found", [9, 11])
def test_length_is_compared(tmp_path: Path, found: int) -> None:
    with pytest.raises(BadFile, match="expected 10"):
        fetch.copy_checked(iter([b"x" * found]), tmp_path / "m", source="here", expected_bytes=10, sha256=None)
    assert visible(tmp_path) == []


def test_folder_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match="HASTEN_HOME"):
        fetch.fetch_url("http://127.0.0.1:9/m.gguf", tmp_path / "file" / "models")


def test_killed_fetch_leaves_no_file_and_the_next_one_clears_up(tmp_path: Path) -> None:
    gate = threading.Event()
    code = "import sys, pathlib; from hasten.weights.fetch import fetch_url; fetch_url(sys.argv[1], pathlib.Path(sys.argv[2]))"
    with file_server({"/m.gguf": Page(MODEL, gate=gate)}) as files:
        process = subprocess.Popen([sys.executable, "-c", code, f"{files.url}/m.gguf", str(tmp_path)])
        try:
            deadline = time.monotonic() + 20
            while not any(part.stat().st_size for part in tmp_path.glob(".partial-*/m.gguf")):
                assert time.monotonic() < deadline, "the download never started to arrive"
                time.sleep(0.01)
            assert visible(tmp_path)[0].startswith(".partial-m.gguf-"), "half a file is never at the final place"
            process.send_signal(signal.SIGKILL)
        finally:
            process.kill()
            process.wait()
        gate.set()
        assert fetch.fetch_url(f"{files.url}/m.gguf", tmp_path, sha256=SHA256).read_bytes() == MODEL
    assert visible(tmp_path) == ["m.gguf"]


def test_concurrent_fetches_take_turns(tmp_path: Path) -> None:
    gate = threading.Event()
    with file_server({"/m.gguf": Page(MODEL, gate=gate)}) as files:
        paths: list[Path] = []
        threads = [
            threading.Thread(target=lambda: paths.append(fetch.fetch_url(f"{files.url}/m.gguf", tmp_path, sha256=SHA256)))
            for _ in range(4)
        ]
        for thread in threads:
            thread.start()
        gate.set()
        for thread in threads:
            thread.join()
        assert files.asked == ["/m.gguf"]
    assert paths == [tmp_path / "m.gguf"] * 4
    assert visible(tmp_path) == ["m.gguf"]


def test_names_with_glob_characters_clear_only_their_own_pieces(tmp_path: Path) -> None:
    (tmp_path / ".partial-ab-1").mkdir()
    with fetch.partial_folder(tmp_path, "a*"):
        assert (tmp_path / ".partial-ab-1").is_dir()


def test_copy_and_link(tmp_path: Path) -> None:
    source = tmp_path / "source.gguf"
    source.write_bytes(MODEL)
    models = tmp_path / "models"
    copy = fetch.copy_local(source, models, sha256=SHA256)
    link = fetch.copy_local(source, models, name="link.gguf", link=True)
    assert copy.read_bytes() == MODEL
    assert not copy.is_symlink()
    assert link.is_symlink()
    assert os.path.samefile(link, source)
    assert fetch.copy_local(source, models) == copy, "the same file again is no error"
    assert visible(models) == ["link.gguf", "source.gguf"]


def test_copy_refuses_what_is_no_model_or_another_one(tmp_path: Path) -> None:
    models = tmp_path / "models"
    text, model = tmp_path / "text.gguf", tmp_path / "m.gguf"
    text.write_bytes(b"hello")
    model.write_bytes(MODEL)
    with pytest.raises(BadFile, match="not a GGUF file"):
        fetch.copy_local(text, models)
    with pytest.raises(BadFile, match="wrong checksum"):
        fetch.copy_local(model, models, sha256="0" * 64)
    with pytest.raises(BadFile, match="wrong checksum"):
        fetch.copy_local(model, models, sha256="0" * 64, link=True)
    with pytest.raises(ModelError, match="cannot read"):
        fetch.copy_local(tmp_path / "gone.gguf", models)
    (models / "m.gguf").write_bytes(b"GGUF another")
    with pytest.raises(ModelError, match="differs from"):
        fetch.copy_local(model, models)
    assert visible(models) == ["m.gguf"]
