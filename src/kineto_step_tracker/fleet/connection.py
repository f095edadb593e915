"""A connection to a job's store that does not wait for ever. It imports PyTorch only.

What PyTorch's TCPStore sends and then waits for, it waits for without end, in C++, with one lock
for all who use the connection. So the fleet has a connection of its own, and bounds it from below:
by the timeouts of its socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import struct
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

# How long one answer of the store may take.
PATIENCE = 3.0


class Connection:
    """A connection of its own to what a store is connected to, with the store's prefixes.

    Args:
        store: any store of `torch.distributed`. It is not touched, nor are its timeouts.

    Raises:
        OSError, RuntimeError: the host of the store is not there.
    """

    def __init__(self, store: Store) -> None:
        host = _innermost(store)
        if isinstance(host, TCPStore):
            # Where nobody listens, PyTorch goes on trying in C++. A process that ends meanwhile is
            # aborted, since a thread of C++ may not find Python gone.
            socket.create_connection((host.host, host.port), PATIENCE).close()
        self.store: Store = store.clone()  # type: ignore[attr-defined]  # the stub has not all
        self._socket = _bounded(self.store)

    def end(self) -> None:
        """Let whoever waits for an answer fail at once, on whatever thread."""
        if self._socket is not None:
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)


def _bounded(store: Store) -> socket.socket | None:
    """Bound how long the store's socket waits, and return it; None for a store without."""
    own = _innermost(store)
    found = re.search(r"client=\w+\(SocketImpl\(fd=(\d+)", repr(own))
    if not isinstance(own, TCPStore) or found is None:
        return None
    # Some requests are waited for in other ways, by the time that the store itself allows.
    own.set_timeout(timedelta(seconds=PATIENCE))
    shared = socket.socket(fileno=os.dup(int(found[1])))
    bound = struct.pack("ll", int(PATIENCE), int(PATIENCE % 1 * 1_000_000))
    for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        shared.setsockopt(socket.SOL_SOCKET, direction, bound)
    return shared


def _innermost(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
