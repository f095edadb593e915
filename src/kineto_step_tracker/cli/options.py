"""Kinds of option values that several commands take. It imports Typer."""

from __future__ import annotations

from collections.abc import Callable

import typer


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
