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
        own = _innermost(self.store)
        # A HashStore is its own clone.
        if own is not host:
            own.set_timeout(timedelta(seconds=PATIENCE))
        found = re.search(r"client=\w+\(SocketImpl\(fd=(\d+)", repr(own))
        self._descriptor = None
        if isinstance(own, TCPStore) and found is not None:
            self._descriptor = int(found[1])
            # What the store itself allows holds for some of its requests only.
            bound = struct.pack("ll", int(PATIENCE), int(PATIENCE % 1 * 1_000_000))
            with _shared(self._descriptor) as its_socket:
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    its_socket.setsockopt(socket.SOL_SOCKET, direction, bound)

    def end(self) -> None:
        """Let whoever waits for an answer fail at once, on whatever thread."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError), _shared(self._descriptor) as its_socket:
                its_socket.shutdown(socket.SHUT_RDWR)


def _shared(descriptor: int) -> socket.socket:
    """Return another handle on a socket of C++, which that keeps."""
    return socket.socket(fileno=os.dup(descriptor))


def _innermost(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
