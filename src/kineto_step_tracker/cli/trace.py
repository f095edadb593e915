"""``kineto-step-tracker trace``: a trace of training that is running, and a check of it.

It imports Typer, Rich and `kineto_step_tracker.on_demand`; what draws, only for a plot.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from kineto_step_tracker import on_demand as logic
from kineto_step_tracker.cli.options import duration, picture, whole_number, writing
from kineto_step_tracker.cli.terminal import console, grouped, say, tabulate
from kineto_step_tracker.on_demand import State

_MOST_SECONDS = 30 * 86_400
# Kineto asks every 5 seconds: if nobody has by then, something may be wrong.
_PATIENCE = 7
_TOO_SHORT = "no training has asked in {:g} s. Kineto asks every 5 s: wait longer, with --timeout."
_NOBODY = (
    "no training has asked. Start it with KINETO_USE_DAEMON=1 in its environment and PyTorch 2.13 "
    "or later for Linux, and let it step an optimizer; give it the same KINETO_IPC_SOCKET_DIR as "
    "this command, or neither of them."
)


def _line(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not equals:
        raise typer.BadParameter(f"{text!r} is not KEY=VALUE.")
    return key, value


def trace(
    iterations: Annotated[
        int,
        typer.Option(
            parser=whole_number(1),
            metavar="NUMBER",
            help="How many steps the trace is to hold, from 1.",
        ),
    ] = 10,
    start: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(0),
            metavar="STEP",
            help="The first step to record, from 2 plus --warmup, as "
            "KinetoStepTracker.current_step() counts; not with --align. Without: the one after the "
            "step that runs when a process asks.",
        ),
    ] = None,
    align: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(1),
            metavar="NUMBER",
            help="Begin two steps after a multiple of this, so that ranks record the same steps. "
            "Choose more than they take in 5 s. Not with --start.",
        ),
    ] = None,
    warmup: Annotated[
        int,
        typer.Option(
            parser=whole_number(0),
            metavar="NUMBER",
            help="For how many steps before the first the profiler runs and records nothing.",
        ),
    ] = 0,
    pid: Annotated[
        list[int] | None,
        typer.Option(
            parser=whole_number(1),
            metavar="PID",
            help="Only this process, and those below it; may be repeated.",
        ),
    ] = None,
    job_id: Annotated[
        int | None,
        typer.Option(
            parser=whole_number(0),
            metavar="NUMBER",
            help="Only processes that have this number as SLURM_JOB_ID.",
        ),
    ] = None,
    output: Annotated[
        Path, typer.Option(metavar="DIR", help="The folder for the trace files.")
    ] = Path(),
    timeout: Annotated[
        float,
        typer.Option(
            parser=duration(_MOST_SECONDS),
            metavar="SECONDS",
            help="How long to wait in all, at most 30 days.",
        ),
    ] = 120,
    activities: Annotated[
        str,
        typer.Option(
            metavar="NAME,NAME",
            help="What to record, such as cpu_op,cuda_runtime,kernel. Without: all there is.",
        ),
    ] = "",
    config: Annotated[
        list[str] | None,
        typer.Option(
            metavar="KEY=VALUE",
            help="A further line of Kineto's configuration, such as PROFILE_WITH_STACK=true; "
            "may be repeated.",
        ),
    ] = None,
    as_json: Annotated[
        bool,
        typer.Option("--json", help="Print one JSON object to standard output and nothing else."),
    ] = False,
    plot: Annotated[
        Path | None,
        typer.Option(
            parser=picture,
            metavar="FILE.svg|png",
            help="Draw the traces to this file. One that is there is overwritten.",
        ),
    ] = None,
) -> None:
    """Trace training that is running, and check what it recorded.

    Asks every process of this machine that trains with KINETO_USE_DAEMON=1 for a trace of so many
    steps, waits for the files and counts what is in them. No daemon is needed: for as long as it
    runs, this command is the one that Kineto asks. It needs Linux, and PyTorch 2.13 or later in the
    training.

    The exit status is 0 if every process that was asked delivered a whole trace, otherwise 1; 2 if
    an option is refused.
    """
    try:
        request = logic.Request(
            iterations=iterations,
            start=start,
            align=align,
            warmup=warmup,
            activities=tuple(filter(None, map(str.strip, activities.split(",")))),
            config=dict(map(_line, config or ())),
        )
    except ValueError as error:
        raise typer.BadParameter(f"{error}.") from None
    out = Console(file=sys.stderr, quiet=True) if as_json else console()
    last = logic.Report(0.0, (), {})
    try:
        with (_live if out.is_interactive else _lines)(out) as show:

            def watch(report: logic.Report) -> None:
                nonlocal last
                if last.seconds == 0:
                    say(out, f"Asking for {request.steps}; the files go to {output.absolute()}.")
                last = report
                show(report)

            last = logic.trace(
                request,
                output=output,
                pids=pid or (),
                job_id=job_id,
                timeout=timeout,
                watch=watch,
            )
    except (OSError, ValueError, RuntimeError) as error:
        raise SystemExit(f"kineto-step-tracker: {_reason(error)}") from None
    except KeyboardInterrupt:
        # What has been told cannot be taken back.
        _conclude(out, last, as_json)
        raise
    _conclude(out, last, as_json)
    if plot is not None:
        _draw(last, plot)
    if not last.recordings:
        why = _NOBODY if last.seconds > _PATIENCE else _TOO_SHORT.format(timeout)
        print(f"kineto-step-tracker: {why}", file=sys.stderr)
    raise typer.Exit(0 if last.is_whole else 1)


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.filename is not None:
        return f"{error.filename}: {error.strerror}"
    return str(error.strerror if isinstance(error, OSError) and error.strerror else error)


@contextmanager
def _live(out: Console) -> Iterator[Callable[[logic.Report], None]]:
    with Live(console=out, transient=True, auto_refresh=False) as live:

        def show(report: logic.Report) -> None:
            rows = [Text(_progress(recording)) for recording in report.recordings]
            waiting = Text(f"{report.seconds:.0f} s; {_so_far(report)}")
            live.update(Group(*rows, waiting), refresh=True)

        yield show


@contextmanager
def _lines(out: Console) -> Iterator[Callable[[logic.Report], None]]:
    said: dict[int, str] = {}

    def show(report: logic.Report) -> None:
        for recording in report.recordings:
            text = _progress(recording)
            if said.get(recording.pid) != text:
                said[recording.pid] = text
                say(out, f"{report.seconds:.1f} s: {text}")

    yield show


def _progress(recording: logic.Recording) -> str:
    return f"process {recording.pid} {_WORDS[recording.state].format(recording)}"


_WORDS = {
    State.SILENT: "has not asked yet",
    State.TOLD: "has been told: {0.asked}",
    State.RECORDING: "is recording",
    State.WRITTEN: "has written {0.file.name}; to be checked",
    State.WHOLE: "delivered a whole trace",
    State.WRONG: "delivered, but not what was asked for",
    State.UNSURE: "delivered, but without the tracker's marks",
    State.BUSY: "refused: it is recording another trace",
    State.CANCELLED: "gave up for a trace of torch.profiler's",
    State.DIED: "ended",
    State.UNFINISHED: "is not finished",
    State.IDLE: "takes no steps",
}


def _so_far(report: logic.Report) -> str:
    if report.recordings:
        return "waiting"
    if report.seconds < _PATIENCE:
        return "waiting for training to ask, which Kineto does every 5 s"
    return _NOBODY


def _conclude(out: Console, report: logic.Report, as_json: bool) -> None:
    if as_json:
        found = {**asdict(report), "is_whole": report.is_whole}
        print(json.dumps(found, indent=2, default=str), flush=True)
        return
    out.print()
    if report.recordings:
        heads = ("process", "", "asked for", "recorded", "iterations", "file", "size")
        table = Table(*heads, box=None)
        for recording in report.recordings:
            table.add_row(*_row(recording))
        tabulate(out, table)
        out.print()
    for recording in report.recordings:
        who = f"Process {recording.pid}"
        if recording.cut:
            say(out, f"{who} {_CUT.format(recording.cut)}", indent=4)
        if recording.problem is not None:
            say(out, f"{who} {recording.problem}.", "red", indent=4)
        elif recording.state in (State.TOLD, State.RECORDING):
            say(out, f"{who} {_ON_ITS_WAY}", "yellow", indent=4)
    for why, times in report.refused.items():
        say(
            out,
            f"Not answered: {grouped(times)} datagram{'s' * (times > 1)} {why}.",
            "yellow",
            indent=4,
        )


_CUT = "recorded {} more before Kineto stopped, which have been cut from the file."
_ON_ITS_WAY = (
    "has been told, which cannot be taken back: it records once it comes to the step, or on, and "
    "until then no other request."
)


def _row(recording: logic.Recording) -> tuple[str, ...]:
    first = (str(recording.pid), recording.state, recording.asked)
    steps = "" if recording.first is None else f"steps {recording.first} to {recording.last}"
    if recording.size is None:
        return (*first, steps, "", "", "")
    size = f"{grouped(round(recording.size / 1000))} kB"
    return (*first, steps, str(recording.iterations), str(recording.file), size)


def _draw(report: logic.Report, file: Path) -> None:
    from kineto_step_tracker.on_demand.drawing import draw

    read = [
        (f"process {recording.pid}: {recording.iterations} iterations", logic.read(recording.file))
        for recording in report.recordings
        if recording.file is not None and recording.size is not None
    ]
    if read:
        with writing(file):
            draw(read, file)
