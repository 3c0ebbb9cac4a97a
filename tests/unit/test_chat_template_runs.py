"""Chat templates as they are run: compiled once, by many threads, beside the collector."""

from __future__ import annotations

import gc
import threading
import time
from typing import Any

import jinja2
import pytest

from hasten.tokenizer.chat_template import MAX_COMPILED, ChatTemplates
from hasten.tokenizer.template_budget import MAX_CPU_S, Budget, running

PRINT = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
USER = {"role": "user", "content": "Hi"}


def render(template: str | None, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplates(template, bos_token="<s>", eos_token="</s>").render(
        [USER] if messages is None else messages, **options
    )


def test_a_template_is_compiled_once_and_overrides_do_not_pile_up() -> None:
    templates = ChatTemplates(PRINT)
    templates.render([USER])
    compiled = templates._compiled[PRINT]
    templates.render([USER, USER])
    assert templates._compiled[PRINT] is compiled
    for i in range(3 * MAX_COMPILED):
        assert templates.render([USER], template=f"{i}") == str(i)
        assert templates.render([USER]) == "[user:Hi]"
    assert len(templates._compiled) == MAX_COMPILED


def test_threads_render_alike() -> None:
    templates = ChatTemplates(PRINT)
    seen: list[str] = []
    threads = [threading.Thread(target=lambda: seen.extend(templates.render([USER] * 50) for _ in range(20))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(seen) == {"[user:Hi]" * 50}
    assert len(seen) == 80


def test_the_collector_is_not_charged_to_the_template() -> None:
    """A full collection over a large heap takes longer than any template may; it can fall into any rendering."""
    heap = [[i] for i in range(1_500_000)]
    budget = Budget()
    with running(budget):
        start_s = time.thread_time()
        while time.thread_time() - start_s < 2 * MAX_CPU_S:
            gc.collect()
        budget.spend(1)
        end_s = time.thread_time() + 2 * MAX_CPU_S
        while time.thread_time() < end_s:
            pass
        with pytest.raises(jinja2.TemplateRuntimeError, match="ms of computing"):  # its own time still counts
            budget.spend(0)
    assert len(heap) == 1_500_000
