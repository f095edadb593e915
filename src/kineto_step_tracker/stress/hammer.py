"""The threads that hammer one tracker, and the checks that they make while they do.

It imports `hand`, `subjects` and what `kineto_step_tracker.stress` says of a run. It works in the
process that calls it; `kineto_step_tracker.stress.run` gives it one of its own.

What is checked: no thread sees the global step fall, nor below a count of its own; a requester
that only one thread uses has the count that this thread expects; the callback is called once
for each step, in order, never two calls at once; each error that it raises leaves exactly one
operation, and no other error does; and when all is quiet, no step is left without its callback,
and each count that was only ever incremented is the number of its increments.
"""

from __future__ import annotations

import gc
import itertools
import math
import random
import signal
import sys
import threading
import time
import weakref
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import FrameType

from kineto_step_tracker.stress import (
    Outcome,
    Plan,
    Progress,
    Scenario,
    Violation,
    environment,
)
from kineto_step_tracker.stress.hand import CallbackError, CallbackInterrupt, Hand, meddle
from kineto_step_tracker.stress.subjects import Tracker, tracker_of

_BURST = 200
_SECONDS_BETWEEN_LOOKS = 0.1
_SECONDS_BETWEEN_SIGNALS = 5e-4
_SECONDS_BETWEEN_THREADS = 1e-5
# Nobody waits for the callback; without a limit it would have work left long after the end.
_STEPS_BEHIND = 10_000
_OBJECTS_BETWEEN_COLLECTIONS = 20
_COUNTS_AT_A_GLANCE = 16
_BURSTS_BETWEEN_DUELS = 50
_TIMES_IN_A_DUEL = 20

# The requester over which all workers fight, while they do nothing else.
_DUEL = "duel"
# Three places that count outside the workers, each for a requester of its own.
_CALLBACK, _HANDLER, _FINALISER = "callback", "signal handler", "finaliser"


def hammer(
    plan: Plan,
    watch: Callable[[Progress], object] = lambda progress: None,
    patience: float = math.inf,
) -> Outcome:
    """Carry out a plan in this process, and return what came of it.

    It waits for every thread to end, so a tracker that deadlocks keeps it for ever. A plan with
    signals is for the main thread.

    Args:
        plan: what to run.
        watch: is called several times a second, on a thread of its own. What it raises ends the
            run and leaves `hammer`.
        patience: after how many seconds in which no operation has come to its end ``watch`` is
            told so, and where each thread stands.
    """
    journal = _Journal(plan)
    with tracker_of(plan.tracker, journal) as tracker:
        return _Load(plan, tracker, journal).carry_out(watch, patience)


class _Journal:
    """Stands where the tracker's callback stands, checks every call, and makes trouble."""

    hand: Hand
    contested: Sequence[str] = ()

    def __init__(self, plan: Plan) -> None:
        self.calls = 0
        self.errors = 0
        self.overlaps: list[int] = []
        self.last = 0
        self.troublesome = plan.scenario in (Scenario.CALLBACKS, Scenario.ALL)
        self._seed = plan.seed
        self._inside = threading.Lock()

    def __call__(self, step: int) -> None:
        if not self._inside.acquire(blocking=False):
            self.overlaps.append(step)
            return
        try:
            if step != self.last + 1:
                self.hand.found("a callback out of order", f"for step {step} after {self.last}")
            self.last = step
            self.calls += 1
            if self.troublesome:
                self._make_trouble(step + self._seed)
        finally:
            self._inside.release()

    def _make_trouble(self, turn: int) -> None:
        """Any one of them seldom enough for many steps a second, and often enough to be met."""
        if turn % 64 == 0:
            self.hand.increment(_CALLBACK)
            meddle(self.hand, self.contested, turn // 64)
        elif turn % 4096 == 1:
            time.sleep(1e-4)
        elif turn % 1000 == 2:
            self.errors += 1
            raise CallbackError(turn)
        elif turn % 10_007 == 3:
            self.errors += 1
            raise CallbackInterrupt(turn)


class _Load:
    """The workers, and whatever else uses the tracker at the same time."""

    def __init__(self, plan: Plan, tracker: Tracker, journal: _Journal) -> None:
        shared = [f"requester {number}" for number in range(plan.requesters)]
        churn = plan.scenario in (Scenario.CHURN, Scenario.ALL)
        only_counted = (plan.requesters + 1) // 2 if churn else plan.requesters
        self.counted, self.contested = shared[:only_counted], shared[only_counted:]
        self._plan = plan
        self._tracker = tracker
        self._journal = journal
        self._main, self._handler = Hand(tracker), Hand(tracker)
        # By thread: the collector runs finalisers one after another, on any thread.
        self._finalisers: dict[int, Hand] = {}
        self._finalised: list[None] = []
        self._signals = 0
        self._reporter: threading.Thread | None = None
        self._began = math.inf
        self._unwatched: Exception | None = None
        # Only where nothing but workers uses the tracker.
        self.duels = plan.scenario == Scenario.CHURN
        self._duel = threading.Barrier(plan.threads)
        self._duel_from = 0
        self._duel_erased: list[str] = []
        journal.hand, journal.contested = Hand(tracker), self.contested

        for requester in (*self.counted, _CALLBACK, _HANDLER, _FINALISER):
            self._main.initialise(requester)
        interrupts = plan.scenario in (Scenario.INTERRUPTS, Scenario.ALL)
        self._workers = [
            _Worker(self, tracker, f"worker {number}", plan.seed, churn, interrupts)
            for number in range(plan.threads)
        ]
        self._around = [_threads_switched_often]
        if interrupts:
            self._around += [self._signals_raining, self._collections_raining]

    def carry_out(self, watch: Callable[[Progress], object], patience: float) -> Outcome:
        over = threading.Event()
        threads = [
            # Daemons, so that threads which hang do not keep their process from ending.
            threading.Thread(target=worker.run, name=worker.name, daemon=True)
            for worker in self._workers[1:]
        ]
        # Not from threading.enumerate(), whose lock a thread that hangs may hold.
        known = [threading.current_thread(), *threads]
        self._reporter = reporter = threading.Thread(
            target=self._report, args=(over, watch, patience, known), daemon=True
        )
        self._began = time.monotonic()
        reporter.start()
        try:
            with ExitStack() as around:
                for context in self._around:
                    around.enter_context(context())
                for thread in threads:
                    thread.start()
                self._workers[0].run()
                for thread in threads:
                    thread.join()
                seconds = time.monotonic() - self._began
            self._settle()
        finally:
            over.set()
            reporter.join()
        if self._unwatched is not None:
            raise self._unwatched
        return self._outcome(seconds)

    def goes_on(self) -> bool:
        return self._unwatched is None and time.monotonic() - self._began < self._plan.seconds

    def duel(self, worker: _Worker) -> None:
        """Have all workers fight over one requester, with an exact outcome, and all quiet after.

        It has the largest count when they begin, so that initialising it must change nothing: not
        a single increment may be lost by it. Of their erases one must find the requester.
        """
        with suppress(threading.BrokenBarrierError):  # another worker has come to its end
            if self._duel.wait() == 0:
                worker.initialise(_DUEL)
                self._duel_from = self._tracker.current_step()
            self._duel.wait()
            for _ in range(_TIMES_IN_A_DUEL):
                worker.increment(_DUEL)
                worker.initialise(_DUEL)
            if self._duel.wait() == 0:
                self._check_the_duel(worker)
            self._duel.wait()
            if worker.erase(_DUEL):
                self._duel_erased.append(worker.name)
            if self._duel.wait() == 0:
                if len(self._duel_erased) != 1:
                    worker.found("a registration not erased once", f"by {self._duel_erased}")
                self._duel_erased.clear()

    def end_duels(self) -> None:
        self._duel.abort()

    def _check_the_duel(self, worker: _Worker) -> None:
        step = self._tracker.current_step()
        expected = self._duel_from + _TIMES_IN_A_DUEL * self._plan.threads
        count = self._tracker.step_counts().get(_DUEL)
        if not count == step == expected:
            seen = f"count {count}, step {step}, expected {expected}"
            worker.found("increments lost among initialisations", seen)
        self._check_that_all_steps_ran()

    def _check_that_all_steps_ran(self) -> None:
        step, last = self._tracker.current_step(), self._journal.last
        if last < step:
            self._main.found("steps without a callback", f"the last was {last} of {step}")

    def let_the_callback_catch_up(self) -> None:
        """Once a burst, and not until it has, as it is the next rise that ends an interruption."""
        if self._tracker.current_step() - self._journal.last > _STEPS_BEHIND:
            time.sleep(1e-3)

    def finalise(self, turn: int) -> None:
        if threading.current_thread() is self._reporter:
            return  # it must be able to report that the tracker hangs
        hand = self._finalisers.setdefault(threading.get_ident(), Hand(self._tracker))
        hand.increment(_FINALISER)
        meddle(hand, self.contested, turn)
        self._finalised.append(None)

    def _hands(self) -> list[Hand]:
        return [
            self._main,
            self._handler,
            self._journal.hand,
            *self._finalisers.copy().values(),
            *self._workers,
        ]

    def _report(
        self,
        over: threading.Event,
        watch: Callable[[Progress], object],
        patience: float,
        threads: Sequence[threading.Thread],
    ) -> None:
        before, idle, looked = (0, 0), 0.0, self._began
        try:
            while not over.wait(_SECONDS_BETWEEN_LOOKS):
                now = time.monotonic()
                done, step = sum(self._operations().values()), self._journal.last
                # Of a time in which the process was stopped only a second counts.
                idle = 0.0 if (done, step) != before else idle + min(now - looked, 1)
                before, looked = (done, step), now
                watch(
                    Progress(
                        now - self._began,
                        done,
                        step,
                        self._violations(),
                        tuple(_whereabouts(threads)) if idle > patience else (),
                    )
                )
        except Exception as error:
            self._unwatched = error

    def _settle(self) -> None:
        """Bring the run to its end, where every number is known, and check them."""
        hand, journal = self._main, self._journal
        journal.troublesome = False
        gc.collect()
        if self._plan.scenario in (Scenario.COUNT, Scenario.CHURN):
            self._check_that_all_steps_ran()
        # Steps that an interrupt left behind are run by the next rise.
        hand.increment("the last")
        for worker in self._workers:
            worker.look()
        increments: Counter[str] = Counter()
        for other in self._hands():
            increments.update(other.increments)
        counts = hand.look() or {}
        for requester in (*self.counted, _CALLBACK, _HANDLER, _FINALISER):
            wrong = counts.get(requester, 0) - increments[requester]
            if wrong:
                kind = "increments lost" if wrong < 0 else "increments counted twice"
                seen = f"{abs(wrong)} of the {increments[requester]} of {requester!r}"
                hand.found(kind, seen, abs(wrong))
        step = self._tracker.current_step()
        if step > increments.total():
            hand.found("more rises than increments", f"{step} of {increments.total()}")
        self._check_that_all_steps_ran()
        calls = journal.calls + len(journal.overlaps)
        if calls > step:
            hand.found("callbacks too many", f"{calls} for {step} steps", calls - step)
        if journal.overlaps:
            seen = f"for step {journal.overlaps[0]}"
            hand.found("a callback while another ran", seen, len(journal.overlaps))
        received = sum(other.errors for other in self._hands())
        if received != journal.errors:
            hand.found(
                "errors of the callback lost or doubled",
                f"{journal.errors} raised, {received} received",
            )

    def _outcome(self, seconds: float) -> Outcome:
        return Outcome(
            self._plan,
            environment(),
            seconds,
            self._operations(),
            rises=self._tracker.current_step(),
            callbacks=self._journal.calls + len(self._journal.overlaps),
            errors=self._journal.errors,
            signals=self._signals,
            finalisers=len(self._finalised),
            violations=self._violations(),
        )

    def _operations(self) -> dict[str, int]:
        operations: Counter[str] = Counter()
        for hand in self._hands():
            operations.update(hand.operations.copy())
        return dict(operations)

    def _violations(self) -> tuple[Violation, ...]:
        found: dict[str, Violation] = {}
        for hand in self._hands():
            for kind, (times, first) in hand.violations.copy().items():
                before = found.get(kind, Violation(kind, 0, first))
                found[kind] = replace(before, times=before.times + times)
        return tuple(found.values())

    @contextmanager
    def _signals_raining(self) -> Iterator[None]:
        if not hasattr(signal, "setitimer"):
            yield
            return
        handling = False

        def handle(number: int, frame: FrameType | None) -> None:
            nonlocal handling
            if handling:
                return
            handling = True
            self._signals += 1
            self._handler.increment(_HANDLER)
            meddle(self._handler, self.contested, self._signals)
            handling = False

        before = signal.signal(signal.SIGALRM, handle)
        signal.setitimer(signal.ITIMER_REAL, _SECONDS_BETWEEN_SIGNALS, _SECONDS_BETWEEN_SIGNALS)
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    @contextmanager
    def _collections_raining(self) -> Iterator[None]:
        before = gc.get_threshold()
        gc.freeze()  # what is there already is not looked through again and again
        gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
        try:
            yield
        finally:
            gc.set_threshold(*before)
            gc.unfreeze()


class _Worker(Hand):
    """One thread's work: bursts of increments, and what the scenario puts between them."""

    def __init__(
        self, load: _Load, tracker: Tracker, name: str, seed: int, churn: bool, interrupts: bool
    ) -> None:
        super().__init__(tracker)
        self.name = name
        self._load = load
        self._random = random.Random(f"{name} {seed}")
        self._handles: dict[str, Callable[[], int]] = {}
        self._own = self.handle_of(name)
        self._registered = True
        # Between these two is the count of the requester that this worker alone uses.
        self._least = self._most = 0
        self._works = [self._count_by_name, self._count_by_handle, self._count_own, self._glance]
        if churn:
            self._works += [self._initialise_own, self._erase_own, self._meddle]
        if interrupts:
            self._works += [self._litter]

    def run(self) -> None:
        try:
            for burst in itertools.count():
                if not self._load.goes_on():
                    break
                self._random.choice(self._works)()
                self._load.let_the_callback_catch_up()
                if self._load.duels and burst % _BURSTS_BETWEEN_DUELS == 0:
                    self._load.duel(self)
        except Exception as error:
            self.found("a worker died", f"{type(error).__name__}: {error}")
        finally:
            self._load.end_duels()

    def look(self) -> dict[str, int] | None:
        counts = super().look()
        if counts is None:
            return None
        count = counts.get(self.name)
        if not self._registered:
            if count is not None:
                self.found("an erased requester has a count", f"{self.name!r}: {count}")
        elif self._least > self._most:
            pass  # the global step was below a count, which has been said
        elif count is None or not self._least <= count <= self._most:
            expected = f"{self._least} to {self._most}"
            self.found("a wrong count", f"{self.name!r}: {count}, expected {expected}")
        else:
            self._least = self._most = count
        return counts

    def _count_by_name(self) -> None:
        self.increment(self._random.choice(self._load.counted), _BURST)

    def _count_by_handle(self) -> None:
        requester = self._random.choice(self._load.counted)
        if requester not in self._handles:
            self._handles[requester] = self.handle_of(requester)
        self.increment(requester, _BURST, self._handles[requester])

    def _count_own(self) -> None:
        if not self._registered:
            # The first increment of an unknown requester takes it to one above the global step.
            self._least = self._tracker.current_step() + 1
            self.increment(self.name, handle=self._own)
            self._most = self._tracker.current_step()
            self._registered = True
        times = self._random.randrange(1, 10)
        self.increment(self.name, times, self._own)
        self._least += times
        self._most += times
        step = self._tracker.current_step()
        if step < self._least:
            self.found("the global step below a count", f"{step}, {self.name!r} {self._least}")

    def _initialise_own(self) -> None:
        self._least = self._tracker.current_step()
        if self._random.random() < 0.5 or self._registered:
            self.initialise(self.name)
        else:
            self._own = self.handle_of(self.name)
        self._most = self._tracker.current_step()
        self._registered = True

    def _erase_own(self) -> None:
        erased = self.erase(self.name)
        if erased is not None and erased != self._registered:
            state = "registered" if self._registered else "unknown"
            self.found("a wrong answer to an erase", f"{erased} for one that was {state}")
        self._registered = False

    def _glance(self) -> None:
        # A look at many counts takes long, and as long it is no operation that has ended.
        if self._random.random() * len(self._load.counted) < _COUNTS_AT_A_GLANCE:
            self.look()

    def _meddle(self) -> None:
        meddle(self, self._load.contested, self._random.randrange(1_000_000))

    def _litter(self) -> None:
        _Litter(self._load, self._random.randrange(1_000_000))


class _Litter:
    """An object for the garbage collector, which uses the tracker as it dies."""

    def __init__(self, load: _Load, turn: int) -> None:
        self.itself = self
        self._load = load
        self._turn = turn
        weakref.finalize(self, load.finalise, turn)

    def __del__(self) -> None:
        self._load.finalise(self._turn + 1)


def _whereabouts(threads: Sequence[threading.Thread]) -> Iterator[str]:
    frames = sys._current_frames()
    for thread in threads:
        frame = frames.get(thread.ident or 0)
        if frame is not None:
            file = Path(frame.f_code.co_filename).name
            yield f"{thread.name} in {frame.f_code.co_qualname} ({file}:{frame.f_lineno})"


@contextmanager
def _threads_switched_often() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(_SECONDS_BETWEEN_THREADS)
    try:
        yield
    finally:
        sys.setswitchinterval(before)
