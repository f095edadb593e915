"""A stand-in for training that runs with KINETO_USE_DAEMON=1, and the handle by which tests run it.

It imports the standard library only. It speaks libkineto's protocol over a socket in the folder
``KINETO_IPC_SOCKET_DIR``, asks every 0.03 s rather than 5, and takes its steps at once rather than
one after another. What lasts, lasts for so many of its asks that were answered: so nothing in the
tests depends on how fast the machine is.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

PATIENCE = 120
_HEADER = struct.Struct("=Q32s")
_REQUEST = struct.Struct("=iiq")
_ASK_EVERY = 0.03
_EVENTS, _ACTIVITIES = 1, 2
_CHILD = "--child"


class Training:
    """The stand-in in a process of its own, until `kill`."""

    def __init__(self, sockets: Path, *arguments: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, *arguments],
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "KINETO_IPC_SOCKET_DIR": str(sockets)},
        )
        self.pid = self._process.pid
        self._socket = sockets / str(self.pid)

    def wait_until_it_asks(self) -> None:
        _wait_for(self._socket)

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def answers(self) -> list[dict[str, str]]:
        """End it, and return the configurations that it was told, ``{}`` for an answer without."""
        self.kill()
        assert self._process.stdout is not None
        return [json.loads(line) for line in self._process.stdout]

    def told(self) -> list[dict[str, str]]:
        return [answer for answer in self.answers() if answer]

    def close(self) -> None:
        self.kill()
        assert self._process.stdout is not None
        self._process.stdout.close()


@contextmanager
def training(sockets: Path, *arguments: str) -> Iterator[Training]:
    started = Training(sockets, *arguments)
    try:
        yield started
    finally:
        started.close()


def message(body: bytes, kind: str = "req") -> bytes:
    return _HEADER.pack(len(body), kind.encode()) + body


def ask(*pids: int, is_free: bool = True, job_id: int = 0) -> bytes:
    free = _EVENTS | (_ACTIVITIES if is_free else 0)
    return message(_REQUEST.pack(free, len(pids), job_id) + struct.pack(f"={len(pids)}i", *pids))


class _StandIn:
    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._pids = _with_ancestors(os.getpid())
        self._daemon = str(Path(os.environ["KINETO_IPC_SOCKET_DIR"], "dynolog"))
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.settimeout(1)
        self._socket.bind(str(Path(self._daemon).with_name(str(os.getpid()))))
        self._configuration: dict[str, str] = {}
        self._told = 0
        # Asks that were answered since it took a configuration.
        self._since = 0

    def ask(self) -> None:
        question = ask(*self._pids, is_free=self._is_free(), job_id=self._options.job_id)
        # No daemon is there, or none any more.
        with suppress(OSError):
            self._socket.sendto(question, self._daemon)
            self._take(os.fsdecode(self._socket.recv(1 << 16)[_HEADER.size :]))

    def _is_free(self) -> bool:
        if self._options.busy:
            return False
        if self._options.overlap and self._since == self._options.pending:
            return True
        return not self._unfinished or (self._options.cancel and self._since > 1)

    @property
    def _file(self) -> Path:
        named = Path(self._configuration["ACTIVITIES_LOG_FILE"])
        return named.with_stem(f"{named.stem}_{os.getpid()}")

    @property
    def _unfinished(self) -> Path | None:
        if not self._configuration:
            return None
        file = self._file.with_name(f"{self._file.name}.tmp")
        return file if file.exists() else None

    def _take(self, answer: str) -> None:
        lines = dict(line.split("=", 1) for line in answer.splitlines())
        print(json.dumps(lines), flush=True)
        if self._configuration:
            # As libkineto, which has one request at a time.
            self._since += 1
            self._go_on()
        elif lines:
            self._told += 1
            if self._options.die == "told":
                os._exit(1)
            if self._told > self._options.ignore and not self._options.never:
                self._configuration, self._since = lines, 0
                self._go_on()

    def _go_on(self) -> None:
        unfinished = self._unfinished
        if unfinished is None:
            if self._since == self._options.pending:
                # As libkineto's, it is empty until it is complete.
                self._file.with_name(f"{self._file.name}.tmp").touch()
                if self._options.die == "recording":
                    os._exit(1)
        elif not self._options.cancel and (
            self._since >= self._options.pending + self._options.recording
        ):
            trace = json.dumps(self._trace())
            unfinished.write_text(trace[: len(trace) // 2] if self._options.half else trace)
            unfinished.rename(self._file)
            self._configuration = {}

    def _trace(self) -> dict[str, Any]:
        # Kineto's count is one less than the steps, and it begins at the end of a step.
        count = max(self._options.steps - 1, int(self._configuration["PROFILE_START_ITERATION"]))
        multiple = int(self._configuration["PROFILE_START_ITERATION_ROUNDUP"])
        first = -(-count // multiple) * multiple + 2 + self._options.late
        number = int(self._configuration["ACTIVITIES_ITERATIONS"]) + self._options.more
        here = {"pid": os.getpid(), "tid": os.getpid()}
        begin = 1_000_000.0
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "ts": 0, **here, "args": {"name": "python"}},
            {"ph": "i", "s": "g", "name": "Iteration Start: PyTorch Profiler", "ts": begin, **here},
        ]
        for index in range(number):
            at = begin + 100 * index
            names = [("cpu_op", "aten::add_", at + 10, 20.0)]
            names.append(("user_annotation", "Optimizer.step#SGD.step", at + 40, 50.0))
            if not self._options.unmarked:
                mark = f"KinetoStepTracker.step#{first + index}"
                names.append(("user_annotation", mark, at + 95, 1.0))
            events.extend(
                {"ph": "X", "cat": kind, "name": name, "ts": ts, "dur": dur, **here}
                for kind, name, ts, dur in names
            )
        end = begin + 100 * number
        events.append({"ph": "i", "s": "g", "name": "Record Window End", "ts": end, **here})
        return {"schemaVersion": 1, "traceEvents": events, "traceName": str(self._file)}


def _do_nothing() -> None:
    pass


def _with_ancestors(pid: int) -> list[int]:
    pids = []
    while pid > 1:
        pids.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return pids


def _wait_for(file: Path) -> None:
    deadline = time.monotonic() + PATIENCE
    while not file.exists():
        assert time.monotonic() < deadline, file
        time.sleep(0.01)


def _main(arguments: Sequence[str]) -> None:
    own, child = list(arguments), None
    if _CHILD in own:
        at = own.index(_CHILD)
        own, child = own[:at], own[at + 1 :]
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=10, help="taken before it is told")
    parser.add_argument("--ignore", type=int, default=0, help="so many configurations at first")
    parser.add_argument("--pending", type=int, default=1, help="for so many answers")
    parser.add_argument("--recording", type=int, default=1, help="for so many answers")
    parser.add_argument("--more", type=int, default=0, help="steps than asked for")
    parser.add_argument("--late", type=int, default=0, help="by so many steps")
    parser.add_argument("--unmarked", action="store_true", help="as without the tracker")
    parser.add_argument("--half", action="store_true", help="of a file is all that it writes")
    parser.add_argument("--busy", action="store_true", help="with a trace of its own")
    parser.add_argument("--cancel", action="store_true", help="what it has begun")
    parser.add_argument("--overlap", action="store_true", help="an ask, sent before, and its begin")
    parser.add_argument("--never", action="store_true", help="step")
    parser.add_argument("--mute", action="store_true", help="never ask")
    parser.add_argument("--die", choices=["told", "recording"], help="when")
    parser.add_argument("--job-id", type=int, default=0)
    options = parser.parse_args(own)
    if child is not None:
        started = subprocess.Popen([sys.executable, "-I", "-S", __file__, *child])
        _wait_for(Path(os.environ["KINETO_IPC_SOCKET_DIR"], str(started.pid)))
    parent = os.getppid()
    work = _do_nothing if options.mute else _StandIn(options).ask
    while os.getppid() == parent:
        work()
        time.sleep(_ASK_EVERY)


if __name__ == "__main__":
    _main(sys.argv[1:])
