"""What stands where in a job's store. It imports PyTorch and the connection.

All keys are below the job's prefix: ``job/form`` (what all ranks must agree on), ``job/step`` and
``won/…`` (see `rises`), and ``rank/N``, what rank N has published last.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

from torch._C._distributed_c10d import PrefixStore, Store

from kineto_step_tracker.fleet.connection import Connection

FORM = "job/form"
_FORMAT = "1"
# The size of a job is believed up to this.
MOST_RANKS = 9_999_999
# As many values are read by one request.
_AT_ONCE = 1_000


class FleetError(RuntimeError):
    """What the store holds is not this job's."""


class Published(NamedTuple):
    """What a rank has published last: its step, how many seconds ago, and which process it was."""

    step: int
    age: float
    identity: str


class Board:
    """What the ranks of a job have written into its store. Every method waits for the store.

    ``store`` is the store as it is used here. ``own`` is the connection below it, to which another
    connection can be made when that is broken, without keeping alive who was given.

    Args:
        store: a `torch.distributed` store. A connection of its own is made to it.
        world_size: how many ranks the job has.
        prefix: what the keys begin with. Jobs with different ones do not mix.

    Raises:
        OSError, RuntimeError: the store does not answer. So do all methods.
    """

    def __init__(self, store: Store, world_size: int, prefix: str) -> None:
        self._connection = Connection(store)
        self.own = self._connection.store
        self.store = PrefixStore(prefix, self.own)
        self._world_size = world_size
        # To read a key that is not there would wait for it.
        self._are_all_there = False

    def agree(self, every: int) -> None:
        """Agree with the other ranks on what the job is, or raise `FleetError`."""
        ours = f"{_FORMAT} {self._world_size} {every}"
        theirs = self.store.compare_set(FORM, "", ours).decode()
        if theirs != ours:
            there = self.form() or (0, 0)
            names = ("world_size", "every")
            differ = zip(names, there, (self._world_size, every), strict=True)
            raise FleetError(
                "another job uses this prefix in this store, or its ranks were not all given the "
                "same: "
                + ", ".join(f"{name} is {a} there and {b} here" for name, a, b in differ if a != b)
            )

    def form(self) -> tuple[int, int] | None:
        """Return the world size and ``every`` of the job, or None if nobody has published."""
        theirs = self.store.compare_set(FORM, "", "").decode()
        if not theirs:
            return None
        found = re.fullmatch(rf"{_FORMAT} (\d{{1,7}}) (\d+)", theirs)
        if found is None:
            raise FleetError(
                f"{FORM} was written by another version of this package, or by something else: "
                f"{theirs[:60]!r}"
            )
        return int(found[1]), int(found[2])

    def publish(self, rank: int, step: int, identity: str) -> None:
        """Say how far a rank is, and by which process."""
        self.store.set(f"rank/{rank}", f"{step} {time.time():.3f} {identity}")

    def read(self) -> dict[int, Published]:
        """Return what each rank has published. Those that have not are left out."""
        keys = [f"rank/{rank}" for rank in range(self._world_size)]
        if not self._are_all_there:
            if not self.store.check(keys):
                for key in keys:
                    self.store.compare_set(key, "", "")
            self._are_all_there = True
        texts = [
            text.decode(errors="replace")
            for first in range(0, len(keys), _AT_ONCE)
            for text in self.store.multi_get(keys[first : first + _AT_ONCE])
        ]
        clock = time.time()
        published = {}
        for rank, text in enumerate(texts):
            # What something else has written there is no step of a rank.
            found = re.fullmatch(r"(\d+) (\d+\.\d+) (\w+)", text)
            if found is not None:
                step, when, identity = found.groups()
                published[rank] = Published(int(step), max(0.0, clock - float(when)), identity)
        return published

    def end(self) -> None:
        """Let whoever waits for an answer fail at once, on whatever thread."""
        self._connection.end()
