"""Options are made from the config dataclasses: names, help, defaults, environment, and what is refused."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from cyclopts import App, CycloptsError

from hasten.cli import options
from hasten.cli.app import build
from hasten.config import EngineConfig, ServerConfig, check_ranges
from hasten.errors import InvalidRequest, UsageError
from hasten.request import SamplingParams

Values = tuple[EngineConfig, ServerConfig, dict[str, Any]]


def parse(*tokens: str) -> Values:
    """The values a command with all three groups of options gets."""
    app = App(result_action="return_value", default_parameter=build().default_parameter)

    @app.default
    def command(
        *,
        engine: options.EngineOptions = options.ENGINE_DEFAULTS,
        server: options.ServerOptions = options.SERVER_DEFAULTS,
        sampling: options.SamplingOptions = options.SAMPLING_DEFAULTS,
    ) -> Values:
        return options.engine_config(engine), options.server_config(server), options.asked_sampling(sampling)

    result: Values = app(list(tokens), exit_on_error=False, print_error=False)
    return result


def test_defaults_are_those_of_the_dataclasses() -> None:
    assert parse() == (EngineConfig(), ServerConfig(), {})


@pytest.mark.parametrize("command", ["serve", "generate", "chat"])
def test_every_field_has_an_option_with_its_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    build()([command, "--help"], exit_on_error=False)
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    fields = list(dataclasses.fields(EngineConfig))
    if command == "serve":
        fields += dataclasses.fields(ServerConfig)
    for field in fields:
        assert f"--{field.name.replace('_', '-')} " in words
        assert field.metadata["help"] in words
        assert f"HASTEN_{field.name.upper()}" in words
    if command != "serve":
        for name, text in options.SAMPLING_HELP.items():
            assert f"--{name.replace('_', '-')} " in words
            assert text in words


def test_sampling_help_is_about_real_fields() -> None:
    assert set(options.SAMPLING_HELP) <= {field.name for field in dataclasses.fields(SamplingParams)}


@pytest.mark.parametrize("name", [field.name for field in dataclasses.fields(EngineConfig) if field.default is None])
def test_auto_is_a_word_wherever_the_default_is_auto(name: str) -> None:
    assert getattr(parse(f"--{name.replace('_', '-')}", "auto")[0], name) is None
    value = "7" if name != "memory" else "7GB"
    assert str(getattr(parse(f"--{name.replace('_', '-')}", value)[0], name)) == value


def test_repeatable_options() -> None:
    server = parse("--api-key", "a", "--cors", "x", "--api-key", "b", "--access-log")[1]
    assert (server.api_key, server.cors, server.access_log) == (("a", "b"), ("x",), True)


def test_environment_is_between_option_and_default(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_THREADS", "3")
    monkeypatch.setenv("HASTEN_API_KEY", "secret")
    monkeypatch.setenv("HASTEN_KV", "int8")
    monkeypatch.setenv("HASTEN_TEMPERATURE", "5")
    engine, server, sampling = parse("--kv", "bf16")
    assert (engine.threads, engine.kv, server.api_key, sampling) == (3, "bf16", ("secret",), {})


def test_repeatable_options_are_separated_by_commas_in_a_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HASTEN_API_KEY", " b, a c")
    monkeypatch.setenv("HASTEN_CORS", "http://a.test,http://b.test")
    server = parse()[1]
    assert (server.api_key, server.cors) == (("b", "a c"), ("http://a.test", "http://b.test"))
    assert parse("--api-key", "a,b")[1].api_key == ("a,b",)  # the option wins, and is taken as it is
    for value, keys in (("", ("",)), (",", ("", "")), ("a,", ("a", ""))):  # the server refuses empty ones
        monkeypatch.setenv("HASTEN_API_KEY", value)
        assert parse()[1].api_key == keys


def test_the_key_that_chat_sends_is_the_first(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    sent: list[object] = []
    monkeypatch.setattr("hasten.cli.remote.RemoteServer.__init__", lambda self, url, *, model, api_key: sent.append(api_key))
    monkeypatch.setattr("hasten.cli.remote.RemoteServer.close", lambda self: None)
    monkeypatch.setattr("hasten.cli.chat._converse", lambda *args: 0)
    for value, expected in ((" a, b", "a"), ("", None), (",", None)):
        monkeypatch.delenv("OPENAI_API_KEY", raising=False)
        monkeypatch.setenv("HASTEN_API_KEY", value)
        build()(["chat", "http://127.0.0.1:1"], exit_on_error=False, result_action="return_value")
        assert sent.pop() == expected
    monkeypatch.setenv("OPENAI_API_KEY", "other")
    build()(["chat", "http://127.0.0.1:1"], exit_on_error=False, result_action="return_value")
    assert sent.pop() == "other"
    build()(["chat", "http://127.0.0.1:1", "--api-key", "x,y"], exit_on_error=False, result_action="return_value")
    assert sent.pop() == "x,y"


def test_only_what_was_asked_for_is_passed_on() -> None:
    sampling = parse("--temperature", "1.0", "--stop", "a b", "--stop", "c", "--seed", "5", "--ignore-eos")[2]
    assert sampling == {"temperature": 1.0, "stop": ("a b", "c"), "seed": 5, "ignore_eos": True}


@pytest.mark.parametrize(
    ("tokens", "words"),
    [
        (("--threads", "two"), "'two' is neither auto nor a whole number"),
        (("--threads", "1.5"), "'1.5' is neither auto nor a whole number"),
        (("--isa", "mmx"), '"mmx" for --isa. Choose from: "auto", "scalar"'),
        (("--port", "http"), 'Invalid value for --port: unable to convert "http" into int'),
        (("--kv",), "--kv requires an argument"),
        (("--no-such-option",), "Unknown option"),
        (("--max-num-seqs", "auto"), "Invalid value for --max-num-seqs"),
    ],
)
def test_wrong_words(tokens: tuple[str, ...], words: str) -> None:
    with pytest.raises(CycloptsError) as caught:
        parse(*tokens)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("tokens", "param"),
    [
        (("--temperature", "nan"), "temperature"),
        (("--temperature", "-1"), "temperature"),
        (("--top-p", "0"), "top_p"),
        (("--min-p", "inf"), "min_p"),
        (("--top-k", "-2"), "top_k"),
        (("--max-tokens", "-1"), "max_tokens"),
        (("--seed", str(2**64)), "seed"),
        (("--stop", ""), "stop"),
    ],
)
def test_sampling_values_are_checked(tokens: tuple[str, ...], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse(*tokens)
    assert caught.value.param == param


def test_the_key_that_bench_sends_follows_the_same_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    from hasten.bench.options import BenchOptions
    from hasten.cli.bench import _values

    monkeypatch.setenv("OPENAI_API_KEY", "other")
    monkeypatch.setenv("HASTEN_API_KEY", "a,b")
    assert _values(BenchOptions(api_key="a,b")).api_key == "a"  # as read from the variable
    assert _values(BenchOptions(api_key="c")).api_key == "c"
    monkeypatch.delenv("HASTEN_API_KEY")
    assert _values(BenchOptions()).api_key == "other"


def test_words_that_stand_for_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    assert parse("--chunk", "off")[0].chunk == parse("--chunk", "0")[0].chunk == 0
    monkeypatch.setenv("HASTEN_CHUNK", "OFF")
    assert parse()[0].chunk == 0
    with pytest.raises(CycloptsError, match="'never' is neither auto, off nor a whole number"):
        parse("--chunk", "never")


@pytest.mark.parametrize("command", ["serve", "generate", "chat"])
def test_help_says_defaults_of_zero_and_ranges(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    build(command)([command, "--help"], exit_on_error=False)
    words = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "(1 to 4096) [env var: HASTEN_MAX_NUM_SEQS] [default: 64]" in words
    if command != "serve":
        assert "1 is off (in (0, 1]) [default: 1.0]" in words  # top_p
        assert words.count("[default: 0]") == 1  # top_k
        assert words.count("[default: 0.0]") == 3  # min_p and two penalties
    assert {"serve": "SIGTERM let running answers finish", "generate": "standard error", "chat": "Ctrl-D ends it"}[
        command
    ] in words


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (EngineConfig(threads=0), "--threads is 0, it must be 1 to 1024"),
        (EngineConfig(chunk=65537), "--chunk is 65537, it must be 0 to 65536"),
        (EngineConfig(max_model_len=0), "--max-model-len is 0, it must be at least 1"),
        (ServerConfig(port=-1), "--port is -1, it must be 0 to 65535"),
        (ServerConfig(grace_s=float("nan")), "--grace-s is nan, it must be at least 0"),
        (ServerConfig(grace_s=float("inf")), "--grace-s is inf, it must be at least 0"),
    ],
)
def test_numbers_out_of_range(config: EngineConfig | ServerConfig, words: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_ranges(config)
    assert str(caught.value) == words
    check_ranges(EngineConfig(threads=1024, chunk=0, max_model_len=1))
    check_ranges(ServerConfig(port=65535, grace_s=0))
