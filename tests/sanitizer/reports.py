"""What ThreadSanitizer reports on a program, and which of it is this package's doing."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

# CPython knows races of its own, which it holds to be harmless, and lists them.
_SUPPRESSIONS = (
    Path(sys.base_prefix, "suppressions_free_threading.txt"),
    Path(__file__).with_name("suppressions.txt"),
)
_OUR_FRAME = re.compile(r"\((?:_atomic|tracker|drop_in)\.cpython-")


def run(folder: Path, *arguments: str, **environment: str) -> tuple[int, list[str]]:
    """Run Python with these arguments, and return its exit status and ThreadSanitizer's reports.

    The folder is for the reports of all its processes. What it printed, and how many races were
    suppressed by which line of the lists, is printed.
    """
    suppressions = folder / "suppressions"
    suppressions.write_text("\n".join(file.read_text() for file in _SUPPRESSIONS))
    options = {
        "suppressions": suppressions,
        "print_suppressions": 1,
        # The longest: an access whose stack is forgotten matches no suppression.
        "history_size": 7,
        "log_path": folder / "report",
        # The exit status is the program's own.
        "exitcode": 0,
    }
    done = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={
            **os.environ,
            **environment,
            "TSAN_OPTIONS": " ".join(f"{name}={value}" for name, value in options.items()),
        },
    )
    print(done.stdout)
    found = []
    for file in sorted(folder.glob("report.*")):
        for part in file.read_text().split("=" * 18 + "\n"):
            if part.startswith("WARNING: ThreadSanitizer"):
                found.append(part)
            else:
                print(part)
    return done.returncode, found


def is_ours(report: str) -> bool:
    """Whether a compiled module of this package stands anywhere in it."""
    return _OUR_FRAME.search(report) is not None
