"""How many ranks can publish their step in one store, and how busy is the store's host with that?

    python benchmarks/fleet.py --json docs/benchmarks/fleet.json --plot docs/benchmarks/fleet.svg

Measures how much processor time the store's process takes for each operation, and predicts from
that alone how busy it is with a job's ranks. Then it lets 300 and 1000 clients publish, each over a
connection of its own, which says whether that is right. All of them are on this machine, so how
long a client waits is mostly for the others. Takes two minutes. Needs PyTorch and, for a
picture, matplotlib.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import time
from bisect import bisect_right
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from itertools import chain, count, pairwise
from multiprocessing import get_context
from operator import itemgetter
from pathlib import Path
from statistics import median, quantiles
from typing import Any, TypeVar
from uuid import uuid4

# PyTorch looks up the names of both ends of a connection, and a store's host serves nobody
# meanwhile. Where no name server answers that can take 5 s, and a thousand are made here.
os.environ.setdefault("RES_OPTIONS", "timeout:1 attempts:1")
os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")

from rich.console import Console
from rich.progress import Progress
from rich.table import Table
from torch._C._distributed_c10d import Store, TCPStore

from kineto_step_tracker.bench import environment
from kineto_step_tracker.bench.report import human, ran_on
from kineto_step_tracker.fleet.board import Board
from kineto_step_tracker.fleet.rises import STEP, Rises

RANKS = (8, 1_000, 10_000)
INTERVALS = (0.1, 1.0, 10.0)
HALF = 0.5
MOST_CLIENTS = 8

# What each rank does once an interval, besides publishing: nothing, at a time of its own; try to
# raise the job's step, all at the same time, which is the worst there is; look at all ranks.
CALM, RISES, LOOKS = "no rise", "all try for a rise", "all look at all"

Row = dict[str, Any]
Operation = Callable[[], object]
_Result = TypeVar("_Result")


def _change(store: Store, key: str) -> Operation:
    numbers = pairwise(map(str, count()))
    store.set(key, "0")
    return lambda: store.compare_set(key, *next(numbers))


def _publication(store: Store, key: str, rivals: int = 1, pause: float = 0.0) -> Operation:
    """Publish. If there are rivals, each time one wins a rise from another."""
    board = Board(store, 1, key)
    rises = [Rises(f"{number:032}", 1, 0, str) for number in range(rivals)]
    for one in rises:
        one.enter(board.store)
    steps = count(1) if rivals > 1 else count(0, 0)

    def publish() -> None:
        step = next(steps)
        board.publish(0, step, key)
        rises[step % rivals].raise_to(board.store, step)
        if pause:
            time.sleep(pause)

    return publish


def _read(store: Store, key: str, ranks: int) -> Operation:
    board = Board(store, ranks, key)
    for rank in range(ranks):
        board.publish(rank, 1_000_000, key)
    board.read()  # the first one asks for more
    return board.read


READ, APART, WON = "compare_set that reads", "publication, 8 ms apart", "publication, rise won"
LOOK = "Board.read of {} ranks".format

# By name: what makes it, given a connection and a key of its own.
OPERATIONS: dict[str, Callable[[Store, str], Operation]] = {
    "set": lambda store, key: partial(store.set, key, "1"),
    READ: lambda store, key: partial(store.compare_set, key, "", ""),
    "compare_set that changes": _change,
    "publication": _publication,
    APART: partial(_publication, pause=0.008),
    WON: partial(_publication, rivals=2),
    **{LOOK(ranks): partial(_read, ranks=ranks) for ranks in RANKS},
}

MODEL = (
    f"Predicted from the store's time only, with the most clients. '{CALM}' is '{APART}': 2 "
    f"requests. '{RISES}' is '{WON}' and '{READ}': 6 requests, of which most ranks need fewer. "
    f"'{LOOKS}' is '{CALM}' and, by the number of ranks, the line through '{LOOK(RANKS[0])}' and "
    f"'{LOOK(RANKS[-1])}': a request more for each thousand."
)


def model(operations: list[Row]) -> dict[str, tuple[float, float]]:
    """Return the store's seconds for a publication of each kind, and what a rank more adds."""
    last = {row["operation"]: row["store's time"] for row in operations}
    # Who publishes at a time of its own finds the store asleep, and to wake it costs more than to
    # be served. Those who all come at once find it awake.
    calm = last[APART]
    few, many = RANKS[0], RANKS[-1]
    each = (last[LOOK(many)] - last[LOOK(few)]) / (many - few)
    looks = calm + last[LOOK(few)] - few * each
    return {CALM: (calm, 0.0), RISES: (last[WON] + last[READ], 0.0), LOOKS: (looks, each)}


def share(cost: tuple[float, float], ranks: float, interval: float) -> float:
    """Return what share of a core the ranks of a job take of the store's host."""
    fixed, each = cost
    return ranks / interval * (fixed + ranks * each)


# What follows runs in processes of their own, which keep here what they are asked for later.
_kept: dict[str, Any] = {}


def start(port: int) -> int:
    """Be a client of the store at a port, or if that is 0 the store's host; return the port."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    _kept["store"] = TCPStore("127.0.0.1", port, is_master=port == 0, wait_for_workers=False)
    return int(_kept["store"].port)


def prepare(operation: str) -> None:
    """Make what `operate` is to do."""
    _kept["operation"] = OPERATIONS[operation](_kept["store"], uuid4().hex)


def operate(begin: float, seconds: float) -> tuple[int, float]:
    """Do it from a moment on for so long; return how many times, and the seconds it took."""
    operation = _kept["operation"]
    time.sleep(max(0.0, begin - time.time()))
    began = time.perf_counter()
    number = 0
    while time.perf_counter() - began < seconds:
        operation()
        number += 1
    # A set is not answered. What was sent before has been served when this is.
    _kept["store"].compare_set("last", "", "")
    return number, time.perf_counter() - began


# How late each publication of a rank was, when the last was done, requests, tries lost, and calls.
Played = tuple[list[float], float, int, int, list[int]]


class Rank:
    """One of many clients: does what the thread of a `FleetStep` does, when it is told to."""

    def __init__(self, rank: int, ranks: int, job: str) -> None:
        self._board = Board(_kept["store"], ranks, job)
        self._rank, self._identity = rank, f"{rank:032}"
        self._called: list[int] = []
        self._rises = Rises(self._identity, 1, 0, self._called.append)
        self._rises.enter(self._board.store)
        self._board.publish(rank, 0, self._identity)
        self._requests = self._lost = 0

    def compare_set(self, key: str, expected_value: str, desired_value: str, /) -> bytes:
        """Count, on the way to the store."""
        now = self._board.store.compare_set(key, expected_value, desired_value)
        self._requests += 1
        self._lost += key == STEP and desired_value not in ("", now.decode())
        return now

    def play(self, what: str, interval: float, rounds: int, begin: float) -> Played:
        """Publish once a round, when it is due, or at once if that is past."""
        # At a random time, as a FleetStep.
        begin += 0.0 if what == RISES else random.Random(self._rank).random() * interval
        late: list[float] = []
        for number in range(rounds):
            due = begin + number * interval
            time.sleep(max(0.0, due - time.time()))
            step = number + 1 if what == RISES else 0
            self._board.publish(self._rank, step, self._identity)
            self._rises.raise_to(self, step)
            self._requests += 1
            if what == LOOKS:
                self._requests += -(-len(self._board.read()) // 1_000)
            late.append(time.time() - due)
        return late, time.time(), self._requests, self._lost, self._called


def join(processes: int, ranks: int, job: str) -> None:
    """Be some of the ranks of a job, as the other processes are others."""
    numbers = range(_kept["store"].add(job, 1) - 1, ranks, processes)
    # Several at once, since the look-up of a name may keep one waiting.
    with ThreadPoolExecutor(16) as pool:
        _kept["ranks"] = list(pool.map(lambda rank: Rank(rank, ranks, job), numbers))


def play(*how: Any) -> list[Played]:
    """Let them play, each on a thread of its own."""
    ranks: list[Rank] = _kept["ranks"]
    with ThreadPoolExecutor(len(ranks)) as pool:
        return list(pool.map(lambda rank: rank.play(*how), ranks))


class Machine:
    """A store in a process of its own, and processes that use it."""

    def __init__(self, processes: int, cleanup: ExitStack) -> None:
        context = get_context("forkserver")
        # Else each would import it, which takes seconds.
        context.set_forkserver_preload(["kineto_step_tracker.fleet", "kineto_step_tracker.bench"])
        self._host, *self._clients = (
            cleanup.enter_context(ProcessPoolExecutor(1, context)) for _ in range(1 + processes)
        )
        self._all(start, self._host.submit(start, 0).result())

    def _busy(self) -> float:
        """Return how many seconds the store's process has had a processor."""
        return self._host.submit(time.process_time).result()

    def _all(
        self, function: Callable[..., _Result], *given: Any, clients: int | None = None
    ) -> list[_Result]:
        running = [client.submit(function, *given) for client in self._clients[:clients]]
        return [one.result() for one in running]

    def measure(self, operation: str, clients: int, seconds: float) -> Row:
        """Let so many clients do an operation at once, over and over."""
        self._all(prepare, operation, clients=clients)
        busy, begin = self._busy(), time.time() + 0.05
        done = self._all(operate, begin, seconds, clients=clients)
        return {
            "operation": operation,
            "clients": clients,
            "a second": sum(number / took for number, took in done),
            "client's time": median(took / number for number, took in done),
            "store's time": (self._busy() - busy) / sum(number for number, _ in done),
        }

    def measure_more(self, operation: str, seconds: float, tries: int) -> list[Row]:
        """Let twice as many clients do it, until that gains less than a tenth."""
        rows: list[Row] = []
        for clients in (2**power for power in range(len(self._clients).bit_length())):
            # The fastest: what disturbs one only ever makes it longer.
            found = [self.measure(operation, clients, seconds) for _ in range(tries)]
            rows.append(max(found, key=itemgetter("a second")))
            if clients > 1 and rows[-1]["a second"] < 1.1 * rows[-2]["a second"]:
                break
        return rows

    def simulate(self, ranks: int, what: str, interval: float, rounds: int) -> Row:
        """Connect so many ranks, and let them publish for some rounds."""
        self._all(join, len(self._clients), ranks, uuid4().hex)
        busy, begin = self._busy(), time.time() + 0.5
        played = chain(*self._all(play, what, interval, rounds, begin))
        late, done, requests, lost, called = zip(*played, strict=True)
        seconds = max(rounds * interval, max(done) - begin)
        cuts = quantiles(chain(*late), n=100)
        wanted = range(1, rounds + 1) if what == RISES else ()
        return {
            "ranks": ranks,
            "every": interval,
            "each": what,
            "done a second": ranks * rounds / seconds,
            "p50": cuts[49],
            "p99": cuts[98],
            "requests": sum(requests) / (ranks * rounds),
            "lost a round": sum(lost) / rounds,
            "called once": sorted(chain(*called)) == list(wanted),
            "core": (self._busy() - busy) / seconds,
        }


def run(numbers: list[int], quick: bool) -> Row:
    """Measure, and predict."""
    processes, tries, seconds, whole = (2, 1, 0.01, 0.2) if quick else (MOST_CLIENTS, 3, 0.25, 8.0)
    intervals = (0.2,) if quick else (1.0, 0.2)
    todo = [(one, what, each) for one in numbers for each in intervals for what in (CALM, RISES)]
    # Once, with few: the clients take more for that than the store does.
    todo.append((min(numbers), LOOKS, intervals[0]))
    operations: list[Row] = []
    simulated: list[Row] = []
    # Refreshed between measurements only: a thread that does it would be measured too.
    with ExitStack() as cleanup, Progress(transient=True, auto_refresh=False) as bar:
        task = bar.add_task("", total=len(OPERATIONS) + len(todo))
        machine = Machine(processes, cleanup)
        for operation in OPERATIONS:
            bar.update(task, description=operation, advance=1, refresh=True)
            operations += machine.measure_more(operation, seconds, tries)
        costs = model(operations)
        for ranks, what, interval in todo:
            bar.update(task, description=f"{ranks} ranks, {what}", advance=1, refresh=True)
            row = machine.simulate(ranks, what, interval, round(whole / interval))
            simulated.append({**row, "predicted": share(costs[what], ranks, interval)})
    return {
        "environment": environment(),
        "quick": quick,
        "operations": operations,
        "model": {"is": MODEL, "costs": costs},
        "simulated": simulated,
        "predicted": [
            {"ranks": ranks, "every": each}
            | {what: share(cost, ranks, each) for what, cost in costs.items()}
            for ranks in RANKS
            for each in INTERVALS
        ],
        "ranks at half a core": {
            what: bisect_right(range(10**7), HALF, key=lambda ranks: share(cost, ranks, 1.0)) - 1
            for what, cost in costs.items()
        },
    }


def draw(found: Row, file: Path) -> None:
    """Draw how busy the store's host is, by the number of ranks."""
    from matplotlib.ticker import FuncFormatter

    from kineto_step_tracker.drawing import INK, picture

    ranks = [10 ** (exponent / 8) for exponent in range(8, 41)]
    kinds = {CALM: ("-", "o", INK), RISES: ("--", "o", "none"), LOOKS: (":", "s", "none")}
    title = "What the ranks of a job take of their store's host"
    with picture(file, (11, 6), title, ran_on(found["environment"])) as figure:
        axes = figure.subplots()
        axes.grid(True)
        for interval, colour in zip(INTERVALS, ("#cf222e", "#2f81f7", "#1a7f37"), strict=True):
            for what in kinds if interval == 1 else (CALM, RISES):
                shares = [
                    share(found["model"]["costs"][what], number, interval) for number in ranks
                ]
                label = f"every {interval:g} s, {what}"
                axes.plot(ranks, shares, kinds[what][0], color=colour, lw=1.6, label=label)
        for line, text in ((1.0, "one core"), (HALF, "half a core")):
            axes.axhline(line, color=INK, lw=0.8)
            axes.annotate(text, (11, line), va="bottom", size=8)
        for what, (_, marker, face) in kinds.items():
            rows = [row for row in found["simulated"] if (row["each"], row["every"]) == (what, 1)]
            x, y = ([row[axis] for row in rows] for axis in ("ranks", "core"))
            label = f"simulated, every 1 s, {what}"
            axes.plot(x, y, marker, color=INK, mfc=face, zorder=3, label=label)
        axes.set(xscale="log", yscale="log", xlim=(10, 100_000), ylim=(1e-4, 10))
        axes.set(xlabel="ranks", ylabel="share of one core")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_formatter(FuncFormatter(lambda number, _: f"{number:,g}"))
        figure.legend(loc="outside right center", frameon=False)


SECONDS = ("client's time", "store's time", "every", "p50", "p99")
NUMBERS = ("a second", "done a second", "requests", "lost a round")


def _show(column: str, value: object) -> str:
    if not isinstance(value, float):
        return str(value)
    if column in SECONDS or column in NUMBERS:
        return human(value, "s" if column in SECONDS else "")
    return f"{value:.2%}" if value < 1 else f"{value:.1f} cores"


def table(title: str, rows: list[Row]) -> Table:
    made = Table(*rows[0], title=title, title_justify="left")
    for row in rows:
        made.add_row(*(_show(*cell) for cell in row.items()))
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    parser.add_argument("--plot", type=Path, help="draw the load by the number of ranks to it")
    parser.add_argument("--ranks", type=int, nargs="+", default=[300, 1_000], help="to simulate")
    parser.add_argument("--quick", action="store_true", help="measure little")
    chosen = parser.parse_args()
    found = run(chosen.ranks, chosen.quick)
    # A table of this width is worth no less in a file than on a wide terminal.
    console = Console() if Console().is_terminal else Console(width=140)
    console.print(
        ran_on(found["environment"]),
        table("what a TCPStore serves", found["operations"]),
        table(
            "ranks simulated: how long after it was due each publication was done, its requests, "
            "tries lost, whether each multiple was called once, and the share of a core",
            found["simulated"],
        ),
        table("predicted: the share of a core of the store's host", found["predicted"]),
        found["model"]["is"],
        f"Ranks that take half a core at an interval of 1 s: {found['ranks at half a core']}",
        sep="\n",
    )
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n")
    if chosen.plot:
        draw(found, chosen.plot)


if __name__ == "__main__":
    main()
