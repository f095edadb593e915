"""What stands where in a job's store. It imports PyTorch and the connection.

All keys are below the job's prefix: ``job/form`` (what all ranks must agree on), ``job/step`` and
``won/…`` (see `rises`), and ``rank/N``, what rank N has published last.
"""

from __future__ import annotations

import time
from typing import NamedTuple

from torch._C._distributed_c10d import PrefixStore, Store

from kineto_step_tracker.fleet.connection import Connection

FORM = "job/form"
_FORMAT = "1"
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

    Args:
        store: a `torch.distributed` store. A connection of its own is made to it.
        world_size: how many ranks the job has.
        prefix: what the keys begin with. Jobs with different ones do not mix.

    Raises:
        OSError, RuntimeError: the store does not answer. So do all methods.
    """

    def __init__(self, store: Store, world_size: int, prefix: str) -> None:
        self._connection = Connection(store)
        self.store = PrefixStore(prefix, self._connection.store)
        self._world_size = world_size
        # To read a key that is not there would wait for it.
        self._are_all_there = False

    def agree(self, every: int) -> None:
        """Agree with the other ranks on what the job is, or raise `FleetError`."""
        ours = f"{_FORMAT} {self._world_size} {every}"
        theirs = self.store.compare_set(FORM, "", ours).decode()
        if theirs != ours:
            raise FleetError(
                "another job uses this prefix in this store, or its ranks were not all given the "
                f"same: (format, world_size, every) are ({', '.join(theirs.split())}) there and "
                f"({', '.join(ours.split())}) here"
            )

    def form(self) -> tuple[int, int] | None:
        """Return the world size and ``every`` of the job, or None if nobody has published."""
        theirs = self.store.compare_set(FORM, "", "").decode().split()
        if not theirs:
            return None
        if theirs[0] != _FORMAT:
            raise FleetError("the job was published by another version of this package")
        return int(theirs[1]), int(theirs[2])

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
            text.decode()
            for first in range(0, len(keys), _AT_ONCE)
            for text in self.store.multi_get(keys[first : first + _AT_ONCE])
        ]
        clock = time.time()
        published = {rank: text.split() for rank, text in enumerate(texts) if text}
        return {
            rank: Published(int(step), max(0.0, clock - float(when)), identity)
            for rank, (step, when, identity) in published.items()
        }

    def end(self) -> None:
        """Let whoever waits for an answer fail at once, on whatever thread."""
        self._connection.end()
