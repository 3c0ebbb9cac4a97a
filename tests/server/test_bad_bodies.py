"""Bodies that are no request at all: broken, deep, huge, in the wrong dress. Refused at once; nobody else notices."""

from __future__ import annotations

import json
import threading
import time

import psutil
import pytest

from tests.server.refusals import CHAT, HELLO, TEXT, WITHIN_S, refused, undisturbed_stream
from tests.server.running import MODEL, RunningServer


def nested(field: bytes, depth: int) -> bytes:
    return b'{"model":"toy","messages":[{"role":"user","content":"Hi"}],"' + field + b'":' + b"[" * depth + b"]" * depth + b"}"


@pytest.mark.parametrize("depth", [70, 3_000, 100_000])
@pytest.mark.parametrize("field", [b"tools", b"wibble", b"messages2", b"hasten"])
def test_fr_051_deep_bodies(server: RunningServer, field: bytes, depth: int) -> None:
    assert "nested" in refused(server, CHAT, nested(field, depth))["message"]


def test_fr_051_nested_groups_in_a_grammar(server: RunningServer) -> None:
    error = refused(server, CHAT, {"model": MODEL, "messages": HELLO, "grammar": "(" * 60_000 + ")" * 60_000})
    assert error["param"] == "grammar"
    assert len(error["message"]) < 500


def http_request(body: bytes, *, chunked: bool) -> bytes:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
    if not chunked:
        return head + b"Content-Length: %d\r\n\r\n" % len(body) + body
    chunks = [body[i : i + 65536] for i in range(0, len(body), 65536)]
    framed = b"".join(b"%x\r\n%s\r\n" % (len(chunk), chunk) for chunk in chunks)
    return head + b"Transfer-Encoding: chunked\r\n\r\n" + framed + b"0\r\n\r\n"


@pytest.mark.parametrize("megabytes", [10, 50])
@pytest.mark.parametrize("chunked", [False, True])
def test_fr_051_huge_bodies(server: RunningServer, megabytes: int, chunked: bool) -> None:
    body = b'{"model":"toy","messages":[{"role":"user","content":"' + b"word " * (megabytes * 200_000) + b'"}]}'
    request = http_request(body, chunked=chunked)
    before = psutil.Process().memory_info().rss
    with undisturbed_stream(server), server.raw() as connection:
        started = time.monotonic()
        sender = threading.Thread(target=connection.sendall, args=(request,))
        sender.start()
        reply = connection.recv(65536)
        while not reply.endswith(b"}"):
            reply += connection.recv(65536)
        assert time.monotonic() - started < WITHIN_S
        sender.join(10)  # the rest is read and dropped, so that a client that sends first and reads then gets the answer
        assert not sender.is_alive()
    server.check_alive()
    head, _, text = reply.partition(b"\r\n\r\n")
    assert b" 413 " in head
    assert "8000000" in json.loads(text)["error"]["message"]
    assert psutil.Process().memory_info().rss - before < 16_000_000  # nothing of it is kept


def test_an_announced_length_over_the_limit_is_refused_before_the_body(server: RunningServer) -> None:
    with server.raw() as connection:
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"
        connection.sendall(head + b"Content-Length: 50000000\r\nExpect: 100-continue\r\n\r\n")
        connection.settimeout(WITHIN_S)
        assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


def test_body_below_the_limit_but_far_over_the_context(server: RunningServer) -> None:
    server.max_loop_gap_s = 0.0
    error = refused(server, CHAT, {"model": MODEL, "messages": [{"role": "user", "content": "word " * 1_400_000}]})
    assert error["code"] == "context_length_exceeded"
    assert server.max_loop_gap_s < 0.25  # 8 MB are parsed in one go: some 10 ms, on a machine that tests share


@pytest.mark.parametrize(
    ("body", "word"),
    [
        (b"", "empty"),
        (b"  \n ", "empty"),
        (b"{", "JSON"),
        (b"nonsense", "JSON"),
        (b"[]", "object"),
        (b'"text"', "object"),
        (b"null", "object"),
        (b'{"model":"toy","prompt":"Hi"} trailing', "JSON"),
        (b'{"model":"toy","prompt":"Hi",}', "JSON"),
        (b'{"model":"toy","prompt":"Hi","temperature":NaN}', "JSON"),
        (b'{"model":"toy","prompt":"Hi","temperature":Infinity}', "JSON"),
        (b'{"model":"toy","prompt":"Hi","temperature":1e999}', "temperature"),
        (b'{"model":"toy","prompt":"\xff\xfe"}', "UTF-8"),
        (b'{"model":"toy","prompt":"\xed\xa0\x80"}', "UTF-8"),
        (b'{"model":"toy","prompt":"\\ud800"}', "JSON"),
        (b'{"model":"toy","prompt":"Hi","pro', "JSON"),
        (b'{"model":"toy","prompt":"Hi\\', "JSON"),
        (b'{"model":"toy","prompt":"Hi\n"}', "JSON"),
        (b'{"model":"toy","prompt":"Hi","max_tokens":1,"max_tokens":2}', "max_tokens"),
        (b'{"model":"toy","prompt":"Hi","max_tokens":1,"max_token\\u0073":2}', "max_tokens"),
        (b'{"model":"toy","prompt":"Hi","hasten":{"explain":true,"explain":false}}', "explain"),
        (b"\xef\xbb\xbf" + b'{"model":"toy","prompt":"Hi"}', "JSON"),
        ('{"model":"toy","prompt":"Hi"}'.encode("utf-16"), "JSON"),
    ],
)
def test_broken_json(server: RunningServer, body: bytes, word: str) -> None:
    error = refused(server, TEXT, body)
    assert word.lower() in error["message"].lower()


def test_too_many_values(server: RunningServer) -> None:
    error = refused(server, TEXT, b'{"model":"toy","prompt":[' + b"1," * 300_000 + b"1]}")
    assert "values" in error["message"]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x", ""]
)
def test_wrong_content_type(server: RunningServer, content_type: str) -> None:
    body = json.dumps({"model": MODEL, "prompt": "Hi", "max_tokens": 1}).encode()
    if not content_type:  # not announced at all is taken as JSON
        request = server.http.build_request("POST", TEXT, content=body)
        assert server.http.send(request).status_code == 200
    else:
        assert "application/json" in refused(server, TEXT, body, content_type=content_type)["message"]


def test_garbage_instead_of_http(server: RunningServer) -> None:
    for garbage in (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", b"GET\r\n\r\n", b"POST / HTTP/9.9\r\n\r\n"):
        with server.raw() as connection:
            connection.sendall(garbage)
            connection.settimeout(2)
            reply = connection.recv(1000)
            assert reply == b"" or b" 400 " in reply


def test_a_client_that_leaves_while_sending_is_no_error(server: RunningServer, caplog: pytest.LogCaptureFixture) -> None:
    with server.raw() as connection:
        connection.sendall(http_request(b'{"model":"toy","prompt":"Hi"}', chunked=False)[:-5])
    with server.raw() as connection:  # when this is answered, the end of the other has been seen
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert b" 200 " in connection.recv(4096)
    server.check_alive()
    assert caplog.records == []
