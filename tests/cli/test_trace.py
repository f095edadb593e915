"""``trace``: the table, exit status, JSON, a picture, what a terminal shows, and Ctrl-C."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from kineto_step_tracker.cli import trace as cli_trace
from kineto_step_tracker.cli.app import app
from kineto_step_tracker.on_demand.protocol import Listener
from tests.on_demand.training import Training, training

from .running import Terminal, command, on_terminal, plain

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="Kineto takes requests on Linux only"
)

# For a process that is to be told, or has been and will not answer.
BRIEF = ("--timeout", "0.3")
NOBODY = 2**22 + 1


def trace(sockets: Path, *arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    """Run it with the sockets in this folder, and the files in another below it."""
    output = () if "--output" in arguments else ("--output", str(sockets / "traces"))
    return command("trace", *output, *arguments, KINETO_IPC_SOCKET_DIR=str(sockets), **more)


def of(*processes: Training) -> list[str]:
    return [argument for one in processes for argument in ("--pid", str(one.pid))]


def rows(shown: str) -> dict[int, list[str]]:
    """The table, by process."""
    lines = re.findall(r"^ (\d+) {2,}(.*)$", plain(shown), re.MULTILINE)
    return {int(pid): re.split(r" {2,}", rest.rstrip()) for pid, rest in lines}


def test_a_whole_trace_is_shown_with_its_steps_and_its_file(sockets: Path) -> None:
    with training(sockets) as one, training(sockets, "--steps", "20") as two:
        done = trace(sockets, *of(one, two), "--iterations", "5")
    assert (done.returncode, done.stderr) == (0, "")
    lines = done.stdout.splitlines()
    assert lines[0] == f"Asking for the next 5 steps; the files go to {sockets / 'traces'}."
    for process in (one, two):
        for words in ("has been told: the next 5 steps", "delivered a whole trace"):
            assert re.search(
                rf"^\d+\.\d s: process {process.pid} {words}$", done.stdout, re.MULTILINE
            )
    found = rows(done.stdout)
    assert found.keys() == {one.pid, two.pid}
    *cells, file, size = found[two.pid]
    assert cells == ["whole", "the next 5 steps", "steps 21 to 25", "5"]
    assert Path(file).is_file()
    assert re.fullmatch(rf"kineto_\d{{8}}-\d{{6}}_{two.pid}\.json", Path(file).name)
    assert size == f"{round(Path(file).stat().st_size / 1000)} kB"
    assert "\x1b" not in done.stdout
    assert [line for line in lines if line != line.rstrip()] == []


@pytest.mark.parametrize(("more", "number"), [("-4", 6), ("-1", 9)])
def test_too_few_iterations_are_named(more: str, number: int, sockets: Path) -> None:
    with training(sockets, "--more", more) as one:
        done = trace(sockets, *of(one))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1] == (
        f"Process {one.pid} recorded {number} iterations, not 10."
    )
    assert rows(done.stdout)[one.pid][2:4] == [f"steps 11 to {10 + number}", str(number)]


def test_too_many_are_cut_and_named(sockets: Path) -> None:
    with training(sockets, "--more", "7") as one:
        done = trace(sockets, *of(one))
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.splitlines()[-1] == (
        f"Process {one.pid} recorded 7 more before Kineto stopped, which have been cut from the "
        "file."
    )
    assert rows(done.stdout)[one.pid][:4] == ["whole", "the next 10 steps", "steps 11 to 20", "10"]


def test_a_trace_without_the_trackers_marks_is_not_called_whole(sockets: Path) -> None:
    with training(sockets, "--unmarked") as one:
        done = trace(sockets, *of(one))
    assert (done.returncode, done.stderr) == (1, "")
    assert rows(done.stdout)[one.pid][:3] == ["unsure", "the next 10 steps", "10"]
    last = done.stdout.splitlines()[-1]
    assert last.startswith(f"Process {one.pid} recorded at most 10 iterations, where 10 were asked")


def test_the_steps_asked_for_are_shown(sockets: Path) -> None:
    with training(sockets) as one:
        done = trace(sockets, *of(one), "--start", "1000", "--warmup", "2")
        lines = one.told()[0]
    assert (done.returncode, done.stderr) == (0, "")
    assert rows(done.stdout)[one.pid][1:3] == ["steps 1000 to 1009", "steps 1000 to 1009"]
    assert lines["ACTIVITIES_WARMUP_ITERATIONS"] == "2"


def test_an_aligned_trace(sockets: Path) -> None:
    with training(sockets) as one, training(sockets, "--steps", "180") as two:
        done = trace(sockets, *of(one, two), "--align", "100")
    assert (done.returncode, done.stderr) == (1, "")
    assert {row[2] for row in rows(done.stdout).values()} == {
        "steps 102 to 111",
        "steps 202 to 211",
    }
    assert done.stdout.count("a multiple of 100 passed while one after another asked") == 2


def test_activities_and_lines_of_configuration_reach_the_process(sockets: Path) -> None:
    with training(sockets) as one:
        more = ["--activities", "cpu_op,kernel"]
        more += ["--config", "PROFILE_WITH_STACK=true", "--config", "EMPTY="]
        done = trace(sockets, *of(one), *more)
        lines = one.told()[0]
    assert (done.returncode, done.stderr) == (0, "")
    assert lines["ACTIVITY_TYPES"] == "cpu_op,kernel,user_annotation"
    assert (lines["PROFILE_WITH_STACK"], lines["EMPTY"]) == ("true", "")


def test_nobody_asked(sockets: Path) -> None:
    done = trace(sockets, *BRIEF)
    assert done.returncode == 1
    assert done.stderr == (
        "kineto-step-tracker: no training has asked in 0.3 s. Kineto asks every 5 s: wait longer, "
        "with --timeout.\n"
    )


def test_nobody_asked_for_longer_than_kineto_takes(
    sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cli_trace, "_PATIENCE", 0.2)
    there = {"KINETO_IPC_SOCKET_DIR": str(sockets)}
    done = CliRunner().invoke(app, ["trace", "--output", str(sockets), *BRIEF], env=there)
    assert done.exit_code == 1
    assert "kineto-step-tracker: no training has asked. " in done.output
    assert "KINETO_USE_DAEMON=1" in done.output


def test_a_process_of_another_job_is_not_told(sockets: Path) -> None:
    with training(sockets, "--job-id", "4") as one:
        one.wait_until_it_asks()
        done = trace(sockets, "--job-id", "5", *of(one), *BRIEF)
        assert one.told() == []
    assert done.returncode == 1
    assert rows(done.stdout)[one.pid][0] == "unfinished"
    assert "start the training with KINETO_USE_DAEMON=1" in done.stdout


def test_a_process_that_dies_is_named(sockets: Path) -> None:
    with training(sockets, "--die", "recording") as one:
        done = trace(sockets, *of(one))
    assert (done.returncode, done.stderr) == (1, "")
    assert done.stdout.splitlines()[-1] == (f"Process {one.pid} ended before its trace was whole.")


def test_another_daemon_holds_the_name(sockets: Path) -> None:
    with Listener(sockets):
        done = trace(sockets)
        assert (sockets / "dynolog").is_socket()
    assert done.returncode == 1
    assert done.stderr.startswith(f"kineto-step-tracker: another daemon holds {sockets}/dynolog")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--iterations", "0"], "Invalid value for '--iterations': '0' is not a whole number fro"),
        (["--iterations", str(2**31)], "iterations must be from 1 to 21474"),
        (["--start", "-1"], "Invalid value for '--start': '-1' is not a whole number from 0 up."),
        (["--start", "1"], "start must be from 2 to 21474"),
        (["--start", "3", "--warmup", "2"], "start must be from 4 to 21474"),
        (["--align", "0"], "Invalid value for '--align': '0' is not a whole number from 1 up."),
        (["--align", "9", "--start", "9"], "start and align exclude each other."),
        (["--warmup", "x"], "Invalid value for '--warmup': 'x' is not a whole number from 0 up."),
        (["--pid", "0"], "Invalid value for '--pid': '0' is not a whole number from 1 up."),
        (["--job-id", "x"], "Invalid value for '--job-id': 'x' is not a whole number from 0 up."),
        (["--timeout", "0"], "Invalid value for '--timeout': '0' is not a number above 0 and at"),
        (["--timeout", "nan"], "Invalid value for '--timeout': 'nan' is not a number above 0 an"),
        (
            ["--activities", "cpu"],
            "activities must not have 'cpu'; there are cpu_op, user_annotation, ",
        ),
        (["--config", "X"], "'X' is not KEY=VALUE."),
        (["--config", ""], "'' is not KEY=VALUE."),
        (["--config", "=x"], "config must have keys in capitals such as PROFILE_WITH_STACK, not "),
        (["--config", "x=y"], "config must have keys in capitals such as PROFILE_WITH_STACK, no"),
        (["--config", "X=a=b"], "config must have values that are text without '#', '=' and lin"),
        (["--config", "ACTIVITY_TYPES=cpu_op"], "config must not have ACTIVITY_TYPES, which fol"),
    ],
)
def test_a_bad_option_is_refused_before_anything_runs(
    arguments: list[str], message: str, sockets: Path
) -> None:
    # Here, without a process of its own for each.
    more = ["--output", str(sockets / "traces")]
    there = {"KINETO_IPC_SOCKET_DIR": str(sockets)}
    refused = CliRunner().invoke(app, ["trace", *more, *arguments], env=there)
    assert refused.exit_code == 2
    assert message in refused.output
    assert "Asking" not in refused.output
    assert list(sockets.iterdir()) == []


@pytest.mark.parametrize("pid", [NOBODY, 2**31, 2**64])
def test_a_process_that_is_not_there_is_named(pid: int, sockets: Path) -> None:
    refused = trace(sockets, "--pid", str(pid))
    assert refused.returncode in (1, 2)
    assert str(pid) in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_folder_that_cannot_be_made_is_named(sockets: Path) -> None:
    file = sockets / "file"
    file.write_text("")
    refused = trace(sockets, "--output", str(file))
    assert refused.returncode == 1
    assert refused.stderr == f"kineto-step-tracker: {file}: output must be a folder\n"
    refused = trace(sockets, "--output", str(file / "below"))
    assert refused.returncode == 1
    assert refused.stderr == f"kineto-step-tracker: {file / 'below'}: Not a directory\n"


def test_a_folder_that_kineto_cannot_be_told_is_named(sockets: Path) -> None:
    refused = trace(sockets, "--output", str(sockets / "a=b"))
    assert refused.returncode == 1
    assert refused.stderr.startswith(
        "kineto-step-tracker: output must be a path that Kineto can read, without '='"
    )
    assert refused.stderr.count("\n") == 1


def test_json_is_one_object_and_nothing_else(sockets: Path) -> None:
    with training(sockets) as one, training(sockets, "--more", "-1") as two:
        done = trace(sockets, *of(one, two), "--json")
    assert (done.returncode, done.stderr) == (1, "")
    found = json.loads(done.stdout)
    assert found.keys() == {"seconds", "recordings", "refused", "is_whole"}
    assert (found["is_whole"], found["refused"]) == (False, {})
    recordings = {recording["pid"]: recording for recording in found["recordings"]}
    file = Path(recordings[one.pid]["file"])
    assert recordings[one.pid] == {
        "pid": one.pid,
        "asked": "the next 10 steps",
        "state": "whole",
        "file": str(file),
        "size": file.stat().st_size,
        "iterations": 10,
        "first": 11,
        "last": 20,
        "cut": 0,
        "optimizers": {"Optimizer.step#SGD.step": 10},
        "problem": None,
    }
    assert recordings[two.pid]["problem"] == "recorded 9 iterations, not 10"


def test_json_of_a_whole_trace(sockets: Path) -> None:
    with training(sockets) as one:
        done = trace(sockets, *of(one), "--json")
    assert (done.returncode, done.stderr) == (0, "")
    assert json.loads(done.stdout)["is_whole"] is True


def test_json_where_nobody_asked(sockets: Path) -> None:
    done = trace(sockets, "--json", *BRIEF)
    assert done.returncode == 1
    found = json.loads(done.stdout)
    assert (found["recordings"], found["is_whole"]) == ([], False)
    assert "no training has asked" in done.stderr


def test_a_plot_is_drawn_of_what_there_is(sockets: Path) -> None:
    pytest.importorskip("matplotlib", reason="draws a picture")
    file = sockets / "traces.svg"
    with training(sockets) as one, training(sockets, "--half") as two:
        done = trace(sockets, *of(one, two), "--plot", str(file))
    assert (done.returncode, done.stderr) == (1, "")
    assert ElementTree.parse(file).getroot().tag.endswith("svg")
    drawn = file.read_text()
    assert f"process {one.pid}: 10 iterations" in drawn
    assert f"process {two.pid}" not in drawn


def test_nothing_is_drawn_of_nothing(sockets: Path) -> None:
    pytest.importorskip("matplotlib", reason="would draw a picture")
    file = sockets / "traces.png"
    done = trace(sockets, *BRIEF, "--plot", str(file))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    assert not file.exists()


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (".", "Invalid value for '--plot': '.' is a folder, not a file."),
        ("none/x.svg", "'none/x.svg' cannot be written: there is no folder none."),
        ("x.gif", "'x.gif' does not end in .svg or .png."),
    ],
)
def test_a_bad_name_for_a_plot_is_refused_before_anything_runs(
    name: str, message: str, sockets: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("matplotlib", reason="is asked for what it can draw")
    monkeypatch.chdir(sockets)
    refused = trace(sockets, "--plot", name)
    assert (refused.returncode, refused.stdout) == (2, "")
    assert message in refused.stderr
    assert list(sockets.iterdir()) == []


def test_without_matplotlib_a_plot_says_what_to_install(sockets: Path) -> None:
    refused = trace(sockets, "--plot", "x.svg", without=("matplotlib",))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr.endswith("; pip install 'kineto-step-tracker[bench]'\n")
    assert list(sockets.iterdir()) == []


def test_on_a_terminal_it_shows_each_process_and_how_far_it_is(sockets: Path) -> None:
    with (
        training(sockets, "--ignore", "5", "--recording", "5") as one,
        on_terminal(
            *("trace", "--output", str(sockets / "traces"), *of(one)),
            KINETO_IPC_SOCKET_DIR=str(sockets),
        ) as terminal,
    ):
        terminal.wait_for(f"process {one.pid} has been told: the next 10 steps")
        terminal.wait_for(f"process {one.pid} is recording")
        assert terminal.finish() == 0
    assert re.search(r"\d s; waiting", terminal.shown)
    assert "steps 11 to 20" in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def ends_by_ctrl_c(terminal: Terminal, sockets: Path) -> str:
    terminal.interrupt()
    assert terminal.finish() == 130
    shown = plain(terminal.shown)
    assert shown.endswith("interrupted\n")
    assert "Traceback" not in shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")
    assert not (sockets / "dynolog").exists()
    return shown


def test_ctrl_c_says_who_was_told_and_who_was_not(sockets: Path) -> None:
    with (
        training(sockets, "--never") as one,
        training(sockets, "--mute") as two,
        on_terminal(
            *("trace", "--output", str(sockets / "traces"), *of(one, two)),
            KINETO_IPC_SOCKET_DIR=str(sockets),
        ) as terminal,
    ):
        terminal.wait_for(f"process {one.pid} has been told")
        terminal.wait_for(f"process {two.pid} has not asked yet")
        shown = ends_by_ctrl_c(terminal, sockets)
    text = " ".join(shown.split())
    assert f"Process {one.pid} has been told, which cannot be taken back: it records once" in text
    assert f"Process {two.pid}" not in text
    found = {pid: " ".join(row) for pid, row in rows(shown).items()}
    assert "told" in found[one.pid]
    assert "silent" in found[two.pid]


def test_ctrl_c_before_anybody_asked(sockets: Path) -> None:
    with on_terminal(
        *("trace", "--output", str(sockets / "traces")), KINETO_IPC_SOCKET_DIR=str(sockets)
    ) as terminal:
        terminal.wait_for("waiting for training to ask, which Kineto does every 5 s")
        shown = ends_by_ctrl_c(terminal, sockets)
    assert "cannot be taken back" not in shown
