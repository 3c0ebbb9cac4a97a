"""The demo model behind the real server process: what only a real model can show."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[2]
# (start, right end, wrong end)
ITEMS = [
    ("The capital of France is", " Paris", " banana"),
    ("The opposite of hot is", " cold", " seven"),
    ("Two plus two equals", " four", " blue"),
    ("Fish live in the", " water", " pencil"),
    ("The sun rises in the", " east", " spoon"),
    ("At night we can see the moon and the", " stars", " carpet"),
    ("Dogs bark and cats", " meow", " subtract"),
    ("Water freezes and becomes", " ice", " paper"),
    ("A week has seven", " days", " elephants"),
    ("The first month of the year is", " January", " guitar"),
    ("Bees make", " honey", " windows"),
    ("We read books in the", " library", " potato"),
    ("The color of grass is", " green", " loud"),
    ("A triangle has three", " sides", " Tuesdays"),
    ("Birds can", " fly", " multiply"),
    ("In winter it is", " cold", " verb"),
    ("She drank a cup of", " tea", " stairs"),
    ("Planes fly in the", " sky", " onion"),
    ("The teacher works at a", " school", " comma"),
    ("You cut paper with", " scissors", " clouds"),
]


@pytest.fixture(scope="module")
def client(smollm2_path: Path) -> Iterator[openai.OpenAI]:
    command = [sys.executable, "-m", "hasten.cli", "serve", str(smollm2_path), "--port", "0", "--memory", "1GB"]
    command += ["--served-model-name", "smollm2"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT / "src"), *sys.path])}
    popen = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    try:
        assert popen.stdout is not None
        lines = []
        while not (line := popen.stdout.readline()).startswith("ready"):
            assert line, f"the server ended: {lines}"
            lines.append(line)
        with openai.OpenAI(base_url=line.split()[1] + "/v1", api_key="none", timeout=120, max_retries=0) as made:
            yield made
        popen.send_signal(signal.SIGINT)
        assert popen.wait(10) == 130
    finally:
        popen.kill()
        popen.communicate()


def test_a_question_is_answered_streaming_and_not(client: openai.OpenAI) -> None:
    fields = {
        "model": "smollm2",
        "messages": [{"role": "user", "content": "What is the capital of France?"}],
        "max_tokens": 24,
        "temperature": 0,
    }
    whole = client.chat.completions.create(**fields)  # type: ignore[call-overload]
    stream = client.chat.completions.create(**fields, stream=True)  # type: ignore[call-overload]
    assert "Paris" in whole.choices[0].message.content
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole.choices[0].message.content


def test_same_text_alone_beside_others_streaming_or_not(client: openai.OpenAI) -> None:
    """Exactness as a client sees it: sixteen requests, greedy and sampled, long and short prompts, two ways and all at once."""

    def ask(number: int, stream: bool) -> str:
        fields: dict[str, Any] = {
            "model": "smollm2",
            "messages": [
                {"role": "user", "content": f"Tell me about the number {number}. " + "The sea is blue. " * (number * 7)}
            ],
            "max_tokens": 12 + number,
            "temperature": number % 3 * 0.5,
            "top_p": 0.95,
            "seed": number,
        }
        if not stream:
            return str(client.chat.completions.create(**fields).choices[0].message.content)
        chunks = client.chat.completions.create(**fields, stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks)

    numbers = range(16)
    alone = [ask(number, stream=False) for number in numbers]
    assert len(set(alone)) == len(alone)
    for stream in (True, False):
        with ThreadPoolExecutor(len(numbers)) as pool:
            assert list(pool.map(lambda number, how=stream: ask(number, how), numbers)) == alone


def test_fr_044_scoring_finds_the_right_ends(client: openai.OpenAI) -> None:
    num_right = 0
    for start, right, wrong in ITEMS:
        answer = client.completions.create(
            model="smollm2", prompt=[start + right, start + wrong], echo=True, logprobs=1, max_tokens=0
        )
        sums = []
        for choice in answer.choices:
            assert choice.logprobs is not None
            assert choice.logprobs.token_logprobs is not None
            assert choice.logprobs.token_logprobs[0] is None
            sums.append(sum(value for value in choice.logprobs.token_logprobs if value is not None))
        num_right += sums[0] > sums[1]
    assert num_right >= 17  # chance gives 10 ± 2.2


def test_page_and_config_describe_it(client: openai.OpenAI) -> None:
    base = str(client.base_url).removesuffix("/v1/")
    assert "smollm2" in httpx.get(base + "/").text
    assert httpx.get(base + "/config").json()["memory"]["weight_bytes"] > 50_000_000
