"""``doctor``: the findings as lines, wrapped on a terminal, or as one JSON object."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kineto_step_tracker.cli import doctor
from kineto_step_tracker.cli.app import app
from kineto_step_tracker.diagnosis import Finding

from .running import command, on_terminal, plain

FINDINGS = [
    Finding("torch", None, "PyTorch is not installed", "pip install 'kineto-step-tracker[torch]'"),
    Finding("gil", True, "on: threads take turns"),
]


@pytest.fixture
def diagnosed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "diagnose", lambda: FINDINGS)


@pytest.mark.usefixtures("diagnosed")
def test_each_finding_is_a_line_and_what_costs_something_has_a_second() -> None:
    done = CliRunner().invoke(app, ["doctor"])
    assert done.exit_code == 0
    assert done.output == (
        "torch      PyTorch is not installed\n"
        "           To mend it: pip install 'kineto-step-tracker[torch]'\n"
        "gil        on: threads take turns\n"
    )


@pytest.mark.usefixtures("diagnosed")
def test_json_is_one_object_and_nothing_else() -> None:
    done = CliRunner().invoke(app, ["doctor", "--json"])
    assert done.exit_code == 0
    assert json.loads(done.output) == {
        "torch": {
            "value": None,
            "meaning": "PyTorch is not installed",
            "mend": "pip install 'kineto-step-tracker[torch]'",
        },
        "gil": {"value": True, "meaning": "on: threads take turns", "mend": None},
    }


@pytest.fixture
def no_torch(tmp_path: Path) -> str:
    """A PYTHONPATH on which PyTorch is quickly found to be missing."""
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    return str(tmp_path)


def test_for_real_in_a_pipe(no_torch: str) -> None:
    done = command("doctor", "--json", PYTHONPATH=no_torch)
    assert (done.returncode, done.stderr) == (0, "")
    assert {"backend", "gil", "torch", "kineto", "daemon", "installed"} <= set(
        json.loads(done.stdout)
    )


def test_for_real_on_a_terminal(no_torch: str) -> None:
    with on_terminal("doctor", PYTHONPATH=no_torch) as terminal:
        assert terminal.finish() == 0
    shown = plain(terminal.shown)
    assert re.search(r"^backend +(native|portable)", shown, re.MULTILINE)
    # A path may be longer than the terminal is wide; it stands on a line of its own.
    assert not [line for line in shown.splitlines() if len(line) > 80 and " " in line.strip()]
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
