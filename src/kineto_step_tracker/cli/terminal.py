"""Text on a terminal, or in a file. It imports Rich."""

from __future__ import annotations

import io
import sys
import textwrap
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table
from rich.text import Text


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


def tabulate(to: Console, table: Table) -> None:
    """Print a table: to a terminal's width, elsewhere as wide as it likes and without padding."""
    if to.is_interactive:
        to.print(table)
        return
    wide = Console(file=io.StringIO(), width=1_000)
    with wide.capture() as capture:
        wide.print(table)
    for line in capture.get().splitlines():
        to.print(line.rstrip(), soft_wrap=True)


def bars(to: Console, rows: Sequence[tuple[str, int, str, str]]) -> None:
    """Draw numbers to one scale. A row is a label, its number, the bar's style and a remark."""
    glyph = "-" if to.options.ascii_only else "━"
    room = max(10, to.width - 52)
    longest = max(1, *(number for _, number, _, _ in rows))
    for label, number, style, remark in rows:
        bar = Text(glyph * max(1, room * number // longest), style)
        to.print(Text.assemble(f"{label:<22}{grouped(number):>11}  ", bar, f"  {remark}".rstrip()))


def grouped(number: int) -> str:
    """A whole number with its digits in groups of three, which no line break separates."""
    return f"{number:,}".replace(
        ",", "\u00a0" if getattr(sys.stdout, "encoding", "") == "utf-8" else " "
    )
