"""Texts to ids and back for the routes: what takes long runs in a thread, what can never fit is refused before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Any

from hasten.errors import PromptTooLong
from hasten.server.state import ServerState
from hasten.tokenizer.tokenizer import INLINE_CHARS

INLINE_IDS = 1000  # about 1 ms
# of a long text, so many characters for each token of the context are tokenized first: prose has about 4 a token
PROBE_CHARS = 8


async def chat_token_ids(
    state: ServerState, messages: Sequence[Mapping[str, Any]], *, add_generation_prompt: bool = True
) -> list[int]:
    """Ids of a rendered conversation. The template writes every special token itself: none is added to it."""

    def render() -> str:
        return state.tokenizer.render_chat(messages, add_generation_prompt=add_generation_prompt, template=state.chat_template)

    num_chars = sum(len(message["content"]) for message in messages)
    await check_text_length(state, num_chars, param="messages")
    text = render() if num_chars + 50 * len(messages) <= INLINE_CHARS else await asyncio.to_thread(render)
    return await token_ids_of(state, text, param="messages", add_special_tokens=False)


async def token_ids_of(state: ServerState, text: str, *, param: str, add_special_tokens: bool = True) -> list[int]:
    """Ids of `text`; long ones are tokenized in a thread while the loop goes on."""
    await check_text_length(state, len(text), param=param)
    if len(text) <= INLINE_CHARS:
        return state.tokenizer.encode(text, add_special_tokens=add_special_tokens)
    await _check_beginning(state, text, param=param)
    return await asyncio.to_thread(state.tokenizer.encode, text, add_special_tokens=add_special_tokens)


async def check_text_length(state: ServerState, num_chars: int, *, param: str) -> None:
    """Raises PromptTooLong when not even the longest token, over and over, could make the text fit: no need to tokenize."""
    limit = state.limits.max_tokens_total
    if num_chars <= limit:
        return
    # a character is a byte at least
    at_least = num_chars // await asyncio.to_thread(state.longest_token_bytes)
    if at_least > limit:
        raise PromptTooLong(
            f"prompt has {num_chars} characters, which is more than {at_least} tokens, max_model_len is "
            f"{state.limits.max_model_len}: shorten it, or start with a larger --max-model-len",
            param=param,
        )


async def _check_beginning(state: ServerState, text: str, *, param: str) -> None:
    """Raises PromptTooLong when the beginning of a long text is too much already: a megabyte takes a second to tokenize."""
    limit = state.limits.max_tokens_total
    num_chars = PROBE_CHARS * limit
    if len(text) <= 2 * num_chars:
        return
    num_tokens = len(await asyncio.to_thread(state.tokenizer.encode, text[:num_chars], add_special_tokens=False))
    # an eighth to spare: cutting a word in two may have made a few tokens more than the whole text has there
    if num_tokens > limit + limit // 8:
        raise PromptTooLong(
            f"the first {num_chars} of the prompt's {len(text)} characters are {num_tokens} tokens already, max_model_len is "
            f"{state.limits.max_model_len}: shorten it, or start with a larger --max-model-len",
            param=param,
        )


async def text_of(state: ServerState, token_ids: list[int]) -> str:
    """The text of ids, control tokens included; that of many is put together in a thread."""
    if len(token_ids) <= INLINE_IDS:
        return state.tokenizer.decode(token_ids, skip_special_tokens=False)
    return await asyncio.to_thread(state.tokenizer.decode, token_ids, skip_special_tokens=False)


async def token_texts(state: ServerState, token_ids: Sequence[int]) -> list[str]:
    """The text of each id by itself; U+FFFD where that is only part of a character."""

    def texts() -> list[str]:
        return [state.tokenizer.token_bytes(token_id).decode(errors="replace") for token_id in token_ids]

    return texts() if len(token_ids) <= INLINE_IDS else await asyncio.to_thread(texts)
