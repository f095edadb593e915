"""The textbook tracker: right on one thread, wrong where PyTorch's is, right behind a lock."""

from __future__ import annotations

import threading
from collections import defaultdict
from collections.abc import Callable
from typing import ClassVar, Protocol, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kineto_step_tracker import StepTracker
from kineto_step_tracker.textbook import LockedStepTracker, TextbookStepTracker


class Tracker(Protocol):
    def init_step_count(self, requester: str) -> None: ...
    def erase_step_count(self, requester: str) -> bool: ...
    def increment_step(self, requester: str) -> int: ...
    def current_step(self) -> int: ...


Build = Callable[[Callable[[int], object]], Tracker]
Operation = tuple[str, str]

operations = st.lists(
    st.tuples(
        st.sampled_from(["init_step_count", "erase_step_count", "increment_step"]),
        st.sampled_from(["ProfilerStep", "Optimizer1Step", "Optimizer2Step"]),
    ),
    max_size=40,
)
textbooks = pytest.mark.parametrize("textbook", [TextbookStepTracker, LockedStepTracker])


def history(build: Build, program: list[Operation]) -> list[object]:
    """Everything that can be seen from outside: results, the global step, callbacks in between."""
    seen: list[object] = []
    tracker = build(lambda step: seen.append(("callback", step)))
    for method, requester in program:
        seen.append(getattr(tracker, method)(requester))
        seen.append(tracker.current_step())
    return seen


@textbooks
@settings(deadline=None)
@given(program=operations)
def test_on_one_thread_it_does_what_the_step_tracker_does(
    textbook: Build, program: list[Operation]
) -> None:
    assert history(textbook, program) == history(StepTracker, program)


@textbooks
def test_on_one_thread_it_does_what_pytorchs_class_does(textbook: Build) -> None:
    profiler = pytest.importorskip(
        "torch.autograd.profiler", reason="compares with PyTorch's own class"
    )

    def pytorch(on_step: Callable[[int], object]) -> Tracker:
        class Fresh(profiler.KinetoStepTracker):  # type: ignore[misc, name-defined]
            _current_step = 0
            _step_dict: ClassVar[dict[str, int]] = defaultdict(int)

        patch.setattr(profiler, "_kineto_step", lambda: on_step(Fresh._current_step + 1))
        return cast(Tracker, Fresh)

    @settings(deadline=None)
    @given(program=operations)
    def compare(program: list[Operation]) -> None:
        assert history(textbook, program) == history(pytorch, program)

    with pytest.MonkeyPatch.context() as patch:
        compare()


@textbooks
def test_steps_are_counted_from_the_start_and_passed_to_the_callback(
    textbook: type[TextbookStepTracker],
) -> None:
    steps: list[int] = []
    tracker = textbook(steps.append, start=7)
    assert tracker.increment_step("Optimizer1Step") == 8
    assert tracker.increment_step("Optimizer1Step") == 9
    assert (steps, tracker.step_counts()) == ([8, 9], {"Optimizer1Step": 9})


def increment_inside_the_callback(
    textbook: type[TextbookStepTracker], patience: float
) -> list[int]:
    """The steps called back when a second thread increments while the first is in the callback."""
    steps: list[int] = []
    second = threading.Thread(target=lambda: tracker.increment_step("Optimizer2Step"))

    def on_step(step: int) -> None:
        steps.append(step)
        if len(steps) == 1:
            second.start()
            second.join(patience)

    tracker = textbook(on_step)
    tracker.init_step_count("Optimizer2Step")
    tracker.increment_step("Optimizer1Step")
    second.join()
    return steps


def test_a_second_thread_makes_the_textbook_call_back_twice_for_one_step() -> None:
    assert increment_inside_the_callback(TextbookStepTracker, patience=60) == [1, 1]


def test_behind_the_lock_the_second_thread_waits_for_the_callback() -> None:
    assert increment_inside_the_callback(LockedStepTracker, patience=0.1) == [1]
