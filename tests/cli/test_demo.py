"""``demo``: plain lines or a live table, the verdict, its exit status, Ctrl-C."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from typer.testing import CliRunner

from kineto_step_tracker import demo as logic
from kineto_step_tracker.cli.app import app

from .running import command, on_terminal, plain

SHORT = ("demo", "--no-torch", "--threads", "2", "--iterations", "20")


@pytest.fixture(scope="module")
def piped() -> str:
    done = command(*SHORT)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def test_in_a_pipe_it_prints_plain_lines_and_ends_with_the_verdict(piped: str) -> None:
    assert not re.search(r"[\x00-\x09\x0b-\x1f]", piped)
    lines = piped.splitlines()
    assert "NumPy" in lines[0]
    assert "2 threads" in lines[0]
    assert re.search(r"^global step 20 of 20: loss .+, callbacks 20 \(", piped, re.MULTILINE)
    assert lines[-1] == (
        "exact: each of the 4 requesters counted its 20 steps, the global step is 20, and the "
        "callback ran once for each step, in order, never two at once."
    )
    assert [line for line in lines if line != line.rstrip()] == []


def test_the_bars_show_steps_and_callbacks_to_scale(piped: str) -> None:
    bars = dict(re.findall(r"^(\w[\w' ]+\w) +(\d+  ━+.*)$", piped, re.MULTILINE))
    steps, ours, textbook = (
        bars[label].split(maxsplit=2)
        for label in ("steps taken", "callbacks run", "by PyTorch's algorithm")
    )
    assert ours == [*steps, "in order"]
    assert int(ours[0]) == 20
    assert len(textbook[1]) / len(ours[1]) == pytest.approx(int(textbook[0]) / 20, rel=0.2)


def test_it_can_be_printed_where_there_is_only_ascii() -> None:
    done = command(*SHORT, PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.isascii()
    assert "----" in done.stdout


def test_on_a_terminal_it_shows_a_table_and_fits_its_width() -> None:
    with on_terminal(*SHORT) as terminal:
        assert terminal.finish() == 0
    shown = plain(terminal.shown)
    assert re.search(r"SGD#2 +20   Adam#2 +20\n", shown)
    assert re.search(r"global step +20\n", shown)
    assert "20 of 20\n" in shown
    assert re.sub(r"\s+", " ", shown).endswith("in order, never two at once. ")
    assert max(map(len, shown.splitlines())) <= 80
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_ctrl_c_ends_it_at_once_and_restores_the_terminal() -> None:
    with on_terminal("demo", "--no-torch", "--iterations", "1000000") as terminal:
        terminal.wait_for("of 1000000")
        terminal.interrupt()
        assert terminal.finish() == 130
    assert plain(terminal.shown).endswith("of 1000000\n\ninterrupted\n")
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
    assert "Traceback" not in terminal.shown


def test_the_exit_status_is_1_if_it_was_not_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    exact = logic.run

    def inexact(*arguments: object) -> logic.Outcome:
        outcome = exact(*arguments)  # type: ignore[arg-type]
        return replace(outcome, ours=replace(outcome.ours, global_step=19))

    monkeypatch.setattr(logic, "run", inexact)
    done = CliRunner().invoke(app, SHORT)
    assert done.exit_code == 1
    assert done.output.endswith("NOT exact: global step 19.\n")


def test_many_requesters_are_cut_to_the_height_of_the_terminal() -> None:
    with on_terminal("demo", "--no-torch", "--threads", "20", "--iterations", "5") as terminal:
        assert terminal.finish() == 0
    shown = plain(terminal.shown)
    assert "SGD#12" in shown
    assert "SGD#13" not in shown
    assert "and 16 more\n" in shown
    assert "5 of 5\n" in shown


@pytest.mark.parametrize("missing", ["numpy", "sklearn"])
def test_without_its_extra_it_says_what_to_install(missing: str) -> None:
    refused = command(*SHORT, without=(missing,))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.endswith("; pip install 'kineto-step-tracker[demo]'\n")


def test_without_pytorch_it_trains_with_numpy() -> None:
    done = command("demo", "--threads", "1", "--iterations", "1", without=("torch",))
    assert done.returncode == 0
    assert "with NumPy" in done.stdout


def test_without_pytorch_it_says_what_to_install_if_asked_to_use_it() -> None:
    refused = command("demo", "--torch", without=("torch",))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.count("\n") == 1
    assert refused.stderr.endswith("; pip install 'kineto-step-tracker[torch]'\n")


def test_with_pytorch_installed_it_trains_with_it() -> None:
    pytest.importorskip("torch", reason="trains with PyTorch")
    done = command("demo", "--threads", "2", "--iterations", "5")
    assert (done.returncode, done.stderr) == (0, "")
    assert "with PyTorch" in done.stdout
    assert "\nexact: each of the 4 requesters counted its 5 steps" in done.stdout
