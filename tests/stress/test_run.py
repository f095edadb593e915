"""A run in a process of its own: what it reports, and hangs, crashes and errors as findings."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kineto_step_tracker.stress import Plan, Progress, Scenario, run
from kineto_step_tracker.stress.subjects import Subject

SECONDS = 0.5


@pytest.mark.parametrize("scenario", Scenario)
def test_ours_keeps_its_promises(scenario: Scenario) -> None:
    outcome = run(Plan(seconds=SECONDS, scenario=scenario))
    assert outcome.violations == ()
    assert outcome.callbacks == outcome.rises
    assert outcome.rises
    assert outcome.operations["increments by name"] > 0
    assert outcome.operations["increments by handle"] > 0
    churn = scenario in (Scenario.CHURN, Scenario.ALL)
    assert ("erasures" in outcome.operations) == churn
    callbacks = scenario in (Scenario.CALLBACKS, Scenario.ALL)
    assert bool(outcome.errors) <= callbacks
    interrupts = scenario in (Scenario.INTERRUPTS, Scenario.ALL)
    assert bool(outcome.signals) == (interrupts and hasattr(signal, "setitimer"))
    assert bool(outcome.finalisers) == interrupts


def test_the_textbook_tracker_breaks_them() -> None:
    outcome = run(Plan(seconds=SECONDS, scenario=Scenario.COUNT, tracker=Subject.TEXTBOOK))
    assert outcome.violations


@pytest.mark.parametrize("scenario", [Scenario.COUNT, Scenario.CHURN])
def test_behind_a_lock_it_keeps_those_that_a_lock_can_keep(scenario: Scenario) -> None:
    outcome = run(Plan(seconds=SECONDS, scenario=scenario, tracker=Subject.LOCKED))
    assert outcome.violations == ()


def test_pytorchs_class_breaks_them() -> None:
    pytest.importorskip("torch", reason="puts PyTorch's own class under stress")
    outcome = run(Plan(seconds=SECONDS, scenario=Scenario.COUNT, tracker=Subject.PYTORCH))
    assert (outcome.callbacks or 0) > (outcome.rises or 0)
    assert "callbacks too many" in {violation.kind for violation in outcome.violations}


def test_a_deadlock_is_found_and_says_where_every_thread_stands() -> None:
    # With this seed the callback comes back into the tracker at the first step.
    plan = Plan(seconds=60, scenario=Scenario.CALLBACKS, tracker=Subject.LOCKED, seed=63)
    (violation,) = run(plan, patience=1).violations
    assert violation.kind == "no operation finished for 1 s"
    assert "MainThread in LockedStepTracker." in violation.first
    assert "worker 3 in LockedStepTracker." in violation.first


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch) -> list[subprocess.Popen[bytes]]:
    """The processes that were started."""
    processes: list[subprocess.Popen[bytes]] = []

    class Noted(subprocess.Popen[bytes]):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            processes.append(self)

    monkeypatch.setattr(subprocess, "Popen", Noted)
    return processes


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="this system has no such signal")
def test_a_crash_is_found(started: list[subprocess.Popen[bytes]]) -> None:
    outcome = run(Plan(seconds=60), lambda progress: started[0].kill())
    (violation,) = outcome.violations
    assert (violation.kind, violation.first) == ("the process died", "killed by SIGKILL")
    assert (outcome.rises, outcome.callbacks, outcome.errors) == (None, None, None)


@pytest.mark.skipif(not hasattr(signal, "SIGRTMAX"), reason="this system has no such signal")
def test_a_signal_without_a_name_has_its_number(started: list[subprocess.Popen[bytes]]) -> None:
    nameless = signal.SIGRTMAX - 1
    (violation,) = run(Plan(seconds=60), lambda told: started[0].send_signal(nameless)).violations
    assert violation.first == f"killed by signal {nameless}"


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system has no such signal")
def test_a_process_that_does_not_even_report_is_given_up(
    started: list[subprocess.Popen[bytes]],
) -> None:
    def stop(progress: Progress) -> None:
        started[0].send_signal(signal.SIGSTOP)

    (violation,) = run(Plan(seconds=60), stop, patience=2).violations
    assert violation.kind == "the process fell silent"
    assert violation.first.startswith("not a word for 4 s; ")
    assert started[0].poll() is not None


def test_what_the_watcher_raises_ends_the_run_and_the_process(
    started: list[subprocess.Popen[bytes]],
) -> None:
    def watch(progress: Progress) -> None:
        raise InterruptedError

    with pytest.raises(InterruptedError):
        run(Plan(seconds=60), watch)
    assert started[0].poll() is not None


@pytest.mark.skipif(not hasattr(signal, "SIGSTOP"), reason="this system has no such signal")
def test_a_time_in_which_both_processes_were_stopped_is_no_silence() -> None:
    program = """
from kineto_step_tracker.stress import Plan, run
print("violations", run(Plan(seconds=2), lambda told: print("told", flush=True), 1).violations)
"""
    with subprocess.Popen(
        [sys.executable, "-c", program], stdout=subprocess.PIPE, text=True
    ) as parent:
        assert parent.stdout is not None
        assert parent.stdout.readline() == "told\n"
        child = int(Path(f"/proc/{parent.pid}/task/{parent.pid}/children").read_text())
        for process in (parent.pid, child):
            os.kill(process, signal.SIGSTOP)
        time.sleep(5)
        for process in (child, parent.pid):
            os.kill(process, signal.SIGCONT)
        assert parent.stdout.read().splitlines()[-1] == "violations ()"


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks a process up in /proc")
@pytest.mark.parametrize("tracker", ["ours", "locked"])
def test_the_process_ends_with_a_parent_that_is_killed(tracker: str) -> None:
    program = f"""
import subprocess
from kineto_step_tracker.stress import Plan, run

class Told(subprocess.Popen):
    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        print(self.pid, flush=True)

subprocess.Popen = Told
run(Plan(seconds=60, scenario="callbacks", tracker={tracker!r}, seed=63))
"""
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as parent:
        assert parent.stdout is not None
        child = int(parent.stdout.readline())
        parent.kill()
    deadline = time.monotonic() + 60
    while lives(child):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def lives(process: int) -> bool:
    try:
        # Behind its name in brackets is its state; a zombie has ended.
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_it_needs_no_main_module() -> None:
    """Unlike what multiprocessing starts."""
    program = "from kineto_step_tracker.stress import *; print(run(Plan(seconds=0.1)).violations)"
    done = subprocess.run(
        [sys.executable], input=program, check=True, capture_output=True, text=True
    )
    assert (done.stdout, done.stderr) == ("()\n", "")


def test_a_watcher_that_cannot_be_called_is_refused_before_anything_runs() -> None:
    with pytest.raises(TypeError, match=r"^watch must be callable, not 3$"):
        run(Plan(), 3)  # type: ignore[arg-type]


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
        ({"threads": True}, "threads must be an int, not bool (True)"),
        ({"requesters": 0}, "requesters must be from 1 to 100000, not 0"),
        ({"seconds": 0}, "seconds must be above 0 and at most 86400, not 0"),
        ({"seconds": float("nan")}, "seconds must be above 0 and at most 86400, not nan"),
        ({"seconds": "2"}, "seconds must be a number, not str ('2')"),
        ({"seed": -1}, "seed must be at least 0, not -1"),
        ({"seed": 0.5}, "seed must be an int, not float (0.5)"),
        (
            {"scenario": "x"},
            "scenario must be one of count, churn, callbacks, interrupts, all, not 'x'",
        ),
        ({"tracker": "x"}, "tracker must be one of ours, textbook, locked, pytorch, not 'x'"),
    ],
)
def test_a_bad_plan_is_refused(argument: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=f"^{re.escape(message)}$"):
        Plan(**argument)


def test_what_is_no_plan_and_no_patience_is_refused() -> None:
    with pytest.raises(TypeError, match=r"^plan must be a Plan, not str \('x'\)$"):
        run("x")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^patience must be above 0 and at most 86400, not 0$"):
        run(Plan(), patience=0)


def test_the_command_of_a_plan_names_all_of_it() -> None:
    plan = Plan(2, 3, 1.5, Scenario.CHURN, Subject.LOCKED, 7)
    assert plan.command == (
        "kineto-step-tracker stress --threads 2 --requesters 3 --seconds 1.5 "
        "--scenario churn --tracker locked --seed 7"
    )
