"""``kineto-step-tracker stress``: a tracker under load on the screen, and what it broke.

It imports Typer, Rich and `kineto_step_tracker.stress`.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn

from kineto_step_tracker import stress as logic
from kineto_step_tracker.cli import needing
from kineto_step_tracker.cli.options import duration, new_file, one_of, whole_number, writing
from kineto_step_tracker.cli.terminal import bars, console, grouped, say
from kineto_step_tracker.stress.subjects import Subject


def stress(
    threads: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, logic.MOST_THREADS),
            metavar="NUMBER",
            help="How many threads step at once, 1 to 256.",
        ),
    ] = 4,
    requesters: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, logic.MOST_REQUESTERS),
            metavar="NUMBER",
            help="How many requesters they share, 1 to 100 000. Each thread has one more, its own.",
        ),
    ] = 4,
    seconds: Annotated[
        float,
        typer.Option(
            parser=duration(logic.MOST_SECONDS),
            metavar="SECONDS",
            help="For how long, above 0, at most a day.",
        ),
    ] = 10,
    scenario: Annotated[
        logic.Scenario,
        typer.Option(
            parser=one_of(logic.Scenario),
            metavar="|".join(logic.Scenario),
            help="count: increments and looks at the counts, which are part of every one. churn: "
            "requesters are also initialised, erased and registered anew. callbacks: the callback "
            "sleeps, raises, interrupts and comes back into the tracker. interrupts: signal "
            "handlers and finalisers use the tracker, at any moment. all: everything at once.",
        ),
    ] = logic.Scenario.ALL,
    tracker: Annotated[
        Subject,
        typer.Option(
            parser=one_of(Subject),
            metavar="|".join(Subject),
            help="ours: StepTracker. textbook: PyTorch's algorithm in our own words. locked: the "
            "same behind a lock. pytorch: PyTorch's own class.",
        ),
    ] = Subject.OURS,
    seed: Annotated[
        int,
        typer.Option(
            parser=whole_number(0),
            metavar="NUMBER",
            help="Decides what every thread does, though not how they interleave.",
        ),
    ] = 0,
    json_file: Annotated[
        Path | None,
        typer.Option(
            "--json",
            parser=new_file,
            metavar="FILE",
            help="Write the outcome to this file as JSON too. One that is there is overwritten.",
        ),
    ] = None,
) -> None:
    """Hammer a tracker and check every promise.

    Threads increment, by name and by handle, initialise, erase and look; the callback sleeps,
    raises and comes back into the tracker; signals and garbage collections rain. All of it
    happens in a process of its own, so that a crash or a deadlock is seen too.

    The exit status is 1 if any promise was broken. What was seen is printed, with the command
    that runs the same load again.
    """
    out = console()
    if tracker is Subject.PYTORCH:
        with out.status("Importing PyTorch..."), needing("torch"):
            import torch  # noqa: F401  # Only to say now what is missing.
    plan = logic.Plan(threads, requesters, seconds, scenario, tracker, seed)
    say(
        out,
        f"{_WHAT[tracker]}: {_number(threads, 'thread')}, {_number(requesters, 'shared requester')}"
        f", scenario {scenario}, for {seconds:g} s.",
    )
    with (_bar if out.is_interactive else _lines)(out, seconds) as watch:
        outcome = logic.run(plan, watch)
    _conclude(out, outcome)
    if json_file is not None:
        found = {**asdict(outcome), "command": plan.command}
        with writing(json_file):
            json_file.write_text(json.dumps(found, indent=2) + "\n")
    raise typer.Exit(1 if outcome.violations else 0)


_WHAT = {
    Subject.OURS: "This project's tracker",
    Subject.TEXTBOOK: "PyTorch's algorithm in our own words",
    Subject.LOCKED: "PyTorch's algorithm behind a lock",
    Subject.PYTORCH: "PyTorch's own class",
}


@contextmanager
def _lines(out: Console, seconds: float) -> Iterator[Callable[[logic.Progress], None]]:
    tenths = 0

    def watch(progress: logic.Progress) -> None:
        nonlocal tenths
        if progress.seconds * 10 // seconds > tenths:
            tenths = int(progress.seconds * 10 // seconds)
            say(out, f"{progress.seconds:.1f} of {seconds:g} s: {_so_far(progress, seconds)}")

    yield watch


@contextmanager
def _bar(out: Console, seconds: float) -> Iterator[Callable[[logic.Progress], None]]:
    columns = TextColumn(f"{{task.completed:.0f}} of {seconds:g} s"), BarColumn(None)
    with Progress(
        *columns, TextColumn("{task.description}"), console=out, expand=True, transient=True
    ) as progress_bar:
        task = progress_bar.add_task("starting", total=seconds)

        def watch(progress: logic.Progress) -> None:
            progress_bar.update(
                task,
                completed=min(progress.seconds, seconds),
                description=_so_far(progress, seconds),
            )

        yield watch


def _so_far(progress: logic.Progress, seconds: float) -> str:
    violations = sum(violation.times for violation in progress.violations)
    text = (
        f"{grouped(progress.operations)} operations, step {grouped(progress.step)}, "
        f"{_number(violations, 'violation')}"
    )
    return f"{text}, waiting for the last to finish" if progress.seconds > seconds else text


def _conclude(out: Console, outcome: logic.Outcome) -> None:
    operations = sum(outcome.operations.values())
    rows = {
        "operations": operations,
        **{f"  {kind}": times for kind, times in sorted(outcome.operations.items())},
        "operations a second": round(operations / outcome.seconds) if outcome.seconds else None,
        "errors from the callback": outcome.errors,
        "signals handled": outcome.signals,
        "objects finalised": outcome.finalisers,
    }
    out.print()
    for name, number in rows.items():
        if number is not None:
            out.print(f"{name:<26}{grouped(number):>16}")
    out.print()
    if outcome.rises is not None and outcome.callbacks is not None:
        style = "red" if outcome.violations else "green"
        bars(
            out,
            [
                ("steps risen", outcome.rises, "cyan", ""),
                ("callbacks run", outcome.callbacks, style, ""),
            ],
        )
        out.print()
    say(out, f"{outcome.environment}, {outcome.seconds:.1f} s")
    if not outcome.violations:
        say(out, f"No violation in {grouped(operations)} operations.", "bold green")
        return
    for violation in outcome.violations:
        times = "" if violation.times == 1 else f" ({grouped(violation.times)} times), at first"
        say(out, f"VIOLATION: {violation.kind}{times}: {violation.first}", "bold red", 4)
    say(out, f"The same load again, if not the same interleaving: {outcome.plan.command}")


def _number(number: int, thing: str) -> str:
    return f"{grouped(number)} {thing}{'' if number == 1 else 's'}"
