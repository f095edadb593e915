"""A connection to a job's store that does not wait for ever. It imports PyTorch only.

What PyTorch's TCPStore sends and then waits for, it waits for without end, in C++, with one lock
for all who use the connection. So the fleet has a connection of its own, and bounds it from below:
by the timeouts of its socket.

While a process ends no thread should be waiting in C++: CPython before 3.14 aborts the process if
that one goes on just then. So what can be waited for in Python is.
"""

from __future__ import annotations

import contextlib
import re
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import TypeVar

from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

# How long one answer of the store may take.
PATIENCE = 3.0
# A host that asks a name server who connects, as PyTorch's does, answers nobody meanwhile.
_CONNECTING = 10.0

_Result = TypeVar("_Result")


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
            find_host(host.host, host.port)
        clone: Callable[[], Store] = store.clone  # type: ignore[attr-defined]  # not in the stub
        self.store = answered(clone)
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
            with _borrowed(self._descriptor) as its_socket:
                for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                    its_socket.setsockopt(socket.SOL_SOCKET, direction, bound)

    def end(self) -> None:
        """Let whoever waits for an answer fail at once, on whatever thread."""
        if self._descriptor is not None:
            with contextlib.suppress(OSError), _borrowed(self._descriptor) as its_socket:
                its_socket.shutdown(socket.SHUT_RDWR)


def find_host(host: str, port: int) -> None:
    """Return if somebody listens there who is alive, by closing what is closed to them.

    Raises:
        OSError: nobody does, or they do not answer.
    """
    try:
        with socket.create_connection((host, port), PATIENCE) as probe:
            probe.settimeout(_CONNECTING)
            probe.shutdown(socket.SHUT_WR)
            probe.recv(1)
    except TimeoutError:
        raise TimeoutError(f"{host}:{port} does not answer") from None


def answered(ask: Callable[[], _Result]) -> _Result:
    """Return what this returns, or raise what it raises.

    To connect waits in C++, for the first answer without end, and tries again for as long as the
    store's timeout has it, which may be hours; to use a file waits for who has locked it. So it has
    a thread that is left to itself if it takes long.

    Raises:
        TimeoutError: it takes too long.
    """
    results: list[_Result] = []
    errors: list[Exception] = []

    def run() -> None:
        try:
            results.append(ask())
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=run, name="kineto-step-tracker asking", daemon=True)
    thread.start()
    thread.join(_CONNECTING)
    if errors:
        raise errors[0]
    if not results:
        raise TimeoutError("it does not answer as a store of torch.distributed does")
    return results[0]


@contextlib.contextmanager
def _borrowed(descriptor: int) -> Iterator[socket.socket]:
    """Yield a socket of C++, which that keeps."""
    its_socket = socket.socket(fileno=descriptor)
    try:
        yield its_socket
    finally:
        its_socket.detach()


def _innermost(store: Store) -> Store:
    while isinstance(store, PrefixStore):
        store = store.underlying_store
    return store
