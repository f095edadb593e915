"""What is called exact, and what each fault is called."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest

from kineto_step_tracker.demo.account import Account, CallbackLog
from kineto_step_tracker.textbook import TextbookStepTracker

EXACT = Account(
    counts={"SGD#1": 3, "Adam#1": 3},
    global_step=3,
    steps=[1, 2, 3],
    overlaps=[],
    taken={"SGD#1": 3, "Adam#1": 3},
    iterations=3,
)


def test_an_exact_account_has_no_faults_and_says_what_is_exact() -> None:
    assert EXACT.exact
    assert EXACT.faults == []
    assert EXACT.verdict == (
        "exact: each of the 2 requesters counted its 3 steps, the global step is 3, and the "
        "callback ran once for each step, in order, never two at once."
    )


@pytest.mark.parametrize(
    ("account", "faults"),
    [
        (replace(EXACT, counts={"SGD#1": 3, "Adam#1": 2}), ["1 step not counted"]),
        (replace(EXACT, counts={"SGD#1": 3}), ["3 steps not counted"]),
        (replace(EXACT, counts={"SGD#1": 3, "Adam#1": 5}), ["2 steps counted that nobody took"]),
        (
            replace(EXACT, counts={"SGD#1": 2, "Adam#1": 4}),
            ["1 step not counted", "1 step counted that nobody took"],
        ),
        (replace(EXACT, global_step=2), ["global step 2"]),
        (replace(EXACT, steps=[1, 3]), ["1 callback missing"]),
        (replace(EXACT, steps=[1, 2, 3, 4, 5]), ["2 callbacks too many"]),
        (replace(EXACT, steps=[1, 2, 2, 3]), ["1 callback too many", "callbacks not in order"]),
        (replace(EXACT, steps=[1, 3, 2]), ["callbacks not in order"]),
        (
            replace(EXACT, steps=[1, 1, 2]),
            ["1 callback missing", "1 callback too many", "callbacks not in order"],
        ),
        (replace(EXACT, overlaps=[2, 3]), ["2 callbacks while another ran"]),
    ],
)
def test_every_fault_is_found_and_named(account: Account, faults: list[str]) -> None:
    assert account.faults == faults
    assert not account.exact
    assert account.verdict == f"NOT exact: {', '.join(faults)}."


def test_the_log_notes_the_steps_in_the_order_of_the_calls() -> None:
    log = CallbackLog(lambda: 7)
    log.on_step(2)
    log.on_step(1)
    log.kineto_step()
    assert (log.steps, log.overlaps) == ([2, 1, 7], [])


def test_the_log_notes_a_call_that_comes_while_another_runs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    log = CallbackLog(lambda: 0)

    def meanwhile(seconds: float) -> None:
        monkeypatch.undo()
        log.on_step(2)

    monkeypatch.setattr(time, "sleep", meanwhile)
    log.on_step(1)
    log.on_step(3)
    assert (log.steps, log.overlaps) == ([1, 2, 3], [2])


def test_an_account_is_taken_from_a_tracker_and_its_log() -> None:
    log = CallbackLog(lambda: 0)
    tracker = TextbookStepTracker(log.on_step)
    tracker.increment_step("SGD#1")
    assert Account.of(tracker, log, {"SGD#1": 1}, iterations=1) == Account(
        {"SGD#1": 1}, 1, [1], [], {"SGD#1": 1}, 1
    )
