"""A process for shutdown tests: the real `run` over a scripted engine. Arguments: step seconds, grace seconds."""

from __future__ import annotations

import os
import socket
import sys
import threading

from hasten.config import EngineConfig, ServerConfig
from hasten.server.local_client import LocalClient
from hasten.server.run import bind, run
from tests.server.running import scripted, scripted_state
from tests.support.scripted import ScriptedExecutor
from tests.support.toy_tokenizer import toy


def hurry_when_told(executor: ScriptedExecutor) -> None:
    """A byte on standard input: from here on steps take no time."""
    if os.read(0, 1):  # not sys.stdin: its lock would be held when the interpreter ends
        executor.step_s = 0.0


def main(step_s: float, grace_s: float) -> int:
    words = toy(num_padding=32)  # for the alternatives of the highest ids
    executor = scripted(words, vocab_size=259, step_s=step_s)
    threading.Thread(target=hurry_when_told, args=(executor,), daemon=True).start()
    state = scripted_state(
        executor,
        words,
        engine_config=EngineConfig(max_num_seqs=3),
        server_config=ServerConfig(grace_s=grace_s),
    )
    client = state.client
    assert isinstance(client, LocalClient)
    with bind("127.0.0.1", 0) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 16384)  # what is not read waits in the server
        return run(state, client, listener)


if __name__ == "__main__":
    sys.exit(main(float(sys.argv[1]), float(sys.argv[2])))
