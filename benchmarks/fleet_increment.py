"""Is an increment slower while a `FleetStep` publishes beside it?

    python benchmarks/fleet_increment.py --json docs/benchmarks/fleet_increment.json

Times the drop-in class alone, alone once more, which shows the noise, and beside a FleetStep that
publishes as often as by default or ten times as often. The store's host is in this process too, as
it may be in rank 0. Takes four minutes. Needs PyTorch.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import partial
from operator import truediv
from pathlib import Path
from statistics import median
from typing import Any
from uuid import uuid4

from rich.progress import Progress
from torch._C._distributed_c10d import Store, TCPStore

from kineto_step_tracker.bench import Spread, environment
from kineto_step_tracker.bench.clocks import Work
from kineto_step_tracker.bench.contenders import Contender, stage
from kineto_step_tracker.bench.report import human, ran_on
from kineto_step_tracker.fleet import FleetStep

ALONE, AGAIN = "alone", "alone, again"


@contextmanager
def beside(alone: Work, store: Store, interval: float) -> Iterator[None]:
    """Run a FleetStep that has published once already."""
    with (
        alone.around(),
        FleetStep(store, rank=0, world_size=1, interval=interval, prefix=uuid4().hex) as fleet,
    ):
        while not fleet.steps():
            time.sleep(0.01)
        yield


def measure(
    store: Store, rising: bool, turns: int, seconds: float, watch: Callable[[], object]
) -> dict[str, list[float]]:
    """Return how long an increment took, turn by turn, each measured for about so many seconds."""
    alone = stage(Contender.DROP_IN, ["SGD#1"], rising).work("SGD#1")
    works = {ALONE: alone, AGAIN: alone}
    for interval in (1.0, 0.1):
        around = partial(beside, alone, store, interval)
        works[f"beside, every {interval:g} s"] = Work(alone.statement, alone.names, around)
    times = int(seconds / min(alone.time(100_000) for _ in range(5)) * 100_000)
    found: dict[str, list[float]] = {which: [] for which in works}
    # Not the best of short runs, as elsewhere: those would be the ones without a publication.
    for turn in range(turns):
        for number in range(len(works)):
            which = list(works)[(turn + number) % len(works)]
            found[which].append(works[which].time(times) / times)
            watch()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--turns", type=int, default=8, help="measurements of each")
    # The second publication comes, at random, one to two intervals after the first.
    parser.add_argument("--seconds", type=float, default=2.1, help="of each measurement")
    parser.add_argument("--json", type=Path, help="write what was measured to this file")
    chosen = parser.parse_args()
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    rows: list[dict[str, Any]] = []
    with Progress(transient=True, auto_refresh=False) as bar:
        task = bar.add_task("increments", total=2 * 4 * chosen.turns)
        watch = partial(bar.update, task, advance=1, refresh=True)
        for what, rising in (("no rise", False), ("rise", True)):
            found = measure(store, rising, chosen.turns, chosen.seconds, watch)
            for which, took in found.items():
                ratio = asdict(Spread.of(map(truediv, took, found[ALONE])))
                rows.append({"what": what, "which": which, "seconds": took, "ratio": ratio})
    print(ran_on(environment()))
    for row in rows:
        words = "{median:.3f} ({low:.3f} to {high:.3f}) x the time alone".format(**row["ratio"])
        print(f"{row['what']:<9}{row['which']:<22}{human(median(row['seconds']), 's'):>7}, {words}")
    if chosen.json:
        written = {"environment": environment(), "rows": rows}
        chosen.json.write_text(json.dumps(written, indent=1) + "\n")


if __name__ == "__main__":
    main()
