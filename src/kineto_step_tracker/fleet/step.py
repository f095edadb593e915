"""What a rank uses: its step published, the job's step raised, the others' steps read.

It imports PyTorch, the board, the rises and the drop-in. It promises that no thread of the program
waits for the store, except as long as it says where the ranks' steps are asked for, and that no
error of the store or of a callback reaches one.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import random
import threading
import time
import uuid
import warnings
from collections.abc import Callable
from typing import NamedTuple, NoReturn, Protocol, Self

import torch.distributed
from torch._C._distributed_c10d import Store

from kineto_step_tracker.drop_in import KinetoStepTracker
from kineto_step_tracker.fleet.board import MOST_RANKS, Board, FleetError
from kineto_step_tracker.fleet.rises import Rises

_log = logging.getLogger("kineto_step_tracker.fleet")

_LONGEST_PAUSE = 60.0
_REMEDY = "pass it, or call torch.distributed.init_process_group() first"
# Far from what a lock can be waited for.
_MOST_SECONDS = 1_000_000


class RankStep(NamedTuple):
    """The step that a rank last published, and how many seconds ago, by the ranks' clocks."""

    step: int
    age: float


class Steps(Protocol):
    """What a rank counts with."""

    def current_step(self) -> int:
        """Return the step that it has come to."""
        ...


class FleetStep:
    """The step of a job with many ranks: the largest of any rank's, and one callback per rise.

    A thread of its own publishes this rank's step every ``interval`` seconds. When the step has
    passed a multiple of ``every``, that thread raises the job's step to it in the store by
    compare-and-swap. Of all ranks one succeeds, and that one runs ``on_step``, once for each
    multiple passed, in order. So a callback comes up to ``interval`` late, runs on that thread, and
    keeps it from publishing meanwhile; two callbacks may run at once if different ranks won.

    The job's step begins at the step of the rank that is there first, as a tracker's does at its
    ``start``: what was counted before, or in a run before this one, calls nothing.

    If the store is slow, full or gone, that is reported once through `logging` and `warnings` and
    tried again, after up to a minute; meanwhile the ages grow. Nothing of it reaches the thread
    that trains, nor does an exception from ``on_step``, which is logged. A rise whose winner dies
    before it ran the callback goes without: exactly once becomes at most once. Where the store
    itself loses what it held, a multiple that only a rank which is gone had seen raised may be
    called again. A rank that restarts goes on under its number.

    Args:
        store: a `torch.distributed` store; None for the job's default one, after
            ``init_process_group()``. It is left alone: the thread has a connection of its own.
        tracker: what counts in this process: has ``current_step()``.
        rank: this process's number, from 0; None for the process group's or torchrun's.
        world_size: how many there are, from 1; None likewise.
        every: of which multiples a callback runs, from 1; the same in all ranks.
        on_step: called with a multiple of ``every``. Ranks without one take no part in that.
        interval: in seconds, above 0 and up to a million.
        prefix: what the keys in the store begin with. Jobs on one store need different ones.

    Raises:
        TypeError, ValueError: an argument is of another type, or out of range.
        RuntimeError: there is no default store, rank or world size to take.

    Thread-safe. A context manager that closes on exit; at the end of the process it closes
    itself. In a child of `os.fork` it is closed.

    >>> from kineto_step_tracker import StepTracker
    >>> tracker = StepTracker()
    >>> store = torch.distributed.HashStore()
    >>> with FleetStep(store, tracker=tracker, rank=0, world_size=1, interval=0.01) as fleet:
    ...     _ = tracker.increment_step("SGD#1")
    ...     fleet.current_step()
    1
    """

    def __init__(
        self,
        store: Store | None = None,
        *,
        tracker: Steps = KinetoStepTracker,
        rank: int | None = None,
        world_size: int | None = None,
        every: int = 1,
        on_step: Callable[[int], object] | None = None,
        interval: float = 1.0,
        prefix: str = "kineto_step_tracker",
    ) -> None:
        if store is not None and not isinstance(store, Store):
            raise TypeError(f"store must be a torch.distributed store or None, not {store!r}")
        if not callable(getattr(tracker, "current_step", None)):
            raise TypeError(f"tracker must have current_step(), not be {tracker!r}")
        self._world_size = _whole("world_size", _own("world_size", world_size), 1, MOST_RANKS)
        self._rank = _whole("rank", _own("rank", rank), 0, self._world_size - 1)
        self._every = _whole("every", every, 1)
        if on_step is not None and not callable(on_step):
            raise TypeError(f"on_step must be callable or None, not {on_step!r}")
        self._interval = _seconds("interval", interval, may_be_0=False)
        if not isinstance(prefix, str):
            raise TypeError(f"prefix must be a str, not {prefix!r}")
        if not prefix:
            raise ValueError("prefix must not be empty")
        if prefix != prefix.encode(errors="ignore").decode():
            raise ValueError(f"prefix must be text that UTF-8 can hold, not {prefix!r}")
        try:
            start = tracker.current_step()
        except Exception as error:
            raise TypeError(
                f"tracker.current_step() must work, which for {tracker!r} it does not: {error}"
            ) from error
        start = _whole("tracker.current_step()", start, 0)
        # Until there is a connection; then that, since whoever holds the store of a process group
        # after its end keeps its host alive, which the next group then takes for its own.
        self._store: Store | None = _default_store() if store is None else store
        self._tracker = tracker
        self._on_step = on_step
        self._prefix = prefix
        # Tells this process from another that goes by the same rank.
        self._identity = uuid.uuid4().hex
        self._rises = Rises(self._identity, every, start, self._call)
        # Of its thread only; in close() too, to end it.
        self._board: Board | None = None
        self._calling: int | None = None
        self._is_double = False

        # Guards what follows, which the thread and its readers share.
        self._changed = threading.Condition()
        self._process = os.getpid()
        self._in_trouble = False
        self._is_closing = False
        self._is_wanted = False
        self._steps: dict[int, RankStep] = {}
        self._read_at = -float("inf")
        self._highest = 0
        self._thread = threading.Thread(
            target=self._run, name=f"kineto-step-tracker fleet, rank {self._rank}", daemon=True
        )
        self._thread.start()
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        state = "" if self._is_open() else ", closed"
        return f"<FleetStep {self._prefix!r}, rank {self._rank} of {self._world_size}{state}>"

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            "a FleetStep can be neither pickled nor copied: it has a thread and a "
            "connection of its own, as this rank of the job"
        )

    def current_step(self) -> int:
        """Return the largest step of any rank, of this one as it is now; it never falls.

        Waits as `steps` does.
        """
        self.steps()
        own = self._tracker.current_step()
        if self._process != os.getpid():
            return max(self._highest, own)
        with self._changed:
            self._highest = max(self._highest, own)
            return self._highest

    def steps(self) -> dict[int, RankStep]:
        """Return what each rank has last published; those that never have are left out.

        What was read less than ``interval`` ago is not read again. Otherwise it waits for the
        store, though no longer than ``interval``: then it is what was read before, with its ages.
        While there is trouble with the store it does not wait. O(number of ranks).
        """
        if self._process != os.getpid():
            return dict(self._steps)  # the lock may be the parent's for ever
        is_in_callback = threading.current_thread() is self._thread
        if is_in_callback:
            self._read_in_callback()
        with self._changed:
            is_old = time.monotonic() - self._read_at > self._interval
            if is_old and self._is_open() and not is_in_callback:
                before = self._read_at
                self._is_wanted = True
                self._changed.notify_all()
                self._changed.wait_for(
                    lambda: self._read_at != before or self._in_trouble or not self._is_open(),
                    self._interval,
                )
            steps, since = self._steps, max(0.0, time.monotonic() - self._read_at)
        return {rank: RankStep(step, age + since) for rank, (step, age) in steps.items()}

    def skew(self) -> int:
        """Return the largest step of any rank minus the smallest. Waits as `steps` does."""
        steps = [step for step, _ in self.steps().values()]
        return max(steps, default=0) - min(steps, default=0)

    def stragglers(self, behind: int = 1) -> list[int]:
        """Return the ranks that lag by ``behind`` steps or more, or have not published.

        Waits as `steps` does.

        Args:
            behind: how many steps behind the rank that is furthest ahead, from 1.

        Raises:
            TypeError, ValueError: ``behind`` is no int, or below 1.
        """
        _whole("behind", behind, 1)
        steps = self.steps()
        furthest = max((step for step, _ in steps.values()), default=0)
        return [
            rank
            for rank in range(self._world_size)
            if rank not in steps or furthest - steps[rank].step >= behind
        ]

    def close(self, timeout: float = 2.0) -> None:
        """Publish the last step and end the thread. To close again does nothing.

        Args:
            timeout: how many seconds to wait for that, at most, from 0.

        Raises:
            TypeError, ValueError: ``timeout`` is no number, or below 0.
        """
        patience = _seconds("timeout", timeout, may_be_0=True) / 2
        if self._process != os.getpid():
            return
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()
        if threading.current_thread() is self._thread:
            return
        self._thread.join(patience)
        end = time.monotonic() + patience
        while self._thread.is_alive() and time.monotonic() < end:
            if (board := self._board) is not None:
                board.end()
            self._thread.join(min(0.05, patience))
        if not self._thread.is_alive():
            atexit.unregister(self.close)
            return
        # The end of the process is to wait for it once more.
        step = self._calling
        if step is not None:
            _warn(
                f"on_step({step}) is still running, and is cut off if the process ends now; "
                "close(timeout) waits longer"
            )

    def _is_open(self) -> bool:
        return self._process == os.getpid() and not self._is_closing and self._thread.is_alive()

    def _run(self) -> None:
        try:
            self._go_on()
        finally:
            self._board = self._store = None

    def _go_on(self) -> None:
        pause, due = 0.0, 0.0
        # Ranks begin together, and are not to ask all at once ever after.
        stagger = random.random()
        while True:
            with self._changed:
                self._changed.wait_for(self._is_called, pause)
                is_last, is_wanted = self._is_closing, self._is_wanted
                self._is_wanted = False
            try:
                if self._board is None:
                    self._enter()
                if is_last or time.monotonic() >= due:
                    due = time.monotonic() + self._interval * (1 + stagger)
                    stagger = 0.0
                    self._publish()
                if is_wanted:
                    self._read()
                self._end_trouble()
                pause = max(0.0, due - time.monotonic())
            except Exception as error:
                # A connection that failed once may be out of step with the store.
                self._board = None
                self._report(error)
                if isinstance(error, FleetError) or self._is_closing:
                    return
                pause = min(max(2 * pause, self._interval), _LONGEST_PAUSE)
                due = 0.0
            if is_last:
                return

    def _is_called(self) -> bool:
        return self._is_closing or (self._is_wanted and not self._in_trouble)

    def _enter(self) -> None:
        assert self._store is not None
        self._board = Board(self._store, self._world_size, self._prefix)
        self._store = self._board.own
        self._board.agree(self._every)
        self._rises.enter(self._board.store)

    def _publish(self) -> None:
        assert self._board is not None
        step = _whole("tracker.current_step()", self._tracker.current_step(), 0)
        self._board.publish(self._rank, step, self._identity)
        # One who has nothing to call leaves the rises to those who have, but asks, since only what
        # is answered shows that the store is there.
        self._rises.raise_to(self._board.store, 0 if self._on_step is None else step)

    def _call(self, step: int) -> None:
        assert self._on_step is not None
        status: object = 0
        self._calling = step
        try:
            self._on_step(step)
        except BaseException as error:
            status = error.code if isinstance(error, SystemExit) else 1
            if self._process == os.getpid():
                with contextlib.suppress(Exception):
                    _log.exception("on_step(%d) raised an exception; training goes on", step)
        if self._process != os.getpid():
            # It has forked, and this is the child's one thread, which holds what is the parent's.
            os._exit(status if isinstance(status, int) else status is not None)
        self._calling = None

    def _read(self) -> None:
        assert self._board is not None
        published = self._board.read()
        own = published.get(self._rank)
        if own is not None and own.identity != self._identity and not self._is_double:
            self._is_double = True
            _warn(f"another FleetStep, here or elsewhere, publishes as rank {self._rank} too")
        steps = {rank: RankStep(step, age) for rank, (step, age, _) in published.items()}
        with self._changed:
            self._steps, self._read_at = steps, time.monotonic()
            self._highest = max(self._highest, self._rises.step, *(s for s, _ in steps.values()), 0)
            self._changed.notify_all()

    def _read_in_callback(self) -> None:
        if self._board is None:
            return  # from a logging handler, while trouble is reported
        try:
            self._read()
        except Exception:
            # What is not answered now may be later, to another question. What this thread asks
            # next is to fail, and will be reported.
            self._board.end()

    def _report(self, error: Exception) -> None:
        with self._changed:
            is_news = not self._in_trouble
            self._in_trouble = True
            self._changed.notify_all()
        if isinstance(error, FleetError):
            _warn(f"rank {self._rank} publishes nothing: {error}")
        # At its end a job loses its store, as the ranks do not end at one moment.
        elif is_news and not self._is_closing:
            reason = next(iter(str(error).splitlines()), "") or type(error).__name__
            _warn(
                f"rank {self._rank} cannot publish its step in the job's store, "
                f"and tries again: {reason}"
            )

    def _end_trouble(self) -> None:
        if self._in_trouble:
            self._in_trouble = False
            with contextlib.suppress(Exception):
                _log.info("rank %d reaches the job's store again", self._rank)


def _warn(message: str) -> None:
    """Say it where it is seen. Handlers may fail and warnings be errors, which none could catch."""
    with contextlib.suppress(Exception):
        _log.warning(message)
    with contextlib.suppress(Exception):
        warnings.warn(f"kineto_step_tracker.fleet: {message}", RuntimeWarning, stacklevel=2)


def _whole(name: str, number: object, least: int, most: int = 2**62) -> int:
    if not isinstance(number, int) or isinstance(number, bool):
        raise TypeError(f"{name} must be an int, not {number!r}")
    if not least <= number <= most:
        up_to = "2**62" if most == 2**62 else most
        raise ValueError(f"{name} must be from {least} to {up_to}, not {number}")
    return number


def _seconds(name: str, number: object, *, may_be_0: bool) -> float:
    if isinstance(number, bool) or not isinstance(number, int | float):
        raise TypeError(f"{name} must be a number of seconds, not {number!r}")
    if not 0 <= number <= _MOST_SECONDS or (number == 0 and not may_be_0):
        bounds = "from 0 to" if may_be_0 else "above 0 and at most"
        raise ValueError(f"{name} must be {bounds} {_MOST_SECONDS} seconds, not {number!r}")
    return float(number)


def _own(name: str, given: int | None) -> int:
    """Return this process's rank or world size, if it is not given."""
    if given is not None:
        return given
    if torch.distributed.is_initialized():
        ask = {"rank": torch.distributed.get_rank, "world_size": torch.distributed.get_world_size}
        return ask[name]()
    text = os.environ.get(name.upper(), "")
    if text.isdecimal():
        return int(text)
    raise RuntimeError(
        f"{name} is not given, and there is neither a process group nor torchrun's {name.upper()} "
        f"in the environment; {_REMEDY}"
    )


def _default_store() -> Store:
    if not torch.distributed.is_initialized():
        raise RuntimeError(f"store is not given, and there is no process group; {_REMEDY}")
    return torch.distributed.distributed_c10d._get_default_store()
