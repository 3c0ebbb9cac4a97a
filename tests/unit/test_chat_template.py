"""Chat templates: what they are given, what they may do, and how they fail."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from hasten.errors import TemplateError
from hasten.tokenizer.chat_template import ChatTemplates
from tests.support.toy_tokenizer import toy

PRINT = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"
USER = {"role": "user", "content": "Hi"}


def render(template: str | None, messages: list[dict[str, Any]] | None = None, **options: Any) -> str:
    return ChatTemplates(template, bos_token="<s>", eos_token="</s>").render(
        [USER] if messages is None else messages, **options
    )


def refusal(template: str | None, messages: list[dict[str, Any]] | None = None) -> str:
    with pytest.raises(TemplateError) as caught:
        render(template, messages)
    return str(caught.value)


def test_fr_007_a_template_that_refuses_the_system_role() -> None:
    template = "{% if messages[0].role == 'system' %}{{ raise_exception('no system role here') }}{% endif %}" + PRINT
    assert "no system role here" in refusal(template, [{"role": "system", "content": "x"}, USER])
    assert render(template) == "[user:Hi]"


def test_fr_007_a_template_that_demands_alternation() -> None:
    template = (
        "{% for m in messages %}{% if (m.role == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must take turns: ' ~ m.role) }}{% endif %}{{ m.content }}{% endfor %}"
    )
    assert "roles must take turns: user" in refusal(template, [USER, USER])
    assert render(template, [USER, {"role": "assistant", "content": "Yo"}]) == "HiYo"


def test_fr_007_a_model_without_a_template() -> None:
    message = refusal(None)
    assert "no chat template" in message
    assert "--chat-template" in message
    words = toy(chat_template=None)
    with pytest.raises(TemplateError, match="--chat-template"):
        words.tokenizer.render_chat([USER])
    assert words.tokenizer.encode("Hi") == list(b"Hi")  # raw completions work
    assert words.tokenizer.render_chat([USER], template=PRINT) == "[user:Hi]"


def test_a_broken_template_leaves_raw_text_alone() -> None:
    words = toy(chat_template="{% for m in messages %}")
    assert words.tokenizer.encode("Hi") == list(b"Hi")
    for _ in range(2):
        with pytest.raises(TemplateError, match=r"chat template line 1: .*endfor"):
            words.tokenizer.render_chat([USER])


@pytest.mark.parametrize("content", [None, "", []])
def test_fr_009_no_content_prints_nothing(content: object) -> None:
    assert render(PRINT, [{"role": "assistant", "content": content}]) == "[assistant:]"
    assert render(PRINT, [{"role": "assistant"}]) == "[assistant:]"


def test_fr_009_tool_arguments_are_an_object_once() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"city": "Köln"}'}}
    history = [USER, {"role": "assistant", "content": None, "tool_calls": [call]}, {"role": "tool", "content": "12 °C"}, USER]
    loop = "{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
    end = "{% endfor %}{% endfor %}"
    assert render(PRINT, history) == "[user:Hi][assistant:][tool:12 °C][user:Hi]"
    assert render(loop + "{% for k, v in c.function.arguments.items() %}{{ k }}={{ v }}{% endfor %}" + end, history) == (
        "Hicity=Köln12 °CHi"
    )
    assert render(loop + "{{ c.function.arguments | tojson }}" + end, history) == 'Hi{"city": "Köln"}12 °CHi'
    assert call["function"]["arguments"] == '{"city": "Köln"}'  # the caller's message is not changed
    for text in ("not json", "[1]", "[" * 5000):  # left as they are
        call["function"]["arguments"] = text
        assert text in render(loop + "{{ c.function.arguments }}" + end, history)


def test_text_parts_become_one_text() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    assert render(PRINT, [{"role": "user", "content": parts}]) == "[user:one\ntwo]"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (
            [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}],
            r"messages[0].content[1] is of type 'image_url'",
        ),
        ([{"type": "text"}], "messages[0].content[0] is of type 'text'"),
        (["a"], "messages[0].content[0] is of type 'str'"),
        ([{}], "messages[0].content[0] is of type None"),
        (5, "messages[0].content must be a text or a list of parts, it is int"),
        ({"text": "a"}, "it is dict"),
    ],
)
def test_other_content_is_refused_by_name(content: object, message: str) -> None:
    with pytest.raises(TemplateError, match=re.escape(message)) as caught:
        render(PRINT, [{"role": "user", "content": content}])
    assert caught.value.param == "messages"


def test_the_dialect_of_hugging_face() -> None:
    assert render("{% if tools is none and documents is none %}\n    yes\n{% endif %}\n{{ bos_token }}") == "    yes\n<s>"
    assert render("{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}") == "012"
    assert render("{{ {'b': '<é>', 'a': [1, none]} | tojson }}") == '{"b": "<é>", "a": [1, null]}'
    assert render("{{ {'a': 1} | tojson(indent=2) }}") == '{\n  "a": 1\n}'
    assert re.fullmatch(r"\d{4}-\d\d", render("{{ strftime_now('%Y-%m') }}"))
    assert render("{% generation %}{{ messages[0].content }}{% endgeneration %}!") == "Hi!"
    assert render("{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n }}") == "1"
    assert render("{{ ('=' * 3) ~ 'x'.upper() ~ 7 % 4 ~ 2 ** 5 ~ ('a' | center(5)) }}") == "===X332  a  "
    assert render("{% if add_generation_prompt %}go{% endif %}", add_generation_prompt=False) == ""
    assert render("{{ messages[0]['content'] | trim }}<b>&amp;") == "Hi<b>&amp;"  # nothing is escaped


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ messages[0].content.x.y }}", "has no attribute 'x'"),
        ("{{ messages[7].content }}", "has no element 7"),
        ("{{ 1 / 0 }}", "ZeroDivisionError: division by zero"),
        ("{{ 'a' + 1 }}", "TypeError"),
        ("{{ undefined_function() }}", "'undefined_function' is undefined"),
        ("{{ messages | nofilter }}", "No filter named 'nofilter'"),
        ("{% include 'x' %}", "no loader"),
        ("{{ lipsum() }}", "'lipsum' is undefined"),
        ("{{ ''.__class__.__mro__ }}", "access to attribute '__class__' of 'str' object is unsafe"),
        ("{{ messages.append(1) }}", "access to attribute 'append' of 'list' object is unsafe"),
        ("{{ raise_exception.__globals__.x }}", "unsafe"),
        ("{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}", "calls itself too deeply"),
        ("{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}", "nested too deeply"),
        ("x" * (1 << 17) + "y", "limit is 131072"),
    ],
)
def test_failures_say_what_the_template_said(template: str, words: str) -> None:
    assert words in refusal(template)


S = "{% set s = messages[0].content %}"
NS = "{% set ns = namespace(x=messages[0].content) %}"
LONG = {"role": "user", "content": "ab\t\n " * 380}  # rendered on the event loop


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{% for i in range(10**9) %}{% endfor %}", "does not end"),
        ("{% for i in range(1000) %}{% for j in range(1000) %}{% endfor %}{% endfor %}", "does not end"),
        ("{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(40) }}", "does not end"),
        (S + "{% for a in s %}{% for b in s %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}", "does not end"),
        (S + "{% for a in s | list %}{% for b in s.split() %}{% for c in s %}{% endfor %}{% endfor %}{% endfor %}", "does not"),
        (
            S + "{% for a in s if a != 'q' %}{% for b in s if loop is defined %}{{ loop.length }}{% endfor %}{% endfor %}",
            "not end",
        ),
        (S + "{% for a in [s] recursive %}{{ loop([s, s]) if loop.depth < 40 }}{% endfor %}", "does not end"),
        (
            S + "{% for a in s %}{{ s | map('upper') | map('lower') | select('in', s) | list | length }}{% endfor %}",
            "does not end",
        ),
        (S + "{% for a in s %}{{ s | list | sort | unique | join | length }}{% endfor %}", "does not end"),
        (S + "{% for a in s %}{% for b in s %}{% if s[::-1] == s %}{% endif %}{% endfor %}{% endfor %}", "does not end"),
        (NS + "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "does not end"),
        (NS + "{% for i in range(60) %}{% set ns.x = ns.x + ns.x %}{% endfor %}", "does not end"),
        (NS + "{% for i in range(60) %}{% set ns.x %}{{ ns.x }}{{ ns.x }}{% endset %}{% endfor %}", "does not end"),
        (NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}", "does not end"),
        (NS + "{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x | tojson }}", "does not end"),
        (NS + "{% for i in range(60) %}{% set ns.x = namespace(a=ns.x, b=ns.x) %}{% endfor %}{{ ns.x }}", "does not end"),
        (NS + "{% set ns.x = 7 %}{% for i in range(60) %}{% set ns.x = ns.x * ns.x %}{% endfor %}", "a product"),
        (S + "{{ s.replace('', s).replace('', s) }}", "out of less"),
        (S + "{{ (s | replace('a', s)) | replace('a', s) }}", "out of less"),
        (S + "{{ s.join(s) }}", "out of less"),
        (S + "{{ s | join(s) }}", "out of less"),
        (S + "{{ s.expandtabs(1000000) }}", "out of less"),
        (S + "{{ s | indent(1000000) }}", "out of less"),
        ("{{ '{:1000000000}'.format(1) }}", "too wide"),
        ("{{ '{:{}}'.format(1, 1000000) }}", "too wide"),
        (S + "{{ ('%s' * 1000) % (([s] * 1000) | list) }}", "does not end"),
        ("{% macro f() %}{% for i in range(90000) %}" + "x" * 100_000 + "{% endfor %}{% endmacro %}{{ f() }}", "does not end"),
        ("{% for i in range(99) %}{{ 'x' * 100000 }}{% endfor %}", "output is longer than"),
        ("{{ 'ab' * 10**9 }}", "repetition"),
        ("{{ 10**9 * [1] }}", "repetition"),
        ("{{ 9 ** 9 ** 9 ** 9 }}", "power"),
        ("{{ 'x' | center(10**9) }}", "width of 1000000000"),
        ("{{ 'x' | indent(width=10**9) }}", "width of 1000000000"),
        ("{{ 'x'.rjust(10**9) }}", "width of 1000000000"),
        ("{{ '%1000000000d' % 1 }}", "too wide"),
        ("{{ ('x'.encode() * 10**8) | length }}", "encode is not"),
        ("{{ ('x' | attr('encode'))().center(10**8) | length }}", "encode is not"),
        ("{{ (7).to_bytes(10**8, 'big') | length }}", "to_bytes is not"),
        ("{{ ('x' | safe).striptags() }}", "striptags is not"),
        ("{{ ('b' * 250000).strip('a' * 250000 ~ 'b') }}", "does not end"),
        ("{{ ('b' * 250000) | trim('a' * 250000 ~ 'b') }}", "does not end"),
        ("{{ ('a' * 40000).rfind('ab' ~ 'a' * 20000) }}", "does not end"),
        ("{{ ('a' * 40000).rsplit(sep='ab' ~ 'a' * 20000) }}", "does not end"),
        ("{{ strftime_now('%999d' * 20000) }}", "a time format"),
    ],
)
def test_a_runaway_template_is_stopped(template: str, words: str) -> None:
    templates = ChatTemplates(template)
    spent_s = []
    for _ in range(3):  # the best of three: the machine may be busy
        templates._compile(template)  # is not part of a rendering
        start_s = time.thread_time()
        with pytest.raises(TemplateError) as caught:
            templates.render([LONG])
        spent_s.append(time.thread_time() - start_s)
        assert words in str(caught.value)
    assert min(spent_s) < 0.1


def test_no_variable_of_a_template_is_the_budget() -> None:
    for name in ("hasten_budget", "range", "hasten_loop", "environment"):
        assert "does not end" in refusal(f"{{% set {name} = 1 %}}{{% for a in 'x' * 9999 %}}{{% for b in 'x' * 9999 %}}"
                                         "{% endfor %}{% endfor %}")  # fmt: skip


def test_charges_do_not_change_what_a_template_says() -> None:
    assert render("{{ ' x</t>y</t>\n'.rsplit('</t>', 1)[0].strip() }}") == "x</t>y"
    assert render("{{ '--y-' | trim('-') }}{{ 'aba'.rfind('a') }}") == "y2"
    assert render("{% for c in 'abc' %}{{ loop.index }}/{{ loop.length }}{{ c }}{{ ',' if not loop.last }}{% endfor %}") == (
        "1/3a,2/3b,3/3c"
    )
    assert render("{% for c in 'abc' if c != 'b' %}{{ loop.length }}{{ c }}{% else %}none{% endfor %}") == "2a2c"
    assert render("{% for c in nothing %}x{% else %}none{% endfor %}") == "none"
    assert render("{% for k, v in {'a': [1, 2]}.items() %}{{ k }}{{ v }}{{ v ~ k }}{{ v == [1, 2] }}{% endfor %}") == (
        "a[1, 2][1, 2]aTrue"
    )
    tree = "{% for n in [[[], []]] recursive %}({{ loop(n) }}){% endfor %}"
    assert render(tree) == "(()())"
    assert render("{% set x | upper %}a{{ 1 }}{% endset %}{{ x }}{{ '%s-%03d' % ('a', 7) }}{{ '{}:{:>3}'.format(1, 2) }}") == (
        "A1a-0071:  2"
    )
    assert render("{% macro f(a) %}<{{ a }}{{ caller() if caller }}>{% endmacro %}{{ f(1) }}{% call f(2) %}!{% endcall %}") == (
        "<1><2!>"
    )
    assert render(
        "{{ [3, 1] | sort | join('-') }}{{ [1, 2] | sum }}{{ 'a' | replace('a', 'b') }}{{ 'x'.join(['a', 'b']) }}"
    ) == ("1-33baxb")
    assert render("{{ messages | selectattr('role', 'equalto', 'user') | map(attribute='content') | list }}") == "['Hi']"


def test_many_messages_with_a_busy_template_are_no_runaway() -> None:
    messages = [{"role": ("user", "assistant")[i % 2], "content": f" message {i} "} for i in range(2000)]
    template = (
        "{% for m in messages %}{% if loop.index0 == messages | length - 1 or m.role not in ['user', 'assistant'] %}last"
        "{% endif %}{% if m['content'] is string and 'x' not in m.content %}{{ '<|' + m.role + '|>' ~ m.content | trim }}"
        "{% set parts = m.content.split(' ') %}{% for p in parts %}{{ p }}{% endfor %}{% endif %}{% endfor %}"
    )
    assert render(template, messages).endswith("message 1999message1999")


def test_long_chats_are_not_mistaken_for_runaways() -> None:
    messages = [{"role": "user", "content": "word " * 2000}] * 500
    assert len(render("{% for m in messages %}" + "{{ m.content }}" * 2 + "{% endfor %}", messages)) == 10_000_000
