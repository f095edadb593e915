"""Every check of the hammer, proved by a tracker that fails it."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from random import random

import pytest

from kineto_step_tracker import StepTracker, backend
from kineto_step_tracker.stress import Plan, Progress, Scenario
from kineto_step_tracker.stress.hammer import hammer
from kineto_step_tracker.stress.hand import CallbackError
from kineto_step_tracker.stress.subjects import _OF_THIS_PACKAGE, Subject


class Exact:
    """Ours, to be broken in one place."""

    def __init__(self, on_step: Callable[[int], object]) -> None:
        self.on_step = on_step
        self.tracker = StepTracker(self.call_back)

    def call_back(self, step: int) -> None:
        self.on_step(step)

    def init_step_count(self, requester: str) -> None:
        self.tracker.init_step_count(requester)

    def erase_step_count(self, requester: str) -> bool:
        return self.tracker.erase_step_count(requester)

    def increment_step(self, requester: str) -> int:
        return self.tracker.increment_step(requester)

    def current_step(self) -> int:
        return self.tracker.current_step()

    def step_counts(self) -> dict[str, int]:
        return self.tracker.step_counts()


class LosesIncrements(Exact):
    def increment_step(self, requester: str) -> int:
        step = self.current_step()
        return step if step % 100 == 50 and random() < 0.5 else super().increment_step(requester)


class CountsTwice(Exact):
    def increment_step(self, requester: str) -> int:
        super().increment_step(requester)
        return super().increment_step(requester)


class RisesByItself(Exact):
    def increment_step(self, requester: str) -> int:
        super().increment_step("nobody")
        super().increment_step("nobody")
        return super().increment_step(requester)


class LetsTheStepFall(Exact):
    def increment_step(self, requester: str) -> int:
        step = super().increment_step(requester)
        return step - 2 if step % 100 == 50 else step


class StaysBelowACount(Exact):
    def current_step(self) -> int:
        return super().current_step() // 2


class SkipsCallbacks(Exact):
    def call_back(self, step: int) -> None:
        if step % 100:
            super().call_back(step)


class StrandsTheLast(Exact):
    def increment_step(self, requester: str) -> int:
        if requester == "the last":
            self.on_step = id
        return super().increment_step(requester)


class CallsBackLate(Exact):
    late = 0

    def call_back(self, step: int) -> None:
        if self.late:
            super().call_back(self.late)
        self.late = step


class LosesToInitialisations(Exact):
    def init_step_count(self, requester: str) -> None:
        super().init_step_count(requester)
        if requester == "duel" and random() < 0.5:
            self.tracker._assign(requester, self.current_step() - 1)


class CallsBackTwice(Exact):
    def call_back(self, step: int) -> None:
        super().call_back(step)
        if step % 100 == 0:
            super().call_back(step)


class CallsBackInsideACallback(Exact):
    def increment_step(self, requester: str) -> int:
        step = super().increment_step(requester)
        if requester == "callback":
            self.on_step(step)
        return step


class SwallowsErrors(Exact):
    def call_back(self, step: int) -> None:
        with suppress(CallbackError):
            super().call_back(step)


class RaisesErrors(Exact):
    def step_counts(self) -> dict[str, int]:
        if self.current_step():
            raise RuntimeError("dictionary changed size during iteration")
        return super().step_counts()


class RefusesHandles(Exact):
    def init_step_count(self, requester: str) -> None:
        if self.current_step():
            raise MemoryError
        super().init_step_count(requester)


class ForgetsToErase(Exact):
    def erase_step_count(self, requester: str) -> bool:
        return requester in self.step_counts()


class DeniesErasing(Exact):
    def erase_step_count(self, requester: str) -> bool:
        super().erase_step_count(requester)
        return False


class KeepsTheCount(Exact):
    def init_step_count(self, requester: str) -> None:
        if requester not in self.step_counts():
            super().init_step_count(requester)


@pytest.fixture
def subject(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(_OF_THIS_PACKAGE, Subject.OURS, request.param)


def violations(scenario: Scenario) -> set[str]:
    # On one thread, where the trackers above do what they do and nothing else goes wrong.
    seconds = 0.1 if backend == "native" else 1
    outcome = hammer(Plan(threads=1, seconds=seconds, scenario=scenario))
    return {violation.kind for violation in outcome.violations}


@pytest.mark.parametrize("subject", [Exact], indirect=True)
@pytest.mark.parametrize("scenario", Scenario)
@pytest.mark.usefixtures("subject")
def test_an_exact_tracker_breaks_no_promise(scenario: Scenario) -> None:
    assert violations(scenario) == set()


@pytest.mark.parametrize(
    ("subject", "scenario", "violation"),
    [
        (LosesIncrements, Scenario.COUNT, "increments lost"),
        (CountsTwice, Scenario.COUNT, "increments counted twice"),
        (RisesByItself, Scenario.COUNT, "more rises than increments"),
        (LetsTheStepFall, Scenario.COUNT, "the global step fell"),
        (StaysBelowACount, Scenario.COUNT, "a count above the global step"),
        (StaysBelowACount, Scenario.CHURN, "the global step below a count"),
        (SkipsCallbacks, Scenario.COUNT, "a callback out of order"),
        (StrandsTheLast, Scenario.COUNT, "steps without a callback"),
        (CallsBackLate, Scenario.COUNT, "steps without a callback"),
        (CallsBackLate, Scenario.CHURN, "steps without a callback"),
        (LosesToInitialisations, Scenario.CHURN, "increments lost among initialisations"),
        (DeniesErasing, Scenario.CHURN, "a registration not erased once"),
        (CallsBackTwice, Scenario.COUNT, "callbacks too many"),
        (CallsBackInsideACallback, Scenario.CALLBACKS, "a callback while another ran"),
        (SwallowsErrors, Scenario.CALLBACKS, "errors of the callback lost or doubled"),
        (RaisesErrors, Scenario.COUNT, "an operation failed"),
        (RefusesHandles, Scenario.CHURN, "a worker died"),
        (ForgetsToErase, Scenario.CHURN, "an erased requester has a count"),
        (DeniesErasing, Scenario.CHURN, "a wrong answer to an erase"),
        (KeepsTheCount, Scenario.CHURN, "a wrong count"),
    ],
    indirect=["subject"],
)
@pytest.mark.usefixtures("subject")
def test_a_tracker_that_breaks_one_is_found_out(scenario: Scenario, violation: str) -> None:
    assert violation in violations(scenario)


def test_what_the_watcher_raises_leaves_it() -> None:
    def watch(progress: Progress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        hammer(Plan(seconds=60, scenario=Scenario.COUNT), watch)
