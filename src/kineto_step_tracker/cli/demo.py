"""``kineto-step-tracker demo``: a training run on the screen, and the verdict on its counts.

It imports Typer and Rich; `kineto_step_tracker.demo`, which needs more, only when it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.padding import Padding
from rich.progress_bar import ProgressBar
from rich.spinner import Spinner
from rich.table import Table

from kineto_step_tracker.cli import needing
from kineto_step_tracker.cli.options import whole_number
from kineto_step_tracker.cli.terminal import bars, console, say

if TYPE_CHECKING:
    from kineto_step_tracker.demo import Outcome, Progress
    from kineto_step_tracker.demo.account import Account
    from kineto_step_tracker.demo.task import Model

_LINES_AROUND_THE_COUNTS = 12


def demo(
    threads: Annotated[
        int,
        typer.Option(
            parser=whole_number(1, 256),
            metavar="NUMBER",
            help="How many threads train, 1 to 256, with two optimizers each.",
        ),
    ] = 4,
    iterations: Annotated[
        int,
        typer.Option(
            parser=whole_number(1),
            metavar="NUMBER",
            help="How many iterations each of them trains, from 1.",
        ),
    ] = 1000,
    torch: Annotated[
        bool | None,
        typer.Option(
            "--torch/--no-torch",
            help="Train with PyTorch, or with NumPy. Without this: with PyTorch if it is there.",
        ),
    ] = None,
    seed: Annotated[
        int,
        typer.Option(
            parser=whole_number(0), metavar="NUMBER", help="Decides initial weights and batches."
        ),
    ] = 0,
) -> None:
    """Train in threads, and see every step counted once.

    Data-parallel threads train one model on scikit-learn's handwritten digits, with two
    optimizers each, so that many optimizers step at the same moment. Every step is counted by
    this project's tracker and by PyTorch's own algorithm, and both are held against what the
    threads have counted for themselves.

    The exit status is 0 only if this project's tracker was exact.
    """
    out = console()
    with out.status("Importing..."):
        with needing("demo"):
            from kineto_step_tracker.demo import run
        model = _model(torch)
    say(
        out,
        f"Training on handwritten digits with {model.library}: {threads} threads, 2 optimizers "
        "each. Every callback lets other threads run, as one that writes a file does.",
    )
    with (_table if out.is_interactive else _lines)(out, iterations) as watch:
        outcome = run(model, threads, iterations, seed, watch)
    _conclude(out, outcome)
    raise typer.Exit(0 if outcome.ours.exact else 1)


def _model(torch: bool | None) -> Model:
    if torch is None:
        torch = find_spec("torch") is not None
    if torch:
        with needing("torch"):
            from kineto_step_tracker.demo import torch_model
        return torch_model
    from kineto_step_tracker.demo import numpy_model

    return numpy_model


@contextmanager
def _lines(out: Console, iterations: int) -> Iterator[Callable[[Progress], None]]:
    tenths = 0

    def watch(progress: Progress) -> None:
        nonlocal tenths
        if progress.global_step * 10 // iterations > tenths:
            tenths = progress.global_step * 10 // iterations
            say(
                out,
                f"global step {progress.global_step} of {iterations}: loss {progress.loss:.4f}, "
                f"callbacks {progress.callbacks} "
                f"(PyTorch's algorithm: {progress.textbook_callbacks})",
            )

    yield watch


@contextmanager
def _table(out: Console, iterations: int) -> Iterator[Callable[[Progress], None]]:
    with Live(Spinner("dots", "Getting ready..."), console=out, refresh_per_second=10) as live:

        def watch(progress: Progress) -> None:
            room = max(1, out.height - _LINES_AROUND_THE_COUNTS)
            live.update(_progress(progress, iterations, room))

        yield watch


def _progress(progress: Progress, iterations: int, room: int) -> RenderableType:
    counts = Table(box=None, pad_edge=False, padding=(0, 3, 0, 0), header_style="dim")
    cells = [cell for name, count in progress.counts.items() for cell in (name, str(count))]
    for _ in range(2):
        counts.add_column("requester")
        counts.add_column("count", justify="right")
    for row in range(0, len(cells), 4)[:room]:
        counts.add_row(*cells[row : row + 4])
    if len(cells) > 4 * room:
        counts.add_row(f"and {len(cells) // 2 - 2 * room} more")

    numbers = Table.grid(padding=(0, 3, 0, 0))
    numbers.add_column()
    numbers.add_column(justify="right")
    numbers.add_row("global step", str(progress.global_step))
    numbers.add_row("callbacks run", str(progress.callbacks))
    numbers.add_row("by PyTorch's algorithm", str(progress.textbook_callbacks))
    numbers.add_row("loss", f"{progress.loss:.4f}")

    advance = Table.grid(padding=(0, 2, 0, 0), expand=True)
    advance.add_column(ratio=1)
    advance.add_column()
    advance.add_row(
        ProgressBar(iterations, progress.iteration), f"{progress.iteration} of {iterations}"
    )
    return Padding(Group(counts, "", numbers, "", advance), (1, 0))


def _conclude(out: Console, outcome: Outcome) -> None:
    ours, textbook = outcome.ours, outcome.textbook
    before, after = outcome.loss
    say(
        out,
        f"The loss fell from {before:.2f} to {after:.4f}. Of {outcome.unseen} images that it has "
        f"never seen, the model recognises {outcome.accuracy:.1%}.",
    )
    out.print()
    bars(
        out,
        [
            ("steps taken", ours.iterations, "cyan", ""),
            ("callbacks run", len(ours.steps), "green", _order(ours)),
            ("by PyTorch's algorithm", len(textbook.steps), "red", _order(textbook)),
        ],
    )
    out.print()
    say(out, f"PyTorch's algorithm, called at the same moments: {textbook.verdict}")
    out.print()
    say(out, ours.verdict, "bold green" if ours.exact else "bold red")


def _order(account: Account) -> str:
    return "in order" if account.in_order else "not in order"
