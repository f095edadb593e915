"""What all pictures have in common: their style, and how they become a file.

It imports matplotlib, so it is itself imported only where a picture is wanted. The background is
transparent: every colour can be told from a white page and from GitHub's dark one.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib
from matplotlib.figure import Figure

FORMATS = ("svg", "png")

# As far from white as from GitHub's dark page. Nothing stands out more from both.
INK = "#6c7a8e"

_STYLE: dict[Any, Any] = {
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "grid.color"), INK),
    **dict.fromkeys(("xtick.color", "ytick.color"), INK),
    **dict.fromkeys(("figure.facecolor", "axes.facecolor"), "none"),
    **dict.fromkeys(("axes.spines.top", "axes.spines.right"), False),
    **dict.fromkeys(("figure.constrained_layout.h_pad", "figure.constrained_layout.w_pad"), 0.12),
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9,
    "grid.alpha": 0.3,
    "grid.linewidth": 0.6,
    "savefig.dpi": 150,
    "text.parse_math": False,
    "svg.fonttype": "none",
    "svg.hashsalt": "kineto-step-tracker",
}


@contextmanager
def picture(
    file: str | os.PathLike[str], size: tuple[float, float], title: str, footer: str
) -> Iterator[Figure]:
    """Save what is drawn on a figure, as SVG or PNG by the ending of the file's name.

    The same drawing gives the same bytes. matplotlib's settings have no part in it and are left
    as they were; until it is left, no other thread is to use them.

    Args:
        file: where to. What is there is overwritten.
        size: in inches.
        title: above it, and in the file's metadata.
        footer: below it, and in the file's metadata.

    Raises:
        ValueError: the name of ``file`` has another ending.
        OSError: ``file`` cannot be written.
    """
    file = Path(file)
    ending = file.suffix.lower().removeprefix(".")
    if ending not in FORMATS:
        endings = " or ".join(f".{known}" for known in FORMATS)
        raise ValueError(f"file must end in {endings}, not be {file.name!r}")
    with matplotlib.rc_context(), warnings.catch_warnings():
        # In an SVG it is text, and whoever shows it has the font.
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        matplotlib.rcdefaults()
        matplotlib.rcParams.update(_STYLE)
        figure = Figure(figsize=size, layout="constrained")
        yield figure
        figure.suptitle(title, x=0.01, ha="left", size=14, weight="bold")
        figure.supxlabel(footer, x=0.01, ha="left", size=8)
        metadata = {"Title": title, "Description": footer, "Date": None}
        figure.savefig(file, format=ending, metadata=metadata)
