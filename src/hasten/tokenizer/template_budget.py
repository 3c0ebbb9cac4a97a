"""What one rendering of a chat template may cost: steps, and CPU time of its thread.

A step is a loop turn, a call, a filter, an item of a list that is worked through, or TEXT_PER_STEP characters of text made
or looked through. Steps refuse a runaway at the same place on every machine; the clock is for what steps do not see.
"""

from __future__ import annotations

import contextlib
import gc
import threading
import time
from collections.abc import Collection, Generator, Iterable, Iterator, Mapping
from typing import Any

import jinja2
from jinja2.utils import Namespace

MAX_STEPS = 100_000  # about 40 ms of the cheapest ones
STEPS_PER_MESSAGE = 200  # templates in use take 10 to 40
CHARS_PER_STEP = 16  # of the messages: each so many allow one step more
TEXT_PER_STEP = 256
MAX_CPU_S = 0.05
CPU_S_PER_MESSAGE = 2e-4  # ten times what long templates take
CPU_S_PER_CHAR = 1e-7  # a dozen passes over the text

_current = threading.local()


class Budget:
    """Counts down what a rendering may still do. For one thread: the one that made it.

    Args:
        num_messages, num_chars: of the conversation; what is allowed grows with them.
    """

    def __init__(self, num_messages: int = 0, num_chars: int = 0) -> None:
        self.left = MAX_STEPS + STEPS_PER_MESSAGE * num_messages + num_chars // CHARS_PER_STEP
        self._max_steps = self.left
        self._max_cpu_s = MAX_CPU_S + CPU_S_PER_MESSAGE * num_messages + CPU_S_PER_CHAR * num_chars
        self._start_cpu_s = self._pause_cpu_s = time.thread_time()
        # reading the thread's clock is a system call: not before as much wall time has gone by
        self._look_s = time.perf_counter() + self._max_cpu_s

    def spend(self, num_steps: int) -> None:
        """Raises TemplateRuntimeError when steps or time are used up."""
        self.left -= num_steps
        if self.left < 0:
            raise jinja2.TemplateRuntimeError(f"more than {self._max_steps} steps: the template does not end")
        now_s = time.perf_counter()
        if now_s > self._look_s:
            left_s = self._start_cpu_s + self._max_cpu_s - time.thread_time()
            if left_s < 0:
                self.left = -1  # whatever catches this one meets the next
                raise jinja2.TemplateRuntimeError(
                    f"more than {self._max_cpu_s * 1e3:.0f} ms of computing: the template does not end"
                )
            self._look_s = now_s + left_s

    def collected(self, phase: str) -> None:
        """A full collection of garbage runs in this thread: its time depends on the process, not on the template."""
        if phase == "start":
            self._pause_cpu_s = time.thread_time()
        else:
            self._start_cpu_s += time.thread_time() - self._pause_cpu_s

    def weigh(self, value: object) -> None:
        """Spend for everything in `value`, however deep: before it is printed or compared as a whole.

        Lists that hold each other twice over and over are exponentially long when printed; walking them ends the budget.
        """
        if isinstance(value, str):
            self.spend(1 + len(value) // TEXT_PER_STEP)
            return
        stack = [value]
        while stack:
            item = stack.pop()
            if isinstance(item, str | bytes):
                self.spend(1 + len(item) // TEXT_PER_STEP)
            elif isinstance(item, Namespace):
                stack.append(item._Namespace__attrs)  # the only way in; its repr shows them
            elif isinstance(item, Collection):
                self.spend(1 + len(item))
                stack.extend(item)
                if isinstance(item, Mapping):
                    stack.extend(item.values())

    def weigh_outside(self, value: object) -> None:
        """Spend for the items of `value`, not for what is in them."""
        if isinstance(value, str | bytes):
            self.spend(1 + len(value) // TEXT_PER_STEP)
        else:
            self.spend(1 + (len(value) if isinstance(value, Collection) else 0))

    def made(self, value: Any) -> Any:
        """`value`, which an operation has made, paid for; an iterator pays as it runs."""
        if isinstance(value, Iterator):
            return iter(Turns(value, self, 1))
        self.weigh_outside(value)
        return value


class Turns:
    """An iterable whose every turn costs `num_steps`."""

    def __init__(self, items: Iterable[Any], budget: Budget, num_steps: int) -> None:
        self._items = items
        self._budget = budget
        self._num_steps = num_steps

    def __iter__(self) -> Iterator[Any]:
        spend, num_steps = self._budget.spend, self._num_steps
        for item in self._items:
            spend(num_steps)
            yield item

    def __len__(self) -> int:
        return len(self._items)  # type: ignore[arg-type]  # TypeError is the answer then, as it is without us


def current() -> Budget:
    """The budget of what runs in this thread. Raises AttributeError outside of `running`."""
    budget: Budget = _current.budget
    return budget


@contextlib.contextmanager
def running(budget: Budget) -> Generator[None]:
    """Make `budget` this thread's."""
    _current.budget = budget
    try:
        yield
    finally:
        del _current.budget


def _on_collection(phase: str, info: dict[str, int]) -> None:
    budget: Budget | None = getattr(_current, "budget", None)
    if budget is not None and info["generation"] == 2:
        budget.collected(phase)


gc.callbacks.append(_on_collection)
