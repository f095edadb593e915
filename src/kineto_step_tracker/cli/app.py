"""The commands, and what they have in common. It imports Typer and the command files."""

from __future__ import annotations

from importlib import metadata
from typing import Annotated

import typer

from kineto_step_tracker.cli.bench import bench
from kineto_step_tracker.cli.demo import demo
from kineto_step_tracker.cli.doctor import doctor
from kineto_step_tracker.cli.fleet import fleet
from kineto_step_tracker.cli.stress import stress
from kineto_step_tracker.cli.trace import trace

app = typer.Typer(
    name="kineto-step-tracker",
    no_args_is_help=True,
    rich_markup_mode=None,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.command()(bench)
app.command()(demo)
app.command()(doctor)
app.command()(fleet)
app.command()(stress)
app.command()(trace)


def _print_version(wanted: bool) -> None:
    if wanted:
        print("kineto-step-tracker", metadata.version("kineto-step-tracker"))
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Count training steps for PyTorch's profiler, exactly, whatever the threads."""
