"""A run in a process of its own: what it reports, and hangs, crashes and errors as findings."""

from __future__ import annotations

import multiprocessing
import os
import re
import signal
from typing import Any

import pytest

from kineto_step_tracker.stress import Plan, Progress, Scenario, run
from kineto_step_tracker.stress.subjects import Subject

SECONDS = 0.5


@pytest.mark.parametrize("scenario", Scenario)
def test_ours_keeps_its_promises(scenario: Scenario) -> None:
    outcome = run(Plan(seconds=SECONDS, scenario=scenario))
    assert outcome.violations == ()
    assert outcome.callbacks == outcome.rises > 0
    assert outcome.operations["increments by name"] > 0
    assert outcome.operations["increments by handle"] > 0
    churn = scenario in (Scenario.CHURN, Scenario.ALL)
    assert ("erasures" in outcome.operations) == churn
    callbacks = scenario in (Scenario.CALLBACKS, Scenario.ALL)
    assert (outcome.errors > 0) <= callbacks
    interrupts = scenario in (Scenario.INTERRUPTS, Scenario.ALL)
    assert (outcome.signals > 0) == (interrupts and hasattr(signal, "setitimer"))
    assert (outcome.finalisers > 0) == interrupts


def test_the_textbook_tracker_breaks_them() -> None:
    outcome = run(Plan(seconds=SECONDS, scenario=Scenario.COUNT, subject=Subject.TEXTBOOK))
    assert outcome.violations


@pytest.mark.parametrize("scenario", [Scenario.COUNT, Scenario.CHURN])
def test_behind_a_lock_it_keeps_those_that_a_lock_can_keep(scenario: Scenario) -> None:
    outcome = run(Plan(seconds=SECONDS, scenario=scenario, subject=Subject.LOCKED))
    assert outcome.violations == ()


def test_pytorchs_class_breaks_them() -> None:
    pytest.importorskip("torch", reason="puts PyTorch's own class under stress")
    outcome = run(Plan(seconds=SECONDS, scenario=Scenario.COUNT, subject=Subject.PYTORCH))
    assert outcome.callbacks > outcome.rises
    assert "callbacks too many" in {violation.kind for violation in outcome.violations}


def test_a_deadlock_is_found_and_says_where_every_thread_stands() -> None:
    # With this seed the callback comes back into the tracker at the first step.
    plan = Plan(seconds=60, scenario=Scenario.CALLBACKS, subject=Subject.LOCKED, seed=63)
    (violation,) = run(plan, patience=1).violations
    assert violation.kind == "no operation came to its end"
    assert "MainThread in LockedStepTracker." in violation.first
    assert "worker 3 in LockedStepTracker." in violation.first


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no such signal")
def test_a_crash_is_found() -> None:
    def kill(progress: Progress) -> None:
        (child,) = multiprocessing.active_children()
        child.kill()

    (violation,) = run(Plan(seconds=60), kill).violations
    assert (violation.kind, violation.first) == ("the process died", "of SIGKILL")


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system has no such signal")
def test_a_process_that_does_not_even_report_is_given_up() -> None:
    def stop(progress: Progress) -> None:
        (child,) = multiprocessing.active_children()
        assert child.pid is not None
        os.kill(child.pid, signal.SIGSTOP)

    (violation,) = run(Plan(seconds=60), stop, patience=2).violations
    assert violation.kind == "the process fell silent"
    assert violation.first.startswith("not a word for 4 s; ")


def test_what_the_watcher_raises_ends_the_run_and_the_process() -> None:
    def watch(progress: Progress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(Plan(seconds=60), watch)
    assert multiprocessing.active_children() == []


def test_the_watcher_is_told_of_progress() -> None:
    told: list[Progress] = []
    run(Plan(seconds=SECONDS), told.append)
    assert told
    assert [progress.operations for progress in told] == sorted(
        progress.operations for progress in told
    )
    assert {(progress.violations, progress.standstill) for progress in told} == {((), ())}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ({"threads": 0}, "threads must be from 1 to 256, not 0"),
        ({"threads": 257}, "threads must be from 1 to 256, not 257"),
        ({"requesters": 0}, "requesters must be at least 1, not 0"),
        ({"seconds": 0}, "seconds must be above 0, not 0"),
        ({"seconds": float("nan")}, "seconds must be above 0, not nan"),
        ({"seconds": "2"}, "seconds must be a number, not str ('2')"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 0.5}, "seed must be an int, not float (0.5)"),
        ({"scenario": "x"}, "'x' is not a valid Scenario"),
        ({"subject": "x"}, "'x' is not a valid Subject"),
    ],
)
def test_a_bad_plan_is_refused(argument: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        Plan(**argument)


def test_no_patience_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^patience must be above 0, not 0$"):
        run(Plan(), patience=0)


def test_the_command_of_a_plan_names_all_of_it() -> None:
    plan = Plan(2, 3, 1.5, Scenario.CHURN, Subject.LOCKED, 7)
    assert plan.command == (
        "kineto-step-tracker stress --threads 2 --requesters 3 --seconds 1.5 "
        "--scenario churn --tracker locked --seed 7"
    )
