"""``bench``: the tables, the verdicts, the files, and what it refuses before it measures."""

from __future__ import annotations

import re
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from kineto_step_tracker import bench as logic
from kineto_step_tracker.bench.contenders import Contender
from kineto_step_tracker.bench.report import Key, Question, Report
from kineto_step_tracker.cli.app import app

from .running import command, on_terminal, plain

PARTS = ["imports", "import and memory", "steps on one thread", "steps on several threads"]
# It stands in for the measuring, in a process of its own.
PRETEND = """
import time
from kineto_step_tracker import bench
def run(quick, watch):
    for percent in range(0, 100, 10):
        watch(bench.Progress("pretending", percent / 100))
        # In naps: a signal that comes just before a sleep is seen when that is over.
        for _ in range({naps}):
            time.sleep(0.05)
    watch(bench.Progress("done", 1))
    return bench.Report({{}}, "native", False, quick, 1, {{}})
bench.run = run
"""


def report(met: bool = True) -> Report:
    """Every target measured, the ratios exactly at the bound or beyond; but for the import's."""
    values: dict[Key, list[float]] = {}
    for target in targets():
        value = target.bound if met else target.bound * (0.5 if target.at_least else 2) or 1.0
        if target.by is None:
            values[target.over] = [value]
            continue
        values.setdefault(target.by, [1.0])
        values.setdefault(target.over, [value * values[target.by][0]])
    del values[Key(Question.IMPORT, "kineto_step_tracker", 0)]
    environment = {"Python": "3.11.7, with the GIL", "backend": "native"}
    return Report(environment, "native", False, True, 12.6, values)


def targets() -> list[logic.Target]:
    nothing = Report({}, "native", False, True, 1, {})
    return [verdict.target for verdict in logic.verdicts(nothing)]


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether each run was to be quick. A run measures nothing and takes no time."""
    runs: list[bool] = []

    def run(quick: bool, watch: object) -> Report:
        runs.append(quick)
        return report()

    monkeypatch.setattr(logic, "run", run)
    # Wide enough that nothing is wrapped.
    monkeypatch.setenv("COLUMNS", "160")
    return runs


def row(output: str, text: str) -> list[str]:
    """The cells of the one line that begins so."""
    (line,) = [line for line in output.splitlines() if line.startswith(f"{text}  ")]
    return re.split(r" {2,}", line.strip())


def invoke(*arguments: str) -> str:
    done = CliRunner().invoke(app, ["bench", *arguments])
    assert done.exit_code == 0, done.output
    return done.output


@pytest.mark.parametrize("met", [True, False])
def test_every_target_has_its_verdict_and_a_missed_one_is_no_failure(
    met: bool, measured: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    found = report(met)
    monkeypatch.setattr(logic, "run", lambda quick, watch: found)
    output = invoke()
    verdicts = logic.verdicts(found)
    assert {verdict.met for verdict in verdicts} >= {met, None}
    for verdict in verdicts:
        target, spread = verdict.target, verdict.measured
        cells = row(output, target.text)
        if spread is None:
            assert cells == [target.text, "not here", target.wanted]
            continue
        low, high = target.shown(spread.low), target.shown(spread.high)
        assert cells == [
            target.text,
            target.shown(spread.median),
            *([] if low == high else [f"{low} to {high}"]),
            target.wanted,
            "met" if verdict.met else "missed",
        ]
    assert output.splitlines()[-1] == "Python 3.11.7, with the GIL, backend native; 13 s."


def test_the_medians_stand_under_what_was_asked(
    measured: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    values = {
        Key(Question.NO_RISE, Contender.NAME, 4): [1e-8, 2e-8, 9e-8],
        Key(Question.RISE, Contender.NAME, 1): [3e-8],
        Key(Question.RISE, Contender.NAME, 1_000): [4e-8],
        Key(Question.RISE_PYTHON, Contender.NAME, 1): [5e-8],
        Key(Question.RISE, Contender.LOCKED, 1): [6e-8],
        Key(Question.SHARED, Contender.NAME, 1): [7e6],
        Key(Question.SHARED, Contender.NAME, 4): [8e6],
        Key(Question.BEHIND, Contender.HANDLE, 2): [9e6],
    }
    found = Report({}, "native", False, True, 1, values)
    monkeypatch.setattr(logic, "run", lambda quick, watch: found)
    lines = invoke().splitlines()

    def table(title: str) -> list[list[str]]:
        """Its rows under its head, up to an empty line."""
        (begin,) = [number for number, line in enumerate(lines) if line.startswith(title)]
        end = lines.index("", begin)
        return [re.split(r" {2,}", line.strip()) for line in lines[begin:end]]

    assert table("time a step") == [
        ["time a step", "4 requesters", "1 requester", "1\u00a0000 requesters", "1 requester"],
        ["by name", "20 ns", "30 ns", "40 ns", "50 ns"],
        ["locked", "60 ns"],
    ]
    assert table("steps a second, threads that share a requester") == [
        ["steps a second, threads that share a requester, every step a rise", *threads(1, 4)],
        ["by name", "7 M", "8 M"],
    ]
    assert table("steps a second, threads with a requester each") == [
        ["steps a second, threads with a requester each, no rise", *threads(2)],
        ["by handle", "9 M"],
    ]


def threads(*numbers: int) -> list[str]:
    return [f"{number} thread{'s' * (number > 1)}" for number in numbers]


@pytest.mark.parametrize("quick", [True, False])
def test_it_is_as_quick_as_asked(measured: list[bool], quick: bool) -> None:
    invoke(*["--quick"] * quick)
    assert measured == [quick]


def test_the_json_is_the_report_and_replaces_what_was_there(
    measured: list[bool], tmp_path: Path
) -> None:
    path = tmp_path / "report.json"
    path.write_text("x" * 100_000)
    invoke("--json", str(path))
    assert Report.from_json(path.read_text()) == report()


def test_the_plot_is_a_picture_whatever_the_case_of_its_ending(
    measured: list[bool], tmp_path: Path
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    invoke("--plot", str(tmp_path / "drawn.SVG"))
    assert ElementTree.parse(tmp_path / "drawn.SVG").getroot().tag.endswith("svg")
    invoke("--plot", str(tmp_path / "drawn.png"))
    assert (tmp_path / "drawn.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_done_is_shown_once_a_part_where_there_is_no_terminal(
    measured: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(quick: bool, watch: object) -> Report:
        assert callable(watch)
        for share, doing in ((0, "one"), (0.01, "one"), (0.126, "two"), (0.9, "two"), (1, "done")):
            watch(logic.Progress(doing, share))
        return report()

    monkeypatch.setattr(logic, "run", run)
    assert invoke().splitlines()[:4] == ["  0%: one", " 13%: two", "100%: done", ""]


def run_pretending(naps: int, *arguments: str) -> list[str]:
    """Arguments of a Python that runs the command as if it measured."""
    command_line = ["kineto-step-tracker", "bench", *arguments]
    run = "import sys; from kineto_step_tracker.cli import main\n"
    return ["-c", PRETEND.format(naps=naps) + run + f"sys.argv = {command_line!r}\nmain()"]


def test_on_a_terminal_it_shows_a_bar_and_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("tests.cli.running.RUN", run_pretending(3)[1])
    with on_terminal() as terminal:
        terminal.wait_for("pretending")
        assert terminal.finish() == 0
    assert re.search(r" [1-9]0 %", plain(terminal.shown))
    last = terminal.shown.rindex("pretending")
    # Back up to its line, which is cleared, and then come the tables.
    assert "\x1b[1A\x1b[2K" in terminal.shown[last:].partition("time a step")[0]
    assert "time a step" in terminal.shown[last:]
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


def test_ctrl_c_ends_it_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.cli.running.RUN", run_pretending(20_000)[1])
    with on_terminal() as terminal:
        terminal.wait_for("starting")
        terminal.interrupt()
        assert terminal.finish() == 130
    assert plain(terminal.shown).endswith("interrupted\n")
    assert "Traceback" not in terminal.shown
    assert terminal.shown.rindex("\x1b[?25h") > terminal.shown.rindex("\x1b[?25l")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--json", "."], "Invalid value for '--json': '.' is a folder, not a file."),
        (["--json", "none/x"], "'none/x' cannot be written: there is no folder none."),
        (["--fast"], "No such option: --fast"),
    ],
)
def test_a_bad_option_is_refused_before_anything_runs(
    arguments: list[str], message: str, measured: list[bool]
) -> None:
    refused = CliRunner().invoke(app, ["bench", *arguments])
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert (refused.stdout, measured) == ("", [])


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("x.pdf", "Invalid value for '--plot': 'x.pdf' does not end in .svg or .png."),
        ("svg", "'svg' does not end in .svg or .png."),
        ("none/x.svg", "'none/x.svg' cannot be written: there is no folder none."),
        (".", "'.' is a folder, not a file."),
    ],
)
def test_a_bad_plot_is_refused_before_anything_runs(
    name: str, message: str, measured: list[bool]
) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    refused = CliRunner().invoke(app, ["bench", "--plot", name])
    assert refused.exit_code == 2
    assert message in refused.stderr
    assert (refused.stdout, measured) == ("", [])


def test_without_matplotlib_a_plot_says_what_to_install_before_anything_runs(
    tmp_path: Path,
) -> None:
    path = tmp_path / "drawn.svg"
    refused = command("bench", "--plot", str(path), without=("matplotlib",))
    assert (refused.returncode, refused.stdout) == (1, "")
    assert refused.stderr == (
        "kineto-step-tracker: No module named 'matplotlib'; "
        "pip install 'kineto-step-tracker[bench]'\n"
    )
    assert not path.exists()


@pytest.mark.parametrize(("option", "name"), [("--json", "x.json"), ("--plot", "x.svg")])
def test_a_file_that_cannot_be_written_after_all_is_one_line_after_the_tables(
    option: str,
    name: str,
    measured: list[bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if option == "--plot":
        pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    folder = tmp_path / "folder"
    folder.mkdir()

    def run(quick: bool, watch: object) -> Report:
        folder.rmdir()
        return report()

    monkeypatch.setattr(logic, "run", run)
    with pytest.raises(SystemExit) as stop:
        app(["bench", option, str(folder / name)])
    # A string is printed to standard error, and is exit status 1.
    assert stop.value.code == f"kineto-step-tracker: {folder / name}: No such file or directory"
    assert "time a step" in capsys.readouterr().out


def test_the_help_lists_the_options() -> None:
    shown = invoke("--help")
    assert {"--quick", "--json", "--plot", "FILE.svg|png"} <= set(shown.split())
    assert "Ratios carry over to other machines better than times do." in " ".join(shown.split())


def test_a_quick_run_measures_all_and_writes_both_files(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    written, drawn = tmp_path / "report.json", tmp_path / "drawn.svg"
    done = command("bench", "--quick", "--json", str(written), "--plot", str(drawn), COLUMNS="160")
    assert (done.returncode, done.stderr) == (0, "")
    found = Report.from_json(written.read_text())
    with_torch = found.environment["torch"] != "not installed"
    parts = re.findall(r"^ *\d+%: (.*)$", done.stdout, re.MULTILINE)
    assert parts == PARTS + ["PyTorch's optimizers"] * with_torch + ["done"]
    assert found.quick is True
    for verdict in logic.verdicts(found):
        cells = row(done.stdout, verdict.target.text)
        assert (cells[1] == "not here") == (verdict.measured is None)
        assert verdict.measured is None or cells[-1] in ("met", "missed")
        assert with_torch or verdict.target.over.question == Question.HOOK or verdict.measured
    assert ElementTree.parse(drawn).getroot().tag.endswith("svg")


def test_one_file_cannot_be_both(measured: list[bool], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="matplotlib draws the pictures")
    file = str(tmp_path / "report.svg")
    done = CliRunner().invoke(app, ["bench", "--json", file, "--plot", file])
    assert done.exit_code == 2
    assert "the same file" in done.output
    assert measured == []
