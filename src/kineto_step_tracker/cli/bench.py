"""``kineto-step-tracker bench``: how fast the trackers are, as a table and a picture.

It imports Typer, Rich and, when it runs, `kineto_step_tracker.bench`; what draws, only for a plot.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from time import monotonic
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn
from rich.table import Table
from rich.text import Text

from kineto_step_tracker.cli import uninterrupted
from kineto_step_tracker.cli.options import new_file, picture, writing
from kineto_step_tracker.cli.terminal import console, grouped, say, tabulate

if TYPE_CHECKING:
    from kineto_step_tracker import bench as logic
    from kineto_step_tracker.bench import Question, Report


def bench(
    quick: Annotated[
        bool,
        typer.Option(
            "--quick", help="Take a third of the time, with fewer turns: the figures vary more."
        ),
    ] = False,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=new_file,
            metavar="FILE",
            help="Write all that was measured to this file as JSON. One that is there is "
            "overwritten.",
        ),
    ] = None,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=picture,
            metavar="FILE.svg|png",
            help="Draw it to this file. One that is there is overwritten.",
        ),
    ] = None,
) -> None:
    """Measure the trackers side by side, in under a minute.

    This project's tracker by name, by handle, through the drop-in class and without its compiled
    extension; PyTorch's class, or where PyTorch is not installed the same algorithm in our own
    words ("textbook"), bare and behind a lock; and, where it is installed, one made of cereggii's
    atomic integers. All in one process, in turns. Ratios carry over to other machines better than
    times do.

    Leave the machine alone meanwhile. The exit status is 0, whatever the verdicts.
    """
    if json_file is not None and plot is not None and json_file.absolute() == plot.absolute():
        raise typer.BadParameter("--json and --plot name the same file.")
    out = console()
    with out.status("Importing..."), uninterrupted():
        from kineto_step_tracker import bench as logic

        logic.import_contenders()
    with (_bar if out.is_interactive else _lines)(out) as watch:
        report = logic.run(quick, watch)
    # What goes wrong with one of the three does not lose the others.
    with ExitStack() as last:
        last.callback(_conclude, out, report)
        if plot is not None:
            last.callback(_draw, report, plot)
        if json_file is not None:
            last.callback(_write, report, json_file)


def _write(report: Report, file: Path) -> None:
    with writing(file):
        file.write_text(report.to_json(), encoding="utf-8")


def _draw(report: Report, file: Path) -> None:
    from kineto_step_tracker.bench.drawing import draw

    with writing(file):
        draw(report, file)


@contextmanager
def _lines(out: Console) -> Iterator[Callable[[logic.Progress], None]]:
    doing = ""

    def watch(progress: logic.Progress) -> None:
        nonlocal doing
        if progress.doing != doing:
            doing = progress.doing
            say(out, f"{progress.share:4.0%}: {doing}")

    yield watch


@contextmanager
def _bar(out: Console) -> Iterator[Callable[[logic.Progress], None]]:
    # Refreshed between measurements only: a thread that does it would be measured too.
    columns = TextColumn("{task.percentage:3.0f} %"), BarColumn(None)
    with Progress(
        *columns,
        TextColumn("{task.description}"),
        console=out,
        expand=True,
        transient=True,
        auto_refresh=False,
    ) as progress_bar:
        task = progress_bar.add_task("starting", total=1)
        drawn = monotonic()

        def watch(progress: logic.Progress) -> None:
            nonlocal drawn
            if monotonic() - drawn > 0.1:
                drawn = monotonic()
                progress_bar.update(task, completed=progress.share, description=progress.doing)
                progress_bar.refresh()

        yield watch


def _conclude(out: Console, report: Report) -> None:
    from kineto_step_tracker.bench import Question
    from kineto_step_tracker.bench.report import ran_on

    columns = {
        f"{heading}\n{grouped(x)} requester{'' if x == 1 else 's'}": (question, x)
        for heading, question, x in (
            ("no rise", Question.NO_RISE, 4),
            ("rise, C", Question.RISE, 1),
            ("rise, C", Question.RISE, 1_000),
            ("rise, Python", Question.RISE_PYTHON, 1),
        )
    }
    out.print()
    tabulate(out, _table(report, "time a step", "s", columns))
    out.print()
    say(
        out,
        "No rise: another requester is far ahead. Rise: an empty callback runs, in C or Python. "
        "By name, by handle, drop-in class: this package; portable: not compiled. Textbook: "
        "PyTorch's algorithm in our own words; locked: the same behind a lock. Empty method, "
        "dict look-up: for scale.",
    )
    for title, question in (
        ("steps a second, threads that share a requester, every step a rise", Question.SHARED),
        ("steps a second, threads with a requester each, who is first rises", Question.SEPARATE),
        ("steps a second, threads with a requester each, no rise", Question.BEHIND),
    ):
        xs = sorted({key.x for key in report.values if key.question is question})
        columns = {f"{x} thread{'' if x == 1 else 's'}": (question, x) for x in xs}
        if columns:
            out.print()
            tabulate(out, _table(report, title, "", columns))
    columns = {"1 optimizer": (Question.HOOK, 1), "300 optimizers": (Question.HOOK, 300)}
    if any(key.question is Question.HOOK for key in report.values):
        out.print()
        tabulate(out, _table(report, "time in the hook, in a training step", "s", columns))
    out.print()
    tabulate(out, _verdicts(report))
    out.print()
    say(out, f"{ran_on(report.environment)}; {report.seconds:.0f} s.")


def _table(
    report: Report, title: str, unit: str, columns: dict[str, tuple[Question, int]]
) -> Table:
    """Return medians, a contender a row."""
    from kineto_step_tracker.bench.contenders import Contender, Hook
    from kineto_step_tracker.bench.report import Key

    table = Table(title, box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for heading in columns:
        table.add_column(heading, justify="right")
    for contender in (*Contender, *Hook):
        keys = [Key(question, contender, x) for question, x in columns.values()]
        if any(key in report.values for key in keys):
            table.add_row(
                contender,
                *(
                    _human(report.spread(key).median, unit) if key in report.values else ""
                    for key in keys
                ),
            )
    return table


def _verdicts(report: Report) -> Table:
    from kineto_step_tracker.bench import verdicts

    table = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    table.add_column("target")
    table.add_column("measured", justify="right")
    table.add_column("quartiles", justify="right")
    table.add_column("wanted", justify="right")
    table.add_column("")
    for verdict in verdicts(report):
        target, measured = verdict.target, verdict.measured
        if measured is None:
            table.add_row(target.text, "not here", "", target.wanted, "")
            continue
        low, high = target.shown(measured.low), target.shown(measured.high)
        quartiles = "" if low == high else f"{low} to {high}"
        word, style = ("met", "green") if verdict.met else ("missed", "bold red")
        table.add_row(
            target.text,
            target.shown(measured.median),
            quartiles,
            target.wanted,
            Text(word, style),
        )
    return table


def _human(value: float, unit: str) -> str:
    from kineto_step_tracker.bench.report import human

    text = human(value, unit)
    return text if sys.stdout.encoding == "utf-8" else text.replace("µ", "u")
