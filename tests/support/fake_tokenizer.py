"""A server that answers whole, with a real tokenizer: TGI's /tokenize and /chat_tokenize, and chat completions with usage.

Shapes are those of TGI's router: a bare list of tokens with character spans, start token included whatever the body asks for;
422 for a body without `inputs`; and {"tokenize_response", "templated_text"} for a chat.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers

from hasten.bench.words import WORDS

TEMPLATE = "<user>{}<end><answer>"
START, NUM_TEMPLATE = "<s>", 4  # tokens around a message: start, <user>, <end>, <answer>


def make_tokenizer(folder: Path) -> Tokenizer:
    """Byte-level BPE with a start token, whose spans leave blanks out, as those of many models do; saved in `folder`."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=900,
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        special_tokens=[START, "<user>", "<end>", "<answer>"],
    )
    tokenizer.train_from_iterator([" ".join(WORDS)], trainer)
    start = processors.TemplateProcessing(f"{START} $A", None, [(START, tokenizer.token_to_id(START))])
    tokenizer.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=True), start])
    tokenizer.save(str(folder / "tokenizer.json"))
    return tokenizer


@contextmanager
def serving(tokenizer: Tokenizer, *, usage: bool = True) -> Iterator[tuple[str, list[tuple[str, dict[str, Any]]]]]:
    """Address, and a list of what was asked: path and body."""
    asked: list[tuple[str, dict[str, Any]]] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            asked.append((self.path, body))
            status, answer = _answer(tokenizer, self.path, body, usage=usage)
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def _answer(tokenizer: Tokenizer, path: str, body: dict[str, Any], *, usage: bool) -> tuple[int, Any]:
    rendered = "".join(TEMPLATE.format(message["content"]) for message in body.get("messages", []))
    if path == "/tokenize" and "inputs" in body:
        return 200, _tokens(tokenizer, body["inputs"], special=True)
    if path == "/chat_tokenize":
        text = START + rendered
        return 200, {"tokenize_response": _tokens(tokenizer, text, special=False), "templated_text": text}
    if path == "/v1/chat/completions":
        count = len(tokenizer.encode(rendered).ids)
        return 200, {"usage": {"prompt_tokens": count, "completion_tokens": 1}} if usage else {}
    return (422, {"error": "missing field `inputs`"}) if path == "/tokenize" else (404, {})


def _tokens(tokenizer: Tokenizer, text: str, *, special: bool) -> list[dict[str, Any]]:
    encoding = tokenizer.encode(text, add_special_tokens=special)
    return [
        {"id": number, "text": text[start:stop], "start": start, "stop": stop}
        for number, (start, stop) in zip(encoding.ids, encoding.offsets, strict=True)
    ]
