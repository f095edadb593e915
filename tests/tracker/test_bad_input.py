"""Contract point 9: a refused call says what came and what was expected, and changes nothing."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from kineto_step_tracker import Requester, StepTracker


class Hostile:
    def __repr__(self) -> str:
        raise RuntimeError("no repr")


@pytest.mark.parametrize(
    ("call", "argument"),
    [
        (StepTracker.init_step_count, "requester"),
        (StepTracker.increment_step, "requester"),
        (StepTracker.erase_step_count, "requester"),
        (StepTracker.requester, "name"),
    ],
)
@pytest.mark.parametrize(
    ("bad", "described"),
    [
        (None, "NoneType (None)"),
        (7, "int (7)"),
        (b"SGD", "bytes (b'SGD')"),
        (["SGD"], "list (['SGD'])"),
        (Hostile(), "Hostile (unprintable)"),
        (b"x" * 200, f"bytes (b'{'x' * 58}…)"),
    ],
)
def test_a_requester_that_is_no_str(
    call: Callable[[StepTracker, Any], object], argument: str, bad: object, described: str
) -> None:
    tracker = StepTracker(start=3)
    tracker.init_step_count("a")
    with pytest.raises(TypeError) as refusal:
        call(tracker, bad)
    assert str(refusal.value) == f"{argument} must be a str, not {described}"
    assert (tracker.current_step(), tracker.step_counts()) == (3, {"a": 3})


@pytest.mark.parametrize("argument", ["start", "step"])
@pytest.mark.parametrize(
    ("bad", "error", "message"),
    [
        ("7", TypeError, "must be an int, not str ('7')"),
        (7.0, TypeError, "must be an int, not float (7.0)"),
        (None, TypeError, "must be an int, not NoneType (None)"),
        (-1, ValueError, "must be from 0 to 2**62, not -1"),
        (2**62 + 1, ValueError, "must be from 0 to 2**62, not 4611686018427387905"),
        (10**99, ValueError, f"must be from 0 to 2**62, not 1{'0' * 59}…"),
        pytest.param(10**5000, ValueError, "must be from 0 to 2**62, not unprintable", id="huge"),
    ],
)
def test_a_step_out_of_range(argument: str, bad: Any, error: type[Exception], message: str) -> None:
    tracker = StepTracker()
    tracker.increment_step("a")
    with pytest.raises(error) as refusal:
        StepTracker(start=bad) if argument == "start" else tracker.reset(bad)
    assert str(refusal.value) == f"{argument} {message}"
    assert tracker.step_counts() == {"a": 1}


def test_a_callback_that_is_no_callable() -> None:
    with pytest.raises(TypeError) as refusal:
        StepTracker(on_step=3)  # type: ignore[arg-type]
    assert str(refusal.value) == (
        "on_step must be a callable that takes the step, or None, not int (3)"
    )


@pytest.mark.parametrize("make_copy", [copy.copy, copy.deepcopy, pickle.dumps])
@pytest.mark.parametrize("of", ["tracker", "handle"])
def test_neither_pickled_nor_copied(make_copy: Callable[[object], object], of: str) -> None:
    tracker = StepTracker()
    with pytest.raises(TypeError, match="can be neither pickled nor copied: "):
        make_copy(tracker if of == "tracker" else tracker.requester("a"))


def test_initialised_only_once() -> None:
    tracker = StepTracker()
    tracker.increment_step("a")
    with pytest.raises(TypeError, match="initialised only once"):
        tracker.__init__()  # type: ignore[misc]
    assert tracker.step_counts() == {"a": 1}


def test_a_handle_is_not_made_by_hand() -> None:
    with pytest.raises(TypeError, match=r"made by StepTracker\.requester"):
        Requester()
    with pytest.raises(TypeError, match=r"made by StepTracker\.requester"):
        Requester(StepTracker(), name="a")


@pytest.mark.parametrize(
    "use",
    [
        lambda: StepTracker.__new__(StepTracker).increment_step("a"),
        lambda: StepTracker.__new__(StepTracker).erase_step_count("a"),
        lambda: StepTracker.__new__(StepTracker).requester("a"),
        lambda: StepTracker.__new__(StepTracker).current_step(),
        lambda: StepTracker.__new__(StepTracker).step_counts(),
        lambda: StepTracker.__new__(StepTracker).reset(),
        lambda: repr(StepTracker.__new__(StepTracker)),
        lambda: Requester.__new__(Requester).increment(),
        lambda: Requester.__new__(Requester).count,
        lambda: Requester.__new__(Requester).erase(),
    ],
)
def test_an_object_that_was_never_initialised_is_an_error_and_no_crash(
    use: Callable[[], object],
) -> None:
    with pytest.raises(AttributeError):
        use()
