"""Runs a small concurrent program through every schedule that can make a difference.

Threads are greenlets. Each calls `Scheduler.turn` before every operation on shared state and
goes on only when the explorer picks it, so a schedule is a list of thread numbers and the same
list always gives the same execution. `explore` starts the program again for every schedule.

Two schedules that differ only in the order of operations which do not touch each other end
alike, so one of them is enough: this is dynamic partial-order reduction with source sets and
sleep sets (Abdulla, Aronis, Jonsson and Sagonas, POPL 2014,
https://doi.org/10.1145/2535838.2535845). Which calls overlap is an outcome too, so the first
event of a call and the last event of another count as touching each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random

from greenlet import (  # type: ignore[import-untyped]
    GreenletExit,
    getcurrent,
    greenlet,
)

# Longer than any execution of the programs here by far: a thread waits or spins.
TOO_LONG = 1000

_CALLS = 1  # the bit of calls and returns; the others are given out by `bit`
_bits: dict[object, int] = {}


def bit(location: object) -> int:
    """The bit that stands for a piece of shared state in an event's masks."""
    return _bits.setdefault(location, 2 << len(_bits))


@dataclass(slots=True)
class Event:
    """One indivisible step of one thread."""

    thread: int
    position: int
    text: tuple[object, ...] = ()
    touches: int = 0
    writes: int = 0
    # For every thread, the position of its last event that had to come before this one.
    clock: Sequence[int] = ()

    def reads(self, mask: int, *text: object) -> None:
        self.touches |= mask
        self.text = text

    def changes(self, mask: int, *text: object) -> None:
        self.touches |= mask
        self.writes |= mask
        self.text = text

    def conflicts_with(self, other: Event) -> bool:
        return bool(self.writes & other.touches or self.touches & other.writes)

    def happens_before(self, other: Event) -> bool:
        return other.clock[self.thread] >= self.position


@dataclass(slots=True)
class Call:
    """A call of the program, and the events between which it lasted."""

    thread: int
    text: str
    first: int = -1
    last: int = -1
    result: object = None
    # What the callbacks that it ran have raised.
    raised: list[BaseException] = field(default_factory=list)


class Scheduler:
    """The threads of one execution, of which one runs at a time, one event at a time."""

    def __init__(self) -> None:
        self._threads: list[greenlet] = []
        self.calls: list[Call] = []
        self.events: list[Event] = []
        self.schedule: list[int] = []
        self._stopped = Event(-1, -1)
        self.begin()

    def begin(self) -> None:
        """Name what is made from here on as in every execution: by its name its accesses race."""
        self._outside = count()

    def start(self, bodies: Sequence[Callable[[], None]], hosts: Sequence[int]) -> None:
        """Bring every thread to its first event.

        A thread whose host is another thread is a signal handler on it: it may start at any
        event of its host, and the host stands still until it has ended.
        """
        self._main = getcurrent()
        self.hosts = hosts
        handled = {host for handler, host in enumerate(hosts) if handler != host}
        self._host_masks = [
            bit(("handler on", n)) if n in handled else 0 for n in range(len(hosts))
        ]
        self._started = [False] * len(bodies)
        self._calling: list[list[Call]] = [[] for _ in bodies]
        self._made = [0] * len(bodies)
        self.calls = []
        self.events = []
        self.schedule = []
        self._threads = [greenlet(body) for body in bodies]
        for number, thread in enumerate(self._threads):
            self._running = number
            thread.switch()

    def stop(self) -> None:
        """Unwind the threads that have not ended, without exploring what they do meanwhile."""
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.throw(GreenletExit)

    @property
    def exploring(self) -> bool:
        """Whether there are threads: not before they start, and not once they are stopped."""
        return bool(self._threads)

    def runnable(self) -> list[int]:
        waiting = {
            host
            for handler, host in enumerate(self.hosts)
            if handler != host and self._started[handler] and not self._threads[handler].dead
        }
        return [
            number
            for number, thread in enumerate(self._threads)
            if not thread.dead and number not in waiting
        ]

    def follow(self, schedule: Sequence[int]) -> Event:
        """Let each of these threads, in this order, do its next event; return the last event."""
        self.schedule += schedule
        while len(self.events) < len(self.schedule):
            self._threads[self.schedule[len(self.events)]].switch()
        return self.events[-1]

    def turn(self) -> Event:
        """Wait until the event that the running thread wants to do is its turn."""
        if not self._threads:
            return self._stopped
        number = self._running
        if len(self.events) == len(self.schedule):
            self._main.switch()
        # Straight from thread to thread: most of the time goes into following known schedules.
        elif (scheduled := self.schedule[len(self.events)]) != number:
            self._threads[scheduled].switch()
        self._running = number
        self._started[number] = True
        event = Event(number, len(self.events))
        self.events.append(event)
        for call in self._calling[number]:
            call.first = event.position
            event.touches |= _CALLS
        self._calling[number].clear()
        event.touches |= self._host_masks[number]
        if (host := self.hosts[number]) != number:
            event.changes(self._host_masks[host])
        return event

    def call(self, text: str) -> Call:
        """A call starts: with the next event, for what it did before nobody can see."""
        call = Call(self._running, text)
        self._calling[self._running].append(call)
        self.calls.append(call)
        return call

    def returned(self, call: Call) -> None:
        if self._threads:
            call.last = self.events[-1].position
            self.events[-1].writes |= _CALLS

    def calling(self) -> Call:
        """The innermost call that the running thread is in."""
        return next(
            call for call in reversed(self.calls) if call.thread == self._running and call.last < 0
        )

    def new_name(self) -> str:
        """A name for something that the running thread makes, the same in every schedule."""
        if not self._threads:
            return f"{next(self._outside)}"
        self._made[self._running] += 1
        return f"{self._running}.{self._made[self._running]}"

    def thread_ident(self) -> int:
        """As threading.get_ident: never 0, and a handler's is its host's."""
        return self.hosts[self._running] + 1 if self._threads else -1


scheduler = Scheduler()


@dataclass(slots=True)
class _Node:
    """A moment of the current schedule, and what there is to try at it."""

    chosen: int
    event: Event
    runnable: list[int]
    todo: set[int]
    # Threads whose next event, done here, leads to schedules that were already explored.
    asleep: dict[int, Event]


def explore(start: Callable[[], None]) -> Iterator[None]:
    """Execute a program once for every schedule that matters, and yield at the end of each.

    ``start`` calls `Scheduler.start`. An execution that is too long is yielded as it is; then
    `Scheduler.runnable` is not empty.
    """
    path: list[_Node] = []
    while True:
        start()
        if path:
            path[-1].event = scheduler.follow([node.chosen for node in path])
            _find_races(path)
        while (runnable := scheduler.runnable()) and len(path) < TOO_LONG:
            asleep: dict[int, Event] = {}
            if path:
                done = path[-1]
                asleep = {
                    number: event
                    for number, event in done.asleep.items()
                    if not event.conflicts_with(done.event)
                }
            awake = [number for number in runnable if number not in asleep]
            if not awake:
                break
            chosen = path[-1].chosen if path and path[-1].chosen in awake else awake[0]
            path.append(_Node(chosen, scheduler.follow([chosen]), runnable, {chosen}, asleep))
            _find_races(path)
        else:
            yield
        scheduler.stop()
        while path:
            node = path[-1]
            node.asleep[node.chosen] = node.event
            if untried := node.todo - node.asleep.keys():
                node.chosen = min(untried)
                break
            path.pop()
        else:
            return


def wander(start: Callable[[], None], random: Random) -> Iterator[None]:
    """Execute a program under random schedules for ever, and yield at the end of each.

    For programs with too many schedules to explore, of which `explore` changes the ends first.
    """
    while True:
        start()
        chosen = 0
        while (runnable := scheduler.runnable()) and len(scheduler.events) < TOO_LONG:
            if chosen not in runnable or random.random() < 0.25:
                chosen = random.choice(runnable)
            scheduler.follow([chosen])
        yield
        scheduler.stop()


def _find_races(path: list[_Node]) -> None:
    """Where the last event races with an earlier one, ask for a schedule that reverses the two."""
    last = path[-1].event
    clock = [-1] * len(scheduler.hosts)
    races = []
    for index in range(len(path) - 2, -1, -1):
        event = path[index].event
        if clock[event.thread] >= event.position:
            continue
        if event.thread != last.thread:
            if not event.conflicts_with(last):
                continue
            races.append(index)
        clock = list(map(max, clock, event.clock))
    clock[last.thread] = last.position
    last.clock = clock
    for index in races:
        # A thread that has a handler running on it can only go before all of the handler.
        while last.thread not in path[index].runnable:
            index -= 1
        node = path[index]
        reverse = [
            later.event
            for later in path[index + 1 :]
            if not node.event.happens_before(later.event) or later.event is last
        ]
        firsts = {
            event.thread
            for number, event in enumerate(reverse)
            if not any(before.happens_before(event) for before in reverse[:number])
        }
        if not firsts & node.todo:
            node.todo.add(last.thread if last.thread in firsts else min(firsts))
