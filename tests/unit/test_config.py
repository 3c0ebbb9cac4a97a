"""Configuration: sizes, frozen fields, help for every option."""

from __future__ import annotations

import dataclasses

import pytest

from hasten.config import EngineConfig, ServerConfig, parse_size


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("1", 1),
        ("800000", 800_000),
        ("512B", 512),
        ("2KB", 2000),
        ("2KiB", 2048),
        ("2k", 2048),
        ("512MB", 512_000_000),
        ("1.5GiB", 3 << 29),
        ("1.5 gib", 3 << 29),
        (" 2GB ", 2_000_000_000),
        ("4G", 4 << 30),
        ("1TiB", 1 << 40),
        ("0.5TB", 500_000_000_000),
        ("1e3", 1000),
    ],
)
def test_sizes(text: str, num_bytes: int) -> None:
    assert parse_size(text) == num_bytes


@pytest.mark.parametrize(
    "text", ["", "GB", "two", "2PB", "2 G B", "-1", "0", "nan", "inf", "1e400", "1,5GB", "2GB2", "0x10", "--"]
)
def test_what_is_not_a_size_is_refused_in_words(text: str) -> None:
    with pytest.raises(ValueError, match="is not a size") as error:
        parse_size(text)
    assert repr(text) in str(error.value)


@pytest.mark.parametrize("config", [EngineConfig, ServerConfig])
def test_every_option_has_help_and_no_option_can_be_written(config: type) -> None:
    for field in dataclasses.fields(config):
        assert field.metadata["help"], field.name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(config(), field.name, None)


def test_resolved_is_a_copy_and_unknown_names_raise() -> None:
    config = EngineConfig()
    assert config.resolved(threads=3) == EngineConfig(threads=3)
    assert config == EngineConfig()
    with pytest.raises(TypeError):
        config.resolved(thread=3)
    with pytest.raises(TypeError):
        EngineConfig(thread=3)  # type: ignore[call-arg]
