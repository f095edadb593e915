"""The step of the job: one cell in the store, raised by compare-and-swap.

It imports the standard library only. It promises that of all ranks that raise the cell past a
multiple of ``every`` exactly one calls ``on_rise`` for that, in increasing order in each rank, even
where the store's answer is lost and whatever the others do until it is asked again. Only a rank
that never comes back to call it leaves a multiple without its call.

The cell holds the record of the last rise: its step, and which process won it. A process that gets
no answer to its try does not know whether it has won, and by the time it asks again others may have
raised the cell further. So before one replaces another's record it credits that other, in a key of
the other's own: who finds neither its record in the cell nor the credit has not won.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

STEP = "job/step"


class Cells(Protocol):
    """What is used of a store: returns what the key holds afterwards, and "" makes a new one."""

    def compare_set(self, key: str, expected_value: str, desired_value: str, /) -> bytes: ...


class LostError(RuntimeError):
    """A key is not in the store any more."""


class Rises:
    """What one process knows of the job's step, and its part in raising it.

    Not thread-safe. An error of the store is passed on, and leaves everything ready to go on, with
    the same connection or another.

    Args:
        identity: tells this process from every other; without a space.
        every: of which multiples a rise is called.
        start: what the job's step is at first, if this process is the first in the job.
        on_rise: called with each multiple that this process has won. Must not raise.
    """

    def __init__(
        self, identity: str, every: int, start: int, on_rise: Callable[[int], object]
    ) -> None:
        self._identity = identity
        self._every = every
        self._start = start // every * every
        self._on_rise = on_rise
        # The record that was seen last in the cell, and the one that is to replace it, as long as
        # it is not known whether it has.
        self._seen = ""
        self._attempt = ""
        # The job's step never falls: what a store has forgotten is not called again.
        self.step = 0

    def enter(self, store: Cells) -> None:
        """Begin the job, if nobody has; once for each connection."""
        if not self._attempt:
            self._see(store.compare_set(STEP, "", self._record(self._start)).decode())

    def raise_to(self, store: Cells, step: int) -> None:
        """Raise the job's step at least to the last multiple up to this step."""
        target = max(step // self._every * self._every, self.step)
        if not self._attempt:
            self._see(store.compare_set(STEP, "", "").decode())
        while self._attempt or _step(self._seen) < target:
            if not self._attempt:
                self._credit(store)
                self._attempt = self._record(target)
            self._settle(store)

    def _settle(self, store: Cells) -> None:
        """Replace the record that was seen. To try it again, when it has succeeded, is harmless."""
        now = store.compare_set(STEP, self._seen, self._attempt).decode()
        if now == self._seen:
            self._forget()
        is_won = now == self._attempt
        if not is_won:
            # In this order: whoever has replaced it had credited it before.
            credited = store.compare_set(self._credits(self._attempt), "", "").decode()
            is_won = credited == self._attempt
        won, self._attempt = self._attempt, ""
        first = self.step + self._every
        if is_won:
            self.step = max(self.step, _step(won))
        self._see(now)
        if is_won:
            for multiple in range(first, _step(won) + 1, self._every):
                self._on_rise(multiple)

    def _credit(self, store: Cells) -> None:
        """Tell the winner of the record that was seen, before that is replaced.

        Its credit is raised to the record as the cell is to a step: one who was about to credit
        an earlier record may come late.
        """
        if not self._seen or _winner(self._seen) == self._identity:
            return
        before = ""
        while True:
            now = store.compare_set(self._credits(self._seen), before, self._seen).decode()
            if _step(now) >= _step(self._seen):
                return
            if now == before:
                self._forget()
            before = now

    def _see(self, record: str) -> None:
        if not record:
            self._forget()
        self._seen = record
        self.step = max(self.step, _step(record))

    def _forget(self) -> None:
        self._seen = self._attempt = ""
        raise LostError("the job's step is gone from the store")

    def _record(self, step: int) -> str:
        return f"{step} {self._identity}"

    def _credits(self, record: str) -> str:
        return f"won/{_winner(record)}"


def _step(record: str) -> int:
    return int(record.partition(" ")[0] or 0)


def _winner(record: str) -> str:
    return record.partition(" ")[2]
