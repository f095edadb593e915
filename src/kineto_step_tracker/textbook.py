"""PyTorch's algorithm in our own words, to compare with: in the demo, under stress, in benchmarks.

It imports the standard library only. For one thread it does, call by call, what PyTorch's class
does and what `kineto_step_tracker.StepTracker` does. What it does for several threads is the
reason for this project, so nothing here is to be made better.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

__all__ = ["LockedStepTracker", "TextbookStepTracker"]


class TextbookStepTracker:
    """A dict of counts, looked at and then written, with nothing to keep threads apart.

    Args:
        on_step: called as ``on_step(step)`` for each step that the global step rises, or None.
        start: the global step to start from.

    Right on one thread. On several, between the look and the write another thread may do the
    same: increments are lost, callbacks run twice, at once or not at all, and the global step
    may fall. O(number of requesters).

    >>> tracker = TextbookStepTracker(on_step=lambda step: print("step", step))
    >>> tracker.increment_step("Generator"), tracker.increment_step("Critic")
    step 1
    step 2
    (1, 2)
    >>> tracker.step_counts()
    {'Generator': 1, 'Critic': 2}
    """

    def __init__(self, on_step: Callable[[int], object] | None = None, start: int = 0) -> None:
        self._on_step = on_step
        self._counts: dict[str, int] = {}
        self._step = start

    def init_step_count(self, requester: str) -> None:
        """Set the requester's count to the global step."""
        self._counts[requester] = self._step

    def erase_step_count(self, requester: str) -> bool:
        """Forget the requester; True if it was known."""
        return self._counts.pop(requester, None) is not None

    def increment_step(self, requester: str) -> int:
        """Count one step for the requester, and return the global step."""
        if requester not in self._counts:
            self._counts[requester] = self._step
        self._counts[requester] += 1
        highest = max(self._counts.values())
        if highest > self._step:
            if self._on_step is not None:
                for step in range(self._step + 1, highest + 1):
                    self._on_step(step)
            self._step = highest
        return self._step

    def current_step(self) -> int:
        """Return the global step."""
        return self._step

    def step_counts(self) -> dict[str, int]:
        """Return a copy of every requester's count."""
        return self._counts.copy()


class LockedStepTracker(TextbookStepTracker):
    """The same behind a lock: right under any number of threads, at the price of one.

    Everybody waits for the callback. A callback, signal handler or finaliser that comes back
    while its own thread is inside waits for ever, and so does the child of a fork that
    happened while another thread was inside.

    >>> LockedStepTracker(start=41).increment_step("Optimizer1Step")
    42
    """

    def __init__(self, on_step: Callable[[int], object] | None = None, start: int = 0) -> None:
        super().__init__(on_step, start)
        self._lock = threading.Lock()

    def init_step_count(self, requester: str) -> None:
        with self._lock:
            super().init_step_count(requester)

    def erase_step_count(self, requester: str) -> bool:
        with self._lock:
            return super().erase_step_count(requester)

    def increment_step(self, requester: str) -> int:
        with self._lock:
            return super().increment_step(requester)

    def current_step(self) -> int:
        with self._lock:
            return super().current_step()

    def step_counts(self) -> dict[str, int]:
        with self._lock:
            return super().step_counts()
