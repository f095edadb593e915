"""Text on a terminal, or in a file. It imports Rich."""

from __future__ import annotations

import sys
import textwrap

from rich.console import Console


def console() -> Console:
    """Return standard output: with colours on a terminal, without control codes elsewhere."""
    out = Console(highlight=False, markup=False, emoji=False)
    if out.width < 1:  # COLUMNS=0, by which some programs mean that they do not know
        out.width = 80
    return out


def say(to: Console, text: str, style: str = "", indent: int = 0) -> None:
    """Print a paragraph, wrapped to the terminal with all lines but the first indented.

    Elsewhere it is one line: a file or another program wraps as it likes.
    """
    width = to.width if to.is_interactive else sys.maxsize
    wrapped = textwrap.fill(
        text,
        width,
        subsequent_indent=" " * indent,
        break_long_words=False,
        break_on_hyphens=False,
    )
    to.print(wrapped, style=style, soft_wrap=True)
