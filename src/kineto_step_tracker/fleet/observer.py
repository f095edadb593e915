"""A look at a job from outside: its step, and how each rank stands.

It imports PyTorch, the board and the connection.
"""

from __future__ import annotations

import struct
import time
from dataclasses import dataclass
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import BinaryIO

from torch._C._distributed_c10d import FileStore, Store, TCPStore

from kineto_step_tracker.fleet.board import FORM, Board
from kineto_step_tracker.fleet.connection import PATIENCE, Connection, answered, find_host

# A FileStore's file is a row of keys and values, each behind its length. The first key counts how
# many have it open.
_LENGTH = struct.Struct("=I")
_FIRST_KEY = b"refcount/"
_NOTHING = "no rank has published anything in this store yet"


@dataclass(frozen=True)
class RankView:
    """How a rank stands: None for what is not known of it.

    ``rate`` is in steps a second between the last two looks at which it had published anew, ``age``
    in seconds since it last did, ``behind`` in steps behind the rank that is furthest ahead.
    """

    rank: int
    step: int | None = None
    rate: float | None = None
    age: float | None = None
    behind: int | None = None


@dataclass(frozen=True)
class View:
    """A look at a job: ``step`` is the largest of any rank's, ``skew`` largest minus smallest."""

    step: int
    skew: int
    ranks: tuple[RankView, ...]


class Observer:
    """Looks at a job without being one of its ranks, and writes nothing but empty keys.

    Args:
        store: where the job's `FleetStep` publish.
        world_size: what the job's should be; None for whatever it is.
        prefix: which job, by the end of what its keys begin with; None for the only one there is.

    Raises:
        LookupError: no such job, or several; the message names what there is.
        TypeError: ``store`` is no store, or ``world_size`` no int.
        ValueError: the job has another world size.
        OSError, RuntimeError: the store does not answer.

    >>> import torch.distributed
    >>> from kineto_step_tracker import StepTracker
    >>> from kineto_step_tracker.fleet import FleetStep
    >>> store = torch.distributed.HashStore()
    >>> tracker = StepTracker(start=7)
    >>> FleetStep(store, tracker=tracker, rank=0, world_size=2).close()
    >>> view = Observer(store).look()
    >>> view.step, [rank.step for rank in view.ranks]
    (7, [7, None])
    """

    def __init__(
        self, store: Store, world_size: int | None = None, prefix: str | None = None
    ) -> None:
        if not isinstance(store, Store):
            raise TypeError(
                f"store must be a torch.distributed store, as open_store() makes one, not {store!r}"
            )
        if world_size is not None and (
            not isinstance(world_size, int) or isinstance(world_size, bool)
        ):
            raise TypeError(f"world_size must be an int or None, not {world_size!r}")
        # A job's own prefix may stand behind others', as torchrun's and the process group's.
        form = f"/{FORM}"
        # Of a connection whose answers are bounded, since this one holds the GIL until it has its.
        keys = Connection(store).store.list_keys()
        jobs = sorted(key.removesuffix(form) for key in keys if key.endswith(form))
        if prefix is None:
            wanted = jobs
        elif prefix in jobs:
            wanted = [prefix]
        else:
            wanted = [job for job in jobs if job.endswith(f"/{prefix}")]
        if not jobs:
            raise LookupError(_NOTHING)
        if not wanted:
            raise LookupError(
                f"no rank has published anything under the prefix {prefix!r} in this store; "
                f"there is {', '.join(jobs)}"
            )
        if len(wanted) > 1:
            raise LookupError(
                f"there are several jobs in this store, choose one by its prefix: "
                f"{', '.join(wanted)}"
            )
        self.prefix = wanted[0]
        form_there = answered(Board(store, 1, self.prefix).form)
        if form_there is None:
            raise LookupError(_NOTHING)
        self.world_size, self.every = form_there
        if world_size not in (None, self.world_size):
            raise ValueError(f"the job's world size is {self.world_size}, not {world_size}")
        self._board = Board(store, self.world_size, self.prefix)
        # Of each rank its step and when it was published, by this process's clock, and its rate.
        self._before: dict[int, tuple[int, float, float | None]] = {}

    def look(self) -> View:
        """Return how the job stands now. O(number of ranks)."""
        seen = answered(self._board.read)
        now = time.monotonic()
        steps = [step for step, *_ in seen.values()]
        first, last = max(steps, default=0), min(steps, default=0)
        ranks = []
        for rank in range(self.world_size):
            if rank not in seen:
                ranks.append(RankView(rank))
                continue
            step, age, _ = seen[rank]
            rate = self._rate(rank, step, now - age)
            ranks.append(RankView(rank, step, rate, age, first - step))
        return View(first, first - last, tuple(ranks))

    def __repr__(self) -> str:
        return f"<Observer of {self.prefix!r}, {self.world_size} ranks>"

    def _rate(self, rank: int, step: int, published: float) -> float | None:
        if rank not in self._before:
            self._before[rank] = (step, published, None)
            return None
        step_before, published_before, rate = self._before[rank]
        between = published - published_before
        # The clocks that the difference is made of tick apart.
        if between > 0.005:
            rate = (step - step_before) / between
            self._before[rank] = (step, published, rate)
        return rate


def open_store(address: str) -> Store:
    """Connect to a store by ``tcp://HOST:PORT`` or ``file:PATH``.

    Raises:
        ValueError: it is neither.
        OSError: there is no such file, or nobody answers there as a store.
        RuntimeError: what is there is no store.
    """
    if address.startswith("tcp://"):
        host, _, port = address.removeprefix("tcp://").rpartition(":")
        if host and port.isdecimal() and 0 < int(port) < 2**16:
            return _tcp_store(host.strip("[]"), int(port))
    elif address.startswith("file:"):
        path = Path(address.removeprefix("file:").removeprefix("//"))
        _check_file(path)
        return FileStore(str(path))
    raise ValueError("a store is given as tcp://HOST:PORT or file:PATH")


def _check_file(path: Path) -> None:
    """Return if a FileStore can be made of it.

    That is made in C++ with the GIL held, where it would wait for a file that is not there and for
    a lock on it, and read what is no store without end, whatever Ctrl-C says.

    Raises:
        OSError: there is no such file, or it is locked for long.
        RuntimeError: it is no store, or one that was cut short.
    """
    with path.open("r+b") as file:
        _lock(file)
        content = file.read()
    if not content.startswith(_FIRST_KEY, _LENGTH.size):
        raise RuntimeError("the file is no store of torch.distributed")
    position = number = 0
    while position + _LENGTH.size <= len(content):
        position += _LENGTH.size + _LENGTH.unpack_from(content, position)[0]
        number += 1
    if position != len(content) or number % 2:
        raise RuntimeError("the file is a store of torch.distributed that was cut short")


def _lock(file: BinaryIO) -> None:
    """Lock it as a FileStore does while it reads, until it is closed."""
    import fcntl  # not on Windows

    end = time.monotonic() + PATIENCE
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() > end:
                raise TimeoutError("the file is locked by another process") from None
            time.sleep(0.01)
        else:
            return


def _tcp_store(host: str, port: int) -> TCPStore:
    find_host(host, port)
    return answered(
        partial(
            TCPStore,
            host,
            port,
            is_master=False,
            wait_for_workers=False,
            timeout=timedelta(seconds=PATIENCE),
        )
    )
