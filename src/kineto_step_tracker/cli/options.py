"""Kinds of option values that several commands take, and what they do with them.

It imports Typer.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TypeVar

import typer

from kineto_step_tracker.cli import needing

_Choice = TypeVar("_Choice", bound=StrEnum)


def whole_number(least: int, most: int | None = None) -> Callable[[str], int]:
    """Return a parser of whole numbers from least to most, for `typer.Option`.

    Its error says what came and what was expected; Typer puts the option's name before it.
    """
    expected = f"a whole number from {least} " + ("up" if most is None else f"to {most}")

    def parse(text: str) -> int:
        try:
            number = int(text)
        except ValueError:
            number = least - 1
        if number < least or (most is not None and number > most):
            raise typer.BadParameter(f"{text!r} is not {expected}.")
        return number

    return parse


def duration(most: int) -> Callable[[str], float]:
    """Return a parser of durations above 0, for `typer.Option`."""

    def parse(text: str) -> float:
        try:
            number = float(text)
        except ValueError:
            number = 0
        if not 0 < number <= most:
            raise typer.BadParameter(f"{text!r} is not a number above 0 and at most {most}.")
        return number

    return parse


def one_of(choices: type[_Choice]) -> Callable[[str], _Choice]:
    """Return a parser of an enumeration's values, for `typer.Option`."""

    def parse(text: str) -> _Choice:
        try:
            return choices(text)
        except ValueError:
            raise typer.BadParameter(f"{text!r} is not one of {', '.join(choices)}.") from None

    return parse


def new_file(text: str) -> Path:
    """Parse the name of a file to write at the end of long work, and refuse it before if need be.

    The file itself is not touched yet; one that is there will be overwritten.
    """
    path = Path(text)
    if path.is_dir():
        raise typer.BadParameter(f"{text!r} is a folder, not a file.")
    if not path.parent.is_dir():
        raise typer.BadParameter(f"{text!r} cannot be written: there is no folder {path.parent}.")
    if not os.access(path if path.exists() else path.parent, os.W_OK):
        raise typer.BadParameter(f"{text!r} cannot be written: permission denied.")
    return path


def picture(text: str) -> Path:
    """Parse the name of a picture to draw at the end of long work, as `new_file` does."""
    with needing("bench"):
        from kineto_step_tracker.drawing import FORMATS
    path = new_file(text)
    if path.suffix.removeprefix(".").lower() not in FORMATS:
        endings = " or ".join(f".{ending}" for ending in FORMATS)
        raise typer.BadParameter(f"{text!r} does not end in {endings}.")
    return path


@contextmanager
def writing(file: Path) -> Iterator[None]:
    """Answer a file that cannot be written after all by a line that says why, and exit status 1."""
    try:
        yield
    except OSError as error:
        raise SystemExit(f"kineto-step-tracker: {file}: {error.strerror}") from None
