"""``kineto-step-tracker fleet``: how the ranks of a job stand.

It imports Typer, Rich and, when it runs, `kineto_step_tracker.fleet`.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kineto_step_tracker.cli import needing
from kineto_step_tracker.cli.options import duration, whole_number
from kineto_step_tracker.cli.terminal import console, grouped, say, tabulate

if TYPE_CHECKING:
    from kineto_step_tracker.fleet import Observer, RankView

_MOST_SECONDS = 86_400
_UNREADABLE = 2
# Besides its rows a table on a terminal has the job's line, the heads, how many ranks are left out
# and the summary; one more line is for what comes after it.
_OTHER_LINES = 5


def fleet(
    store: Annotated[
        str,
        typer.Option(
            metavar="tcp://HOST:PORT|file:PATH",
            help="The job's store. Under torchrun it is tcp://MASTER_ADDR:MASTER_PORT, as a rank "
            "has them in its environment.",
        ),
    ],
    world_size: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(1),
            metavar="NUMBER",
            help="How many ranks the job must have. Without: as many as it says itself.",
        ),
    ] = None,
    prefix: Annotated[
        str | None,
        typer.Option(
            metavar="TEXT",
            help="Which job, if the store has several: the prefix that its FleetStep was given.",
        ),
    ] = None,
    behind: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(0),
            metavar="STEPS",
            help="Mark ranks that are more steps than this behind the one that is furthest ahead, "
            "from 0. Without: none.",
        ),
    ] = None,
    silent: Annotated[
        float,
        typer.Option(
            parser=duration(_MOST_SECONDS),
            metavar="SECONDS",
            help="Mark ranks that have published nothing for longer than this, at most a day.",
        ),
    ] = 10,
    interval: Annotated[
        float,
        typer.Option(
            parser=duration(_MOST_SECONDS),
            metavar="SECONDS",
            help="How long after a look comes the next. Steps a second need two looks between "
            "which the rank has published, which ranks do every second unless told otherwise.",
        ),
    ] = 2,
    watch: Annotated[
        bool, typer.Option("--watch", help="Go on looking, until Ctrl-C or the store goes away.")
    ] = False,
    as_json: Annotated[
        bool,
        typer.Option(
            "--json",
            help="Print one JSON object to standard output and nothing else; with --watch one for "
            "each look, on a line of its own.",
        ),
    ] = False,
) -> None:
    """Show how far each rank of a running job is.

    Joins the store that a job's ranks publish their steps in by
    kineto_step_tracker.fleet.FleetStep, as an observer that is none of them. Prints a row for each
    rank: its step, steps a second, how long ago it published that, and how many steps it is behind
    the rank that is furthest ahead.

    The exit status is 1 if some rank is silent, was never seen, or is further behind than
    --behind, and 2 if the store cannot be read or an option is refused. Training that hangs is not
    silent: its steps a second are 0.
    """
    out = Console(file=sys.stderr, quiet=True) if as_json else console()
    with out.status("Joining the job's store..."):
        observer = _join(store, world_size, prefix)
        _look(observer, store, behind, silent)
        time.sleep(interval)
        job = _look(observer, store, behind, silent)
    if not watch:
        (_show_in_json if as_json else _lines(out))(job)
        raise typer.Exit(1 if job.marked else 0)
    with _showing(out, as_json) as show:
        while True:
            show(job)
            time.sleep(interval)
            job = _look(observer, store, behind, silent)


class _Mark(StrEnum):
    NEVER_SEEN = "never seen"
    SILENT = "silent"
    BEHIND = "behind"


@dataclass(frozen=True)
class _Rank:
    """A rank, and what is wrong with it."""

    rank: int
    step: int | None
    rate: float | None
    age: float | None
    behind: int | None
    marks: tuple[_Mark, ...]


@dataclass(frozen=True)
class _Job:
    """What is shown of a look, and in JSON all of it."""

    prefix: str
    step: int
    skew: int
    ranks: tuple[_Rank, ...]

    @property
    def marked(self) -> list[_Rank]:
        return [rank for rank in self.ranks if rank.marks]


def _join(store: str, world_size: int | None, prefix: str | None) -> Observer:
    # PyTorch would tell of a lost connection by twenty lines of C++ before we do by one.
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    with needing("torch"):
        import torch  # noqa: F401  # Our own package would name the extra once more.

        from kineto_step_tracker.fleet import Observer, open_store
    with _reaching(store):
        try:
            opened = open_store(store)
        except ValueError as error:
            raise typer.BadParameter(f"{store!r}: {error}.", param_hint="'--store'") from None
        return Observer(opened, world_size, prefix)


@contextmanager
def _reaching(store: str, what: str = "") -> Iterator[None]:
    """Answer what goes wrong with the store by a line that says what, and exit status 2."""
    try:
        yield
    except (OSError, LookupError, ValueError, RuntimeError) as error:
        strerror = error.strerror if isinstance(error, OSError) else None
        lines = filter(None, map(str.strip, (strerror or str(error)).splitlines()))
        reason = next(lines, type(error).__name__)
        print(f"kineto-step-tracker: {store}: {what}{reason}", file=sys.stderr)
        raise SystemExit(_UNREADABLE) from None


def _look(observer: Observer, store: str, behind: int | None, silent: float) -> _Job:
    with _reaching(store, "the store went away: "):
        view = observer.look()
    ranks = tuple(_judge(rank, behind, silent) for rank in view.ranks)
    return _Job(observer.prefix, view.step, view.skew, ranks)


def _judge(rank: RankView, behind: int | None, silent: float) -> _Rank:
    marks = []
    if rank.age is None:
        marks.append(_Mark.NEVER_SEEN)
    elif rank.age > silent:
        marks.append(_Mark.SILENT)
    if behind is not None and rank.behind is not None and rank.behind > behind:
        marks.append(_Mark.BEHIND)
    # Of a silent rank it is what it was before.
    rate = None if _Mark.SILENT in marks else rank.rate
    return _Rank(rank.rank, rank.step, rate, rank.age, rank.behind, tuple(marks))


@contextmanager
def _showing(out: Console, as_json: bool) -> Iterator[Callable[[_Job], None]]:
    if as_json:
        yield _show_in_json
    elif out.is_interactive:
        with Live(console=out, auto_refresh=False) as live:
            yield lambda job: live.update(_screen(job, out.height), refresh=True)
    else:
        yield _lines(out)


def _show_in_json(job: _Job) -> None:
    print(json.dumps(asdict(job)), flush=True)


def _lines(out: Console) -> Callable[[_Job], None]:
    def show(job: _Job) -> None:
        say(out, _headline(job))
        tabulate(out, _table(job.ranks))
        say(out, _summary(job), "red" if job.marked else "", indent=4)
        out.file.flush()

    return show


def _screen(job: _Job, height: int) -> Group:
    """The table as far as it fits on a terminal, with the marked ranks first if it does not."""
    room = max(1, height - _OTHER_LINES)
    ranks = job.ranks
    rest = ""
    if len(ranks) > room:
        ranks = tuple(sorted(ranks, key=lambda rank: not rank.marks))[:room]
        rest = f" {_number(len(job.ranks) - room)} not shown"
        unseen = len(job.marked) - room
        rest += f", {grouped(unseen)} of them marked" if unseen > 0 else ""
    lines = [_headline(job), _summary(job), rest]
    head, summary, left_out = (Text(line, no_wrap=True, overflow="ellipsis") for line in lines)
    summary.stylize("red" if job.marked else "")
    return Group(head, _table(ranks), *([left_out] if rest else []), summary)


def _headline(job: _Job) -> str:
    return (
        f"Step {grouped(job.step)}, skew {grouped(job.skew)}, {_number(len(job.ranks))}; "
        f"prefix {job.prefix}"
    )


def _table(ranks: tuple[_Rank, ...]) -> Table:
    table = Table(box=None)
    for head in ("rank", "step", "steps/s", "age", "behind"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column(no_wrap=True)
    for rank in ranks:
        table.add_row(*_row(rank), style="red" if rank.marks else "")
    return table


def _row(rank: _Rank) -> tuple[str, ...]:
    return (
        str(rank.rank),
        "-" if rank.step is None else grouped(rank.step),
        "-" if rank.rate is None else f"{rank.rate:.1f}",
        "-" if rank.age is None else f"{rank.age:.1f} s",
        "-" if rank.behind is None else grouped(rank.behind),
        ", ".join(rank.marks),
    )


def _summary(job: _Job) -> str:
    if not job.marked:
        return "No rank is marked."
    kinds = [
        f"{mark}: {_ranges([rank.rank for rank in job.marked if mark in rank.marks])}"
        for mark in _Mark
        if any(mark in rank.marks for rank in job.marked)
    ]
    return f"{grouped(len(job.marked))} of {_number(len(job.ranks))} marked; {'; '.join(kinds)}"


def _ranges(ranks: list[int]) -> str:
    """Name ranks, those in a row by the first and the last."""
    runs: list[list[int]] = []
    for rank in ranks:
        if runs and rank == runs[-1][-1] + 1:
            runs[-1][1:] = [rank]
        else:
            runs.append([rank])
    return ", ".join("-".join(map(str, run)) for run in runs)


def _number(ranks: int) -> str:
    return f"{grouped(ranks)} rank{'' if ranks == 1 else 's'}"
