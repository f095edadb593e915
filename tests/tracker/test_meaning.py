"""What the operations mean on one thread: design section 2, and PyTorch's class beside ours."""

from __future__ import annotations

import enum
import sys
from collections.abc import Callable

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kineto_step_tracker import StepTracker
from kineto_step_tracker.textbook import TextbookStepTracker


def test_the_global_step_is_the_largest_count_and_never_falls() -> None:
    tracker = StepTracker()
    for _ in range(3):
        tracker.increment_step("fast")
    tracker.init_step_count("late")
    assert tracker.step_counts() == {"fast": 3, "late": 3}
    assert tracker.erase_step_count("fast") is True
    assert tracker.current_step() == 3
    assert tracker.increment_step("late") == 4
    assert tracker.step_counts() == {"late": 4}


def test_an_increment_that_is_no_rise_calls_nothing_and_returns_the_global_step() -> None:
    steps: list[int] = []
    tracker = StepTracker(steps.append)
    tracker.init_step_count("slow")
    for _ in range(5):
        tracker.increment_step("fast")
    assert tracker.increment_step("slow") == 5
    assert steps == [1, 2, 3, 4, 5]


def test_re_initialising_moves_a_count_up_to_the_global_step() -> None:
    tracker = StepTracker()
    tracker.init_step_count("slow")
    tracker.increment_step("fast")
    tracker.init_step_count("slow")
    assert tracker.increment_step("slow") == 2


def test_start_is_the_first_global_step_and_its_callback_is_not_run() -> None:
    steps: list[int] = []
    tracker = StepTracker(steps.append, start=2**62)
    assert tracker.increment_step("a") == 2**62 + 1
    assert steps == [2**62 + 1]


def test_erasing_an_unknown_requester_is_false() -> None:
    assert StepTracker().erase_step_count("nobody") is False


def test_arguments_may_be_named_as_in_pytorch() -> None:
    tracker = StepTracker()
    tracker.init_step_count(requester="a")
    assert tracker.increment_step(requester="a") == 1
    assert tracker.erase_step_count(requester="a") is True


def test_a_str_subclass_counts_as_its_characters() -> None:
    class Name(enum.StrEnum):
        SGD = "SGD"

    class Treacherous(str):
        def __hash__(self) -> int:
            raise AssertionError("the tracker called the caller's code")

        __eq__ = __hash__  # type: ignore[assignment]

    tracker = StepTracker()
    assert tracker.increment_step(Name.SGD) == 1
    assert tracker.increment_step(Treacherous("SGD")) == 2
    assert tracker.requester(Treacherous("SGD")).increment() == 3
    assert tracker.step_counts() == {"SGD": 3}
    assert type(next(iter(tracker.step_counts()))) is str


def test_names_are_interned_when_registered() -> None:
    """So that the dict finds a literal name by identity, whoever registered it."""
    computed = "".join(["Optimizer", "1", "Step"])
    registrations: list[Callable[[StepTracker], object]] = [
        lambda tracker: tracker.init_step_count(computed),
        lambda tracker: tracker.increment_step(computed),
        lambda tracker: tracker.requester(computed),
    ]
    for register in registrations:
        tracker = StepTracker()
        register(tracker)
        assert next(iter(tracker.step_counts())) is sys.intern("Optimizer1Step")


def test_a_handle_counts_for_its_requester() -> None:
    tracker = StepTracker(start=5)
    handle = tracker.requester("SGD#1")
    assert (handle.name, handle.count) == ("SGD#1", 5)
    assert handle.increment() == 6
    assert tracker.increment_step("SGD#1") == 7
    assert handle.count == 7
    assert tracker.requester("SGD#1").count == 7, "a second handle keeps the count"


def test_a_handle_can_count_only_while_its_registration_lasts() -> None:
    tracker = StepTracker(start=5)
    handle = tracker.requester("SGD#1")
    assert handle._count_if_registered() is True
    assert (handle.count, tracker.current_step()) == (6, 6)
    handle.erase()
    assert handle._count_if_registered() is False
    assert (handle.count, tracker.current_step()) == (None, 6)
    tracker.init_step_count("SGD#1")
    assert handle._count_if_registered() is False, "this is another registration"
    assert handle.count == 6


@pytest.mark.parametrize("by", ["handle", "name", "reset"])
def test_after_an_erase_a_handle_starts_afresh(by: str) -> None:
    tracker = StepTracker()
    handle = tracker.requester("SGD#1")
    handle.increment()
    if by == "handle":
        assert handle.erase() is True
    elif by == "name":
        assert tracker.erase_step_count("SGD#1") is True
    else:
        tracker.reset(1)
    assert handle.count is None
    assert handle.erase() is False
    assert handle.increment() == 2
    assert handle.increment() == 3
    assert tracker.step_counts() == {"SGD#1": 3}
    assert repr(handle) == "<Requester 'SGD#1', count 3>"


def test_a_handle_erases_its_requester_on_exit() -> None:
    tracker = StepTracker()
    with pytest.raises(TypeError), tracker.requester("SGD#1") as handle:
        tracker.increment_step(handle.increment())  # type: ignore[arg-type]
    assert (handle.count, tracker.step_counts(), tracker.current_step()) == (None, {}, 1)


def test_step_counts_is_a_copy() -> None:
    tracker = StepTracker()
    tracker.increment_step("a")
    tracker.step_counts()["a"] = 100
    assert tracker.step_counts() == {"a": 1}


def test_reset_forgets_everything_and_calls_nothing() -> None:
    steps: list[int] = []
    tracker = StepTracker(steps.append)
    tracker.increment_step("a")
    tracker.reset(10)
    assert (tracker.current_step(), tracker.step_counts(), steps) == (10, {}, [1])
    tracker.reset()
    assert tracker.increment_step("a") == 1
    assert steps == [1, 1]


def test_reprs_show_the_counts() -> None:
    tracker = StepTracker()
    handle = tracker.requester("a")
    handle.increment()
    assert repr(tracker) == "<StepTracker at step 1, counts {'a': 1}>"
    assert repr(handle) == "<Requester 'a', count 1>"


def test_the_repr_of_many_requesters_is_still_one_line() -> None:
    tracker = StepTracker(start=7)
    for number in range(10):
        tracker.init_step_count(f"SGD#{number}")
    assert "'SGD#9': 7}>" in repr(tracker)
    tracker.init_step_count("SGD#10")
    assert repr(tracker) == "<StepTracker at step 7, counts of 11 requesters>"


class BesideTheTextbook(RuleBasedStateMachine):
    """Any sequence of calls, made on both, returns and calls back alike."""

    def __init__(self) -> None:
        super().__init__()
        self.steps: list[int] = []
        self.expected_steps: list[int] = []
        self.tracker = StepTracker(self.steps.append)
        self.expected = TextbookStepTracker(self.expected_steps.append)

    requesters = st.sampled_from(["ProfilerStep", "Optimizer1Step", "Optimizer2Step"])

    @rule(requester=requesters)
    def init(self, requester: str) -> None:
        self.tracker.init_step_count(requester)
        self.expected.init_step_count(requester)

    @rule(requester=requesters)
    def increment(self, requester: str) -> None:
        assert self.tracker.increment_step(requester) == self.expected.increment_step(requester)

    @rule(requester=requesters)
    def increment_by_handle(self, requester: str) -> None:
        if requester not in self.tracker.step_counts():
            self.expected.init_step_count(requester)
        handle = self.tracker.requester(requester)
        assert handle.increment() == self.expected.increment_step(requester)

    @rule(requester=requesters)
    def erase(self, requester: str) -> None:
        assert self.tracker.erase_step_count(requester) is self.expected.erase_step_count(requester)

    @invariant()
    def alike(self) -> None:
        assert self.tracker.current_step() == self.expected.current_step()
        assert self.tracker.step_counts() == self.expected.step_counts()
        assert self.steps == self.expected_steps


BesideTheTextbook.TestCase.settings = settings(deadline=None, max_examples=200)
TestBesideTheTextbook = BesideTheTextbook.TestCase
