"""``stress``: the summary, the violations, exit status, JSON, a bar on a terminal, Ctrl-C."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kineto_step_tracker import stress as logic
from kineto_step_tracker.cli.app import app

from .running import command, on_terminal, plain


def outcome_of(plan: logic.Plan, violations: tuple[logic.Violation, ...]) -> logic.Outcome:
    operations = {"increments by name": 1_234_567, "erasures": 89}
    return logic.Outcome(plan, "Python 3", plan.seconds, operations, 7, 7, 3, 2, 1, violations)


def test_a_run_ends_with_the_numbers_and_the_verdict(tmp_path: Path) -> None:
    done = command("stress", "--seconds", "1", "--json", str(tmp_path / "outcome.json"))
    assert (done.returncode, done.stderr) == (0, "")
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", done.stdout)
    lines = done.stdout.splitlines()
    assert lines[0] == (
        "This project's tracker: 4 threads, 4 shared requesters, scenario all, for 1 s."
    )
    assert re.fullmatch(r"No violation in [\d\s]+ operations\.", lines[-1])
    assert [line for line in lines if line != line.rstrip()] == []

    found = json.loads((tmp_path / "outcome.json").read_text())
    assert found["violations"] == []
    assert found["rises"] == found["callbacks"] > 0
    shown = dict(re.findall(r"^ *(\w+(?: \w+)*) {2,}(\d[\d\xa0]*)$", done.stdout, re.MULTILINE))
    assert found["operations"] == {
        kind: int(shown[kind].replace("\xa0", "")) for kind in found["operations"]
    }
    assert int(shown["operations"].replace("\xa0", "")) == sum(found["operations"].values())


def test_violations_are_shown_with_the_command_that_runs_it_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def run(plan: logic.Plan, watch: object) -> logic.Outcome:
        return outcome_of(
            plan,
            (
                logic.Violation("increments lost", 1_700, "900 of the 5000 of 'requester 0'"),
                logic.Violation("steps without a callback", 1, "the last was 6 of 7"),
            ),
        )

    monkeypatch.setattr(logic, "run", run)
    asked = "stress --threads 3 --requesters 2 --seconds 9 --scenario churn --tracker ours --seed 5"
    done = CliRunner().invoke(app, asked)
    assert done.exit_code == 1
    lines = done.output.splitlines()
    seen = "increments lost (1\xa0700 times), at first: 900 of the 5000 of 'requester 0'"
    assert f"VIOLATION: {seen}" in lines
    assert "VIOLATION: steps without a callback: the last was 6 of 7" in lines
    assert lines[-1] == (
        f"The same load again, if not the same interleaving: kineto-step-tracker {asked}"
    )


def test_the_command_that_it_names_is_one_that_it_takes() -> None:
    plan = logic.Plan(2, 3, 1, logic.Scenario.COUNT)
    program, *arguments = shlex.split(plan.command)
    assert program == "kineto-step-tracker"
    done = command(*arguments)
    assert done.returncode == 0
    assert "2 threads, 3 shared requesters, scenario count, for 1 s." in done.stdout


def test_the_textbook_tracker_is_shown_to_fail() -> None:
    done = command("stress", "--tracker", "textbook", "--scenario", "count", "--seconds", "1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "PyTorch's algorithm in our own words" in done.stdout
    assert "\nVIOLATION: " in done.stdout


def test_pytorchs_own_class_is_shown_to_fail() -> None:
    pytest.importorskip("torch", reason="puts PyTorch's own class under stress")
    done = command("stress", "--tracker", "pytorch", "--scenario", "count", "--seconds", "1")
    assert (done.returncode, done.stderr) == (1, "")
    assert "PyTorch's own class" in done.stdout
    assert "\nVIOLATION: callbacks too many (" in done.stdout


def test_without_pytorch_it_says_what_to_install() -> None:
    refused = command("stress", "--tracker", "pytorch", without=("torch",))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.endswith("; pip install 'kineto-step-tracker[torch]'\n")


def test_on_a_terminal_it_shows_a_bar_and_leaves_none_behind() -> None:
    with on_terminal("stress", "--seconds", "2") as terminal:
        terminal.wait_for("0 violations")
        assert terminal.finish() == 0
    assert re.search(r"\d of 2 s", plain(terminal.shown))
    assert plain(terminal.shown).count("No violation in") == 1
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_ctrl_c_ends_it_at_once_with_its_process() -> None:
    with on_terminal("stress", "--seconds", "1000") as terminal:
        terminal.wait_for("0 violations")
        terminal.interrupt()
        assert terminal.finish() == 130
    assert plain(terminal.shown).endswith("interrupted\n")
    assert "Traceback" not in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--threads", "0"], "Invalid value for '--threads': '0' is not a whole number from 1 to"),
        (["--requesters", "x"], "Invalid value for '--requesters': 'x' is not a whole number fro"),
        (["--seconds", "0"], "Invalid value for '--seconds': '0' is not a number above 0 and at"),
        (["--scenario", "x"], "Invalid value for '--scenario': 'x' is not one of count, churn, c"),
        (["--tracker", "x"], "Invalid value for '--tracker': 'x' is not one of ours, textbook, "),
        (["--json", "."], "Invalid value for '--json': '.' is a folder, not a file."),
        (["--json", "none/x"], "'none/x' cannot be written: there is no folder none."),
    ],
)
def test_a_bad_option_is_refused_before_anything_runs(arguments: list[str], message: str) -> None:
    refused = command("stress", *arguments)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert "Traceback" not in refused.stderr
