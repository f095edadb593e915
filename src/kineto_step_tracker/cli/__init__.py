"""The command ``kineto-step-tracker``: one file a command, each one line in ``app.py``.

This file imports the standard library only, so that it can say what to install where the extra
``cli`` is missing. The command files turn options into calls and results into text; what they
call lives outside.
"""

from __future__ import annotations

import errno
import gc
import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

_INTERRUPTED = 130
_UNWRITABLE = (errno.ENOSPC, errno.EPIPE, errno.EIO, errno.EBADF)


def main() -> None:
    """Run the command that ``sys.argv`` names. Leaves by `SystemExit`."""
    try:
        with needing("cli"):
            from kineto_step_tracker.cli.app import app
        app()
    except (KeyboardInterrupt, SystemExit) as stop:
        # Typer has made the one from the other where Ctrl-C came inside a command.
        if isinstance(stop, SystemExit) and stop.code != _INTERRUPTED:
            raise
        print("interrupted", file=sys.stderr)
        sys.exit(_INTERRUPTED)
    except OSError as error:
        # A file of the user's is answered for where it is written.
        if error.filename is not None or error.errno not in _UNWRITABLE:
            raise
        # What is still to be written would fail once more, at the end of the process.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        sys.exit(f"kineto-step-tracker: the output cannot be written: {error.strerror}")
    finally:
        # What is alive now ends with the process. Searching all that PyTorch and scikit-learn
        # have left for cycles first would take up to a second.
        gc.freeze()


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """Answer a failed import inside by a line that says what to install, and exit status 1."""
    try:
        with uninterrupted():
            yield
    except (ImportError, OSError) as error:
        if (getattr(error, "name", None) or "").startswith("kineto_step_tracker"):
            raise
        reason = next(filter(None, map(str.strip, str(error).splitlines())), type(error).__name__)
        sys.exit(f"kineto-step-tracker: {reason}; pip install 'kineto-step-tracker[{extra}]'")


@contextmanager
def uninterrupted() -> Iterator[None]:
    """Hold Ctrl-C back to the end of an import.

    Where C++ starts up, as PyTorch's does, a KeyboardInterrupt is lost, or ends the process by an
    error that nobody caught.
    """
    before = signal.getsignal(signal.SIGINT)
    if before is None or threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    signal.signal(signal.SIGINT, lambda number, frame: came.append(number))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if came:
            raise KeyboardInterrupt
