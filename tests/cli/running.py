"""The command in a process of its own, on a terminal or not."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

RUN = "from kineto_step_tracker.cli import main; main()"
_WITHOUT = """
from importlib.machinery import PathFinder
find_spec = PathFinder.find_spec
PathFinder.find_spec = lambda name, *more: None if name in {!r} else find_spec(name, *more)
"""
_PATIENCE = 120


def command(
    *arguments: str, without: tuple[str, ...] = (), **environment: str
) -> subprocess.CompletedProcess[str]:
    """Run it to its end, with output to a pipe, as if the packages ``without`` were missing."""
    return subprocess.run(
        [sys.executable, "-c", _WITHOUT.format(without) + RUN, *arguments],
        check=False,
        capture_output=True,
        text=True,
        timeout=_PATIENCE,
        env={**os.environ, **environment},
    )


class Terminal:
    """The command on a terminal of 80 by 24."""

    def __init__(self, *arguments: str, **environment: str) -> None:
        self._screen, terminal = pty.openpty()
        self.shown = ""
        self._process = subprocess.Popen(
            [sys.executable, "-c", RUN, *arguments],
            # A shell that runs the tests in the background has them ignore Ctrl-C.
            preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
            stdin=terminal,
            stdout=terminal,
            stderr=terminal,
            env={
                **os.environ,
                "TERM": "xterm",
                "COLUMNS": "80",
                "LINES": "24",
                **environment,
            },
        )
        os.close(terminal)

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + _PATIENCE
        while text not in self.shown:
            assert time.monotonic() < deadline, self.shown
            assert self._read(), self.shown

    def interrupt(self) -> None:
        self._process.send_signal(signal.SIGINT)

    def finish(self) -> int:
        while self._read():
            pass
        os.close(self._screen)
        return self._process.wait(_PATIENCE)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def _read(self) -> bool:
        """Read what there is; False when the command has closed the terminal."""
        readable, _, _ = select.select([self._screen], [], [], _PATIENCE)
        assert readable, self.shown
        try:
            read = os.read(self._screen, 65536)
        except OSError:
            return False
        self.shown += read.decode()
        return bool(read)


@contextmanager
def on_terminal(*arguments: str, **environment: str) -> Iterator[Terminal]:
    terminal = Terminal(*arguments, **environment)
    try:
        yield terminal
    finally:
        terminal.kill()


def plain(shown: str) -> str:
    """What is left of terminal output without control sequences and spaces at the ends of lines."""
    text = re.sub(r"\x1b\[[?\d;]*[A-Za-z]", "", shown)
    return re.sub(r" *\r\n", "\n", text)
