"""What a tracker made of the run, held against what the training threads know themselves.

It imports the standard library only and knows no tracker: the same questions are asked of ours
and of PyTorch's algorithm.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Protocol


class CallbackLog:
    """Stands where a tracker's callback stands, and notes every call.

    Args:
        iteration: returns the iteration in which the training is, as the training itself counts.
    """

    def __init__(self, iteration: Callable[[], int]) -> None:
        self._iteration = iteration
        self._inside = threading.Lock()
        self.steps: list[int] = []
        self.overlaps: list[int] = []

    def on_step(self, step: int) -> None:
        alone = self._inside.acquire(blocking=False)
        self.steps.append(step)
        if not alone:
            self.overlaps.append(step)
        # Other threads get their turn here, as in any callback that writes or waits.
        time.sleep(0)
        if alone:
            self._inside.release()

    def kineto_step(self) -> None:
        """Called as Kineto's is, without the step: it is taken for that of the iteration."""
        self.on_step(self._iteration())


class StepCounts(Protocol):
    """The part of a tracker that tells what it has counted."""

    def current_step(self) -> int: ...
    def step_counts(self) -> dict[str, int]: ...


@dataclass(frozen=True)
class Account:
    """A tracker's account of a run that is over, and the truth to hold it against.

    Args:
        counts: each requester's count.
        global_step: the global step.
        steps: the steps that the callback was called for, in the order of the calls.
        overlaps: those of them that came while another call was running.
        taken: the steps that each requester took, as its own thread counted them.
        iterations: how many iterations were trained.
    """

    counts: Mapping[str, int]
    global_step: int
    steps: Sequence[int]
    overlaps: Sequence[int]
    taken: Mapping[str, int]
    iterations: int

    @classmethod
    def of(
        cls, tracker: StepCounts, log: CallbackLog, taken: Mapping[str, int], iterations: int
    ) -> Account:
        return cls(
            tracker.step_counts(),
            tracker.current_step(),
            log.steps,
            log.overlaps,
            taken,
            iterations,
        )

    @property
    def in_order(self) -> bool:
        """Whether each callback was for a later step than the one before."""
        return all(step < later for step, later in pairwise(self.steps))

    @property
    def faults(self) -> list[str]:
        """What is wrong with it, a few words for each fault; empty if it is exact."""
        wrong = {
            name: self.counts.get(name, 0) - taken
            for name, taken in self.taken.items()
            if self.counts.get(name, 0) != taken
        }
        lost = -sum(difference for difference in wrong.values() if difference < 0)
        extra = sum(difference for difference in wrong.values() if difference > 0)
        missing = len(set(range(1, self.iterations + 1)).difference(self.steps))
        surplus = len(self.steps) - (self.iterations - missing)
        found = {
            f"{_number(lost, 'step')} not counted": lost,
            f"{_number(extra, 'step')} counted that nobody took": extra,
            f"global step {self.global_step}": self.global_step != self.iterations,
            f"{_number(missing, 'callback')} missing": missing,
            f"{_number(surplus, 'callback')} too many": surplus,
            "callbacks not in order": not self.in_order,
            f"{_number(len(self.overlaps), 'callback')} while another ran": self.overlaps,
        }
        return [fault for fault, is_there in found.items() if is_there]

    @property
    def exact(self) -> bool:
        return not self.faults

    @property
    def verdict(self) -> str:
        """A sentence that says whether it is exact, and why."""
        if self.faults:
            return f"NOT exact: {', '.join(self.faults)}."
        return (
            f"exact: each of the {len(self.taken)} requesters counted its {self.iterations} steps, "
            f"the global step is {self.global_step}, and the callback ran once for each step, "
            "in order, never two at once."
        )


def _number(number: int, thing: str) -> str:
    return f"{number} {thing}{'' if number == 1 else 's'}"
