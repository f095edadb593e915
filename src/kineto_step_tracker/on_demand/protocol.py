"""Kineto's on-demand protocol: the datagrams, and the socket that they come to.

It imports the standard library only. What comes from the socket is not trusted: a datagram that
is not what Kineto would send, or not from whom it says, is counted and never answered. The
protocol is libkineto's `ipcfabric`, as PyTorch 2.13 speaks it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import socket
import stat
import struct
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

# size of what follows, type
_HEADER = struct.Struct("=Q32s")
# what may be recorded, number of pids, job id; then the pids
_REQUEST = struct.Struct("=iiq")
# GPU, pid, job id
_CONTEXT = struct.Struct("=iiq")
_PID = struct.Struct("=i")
# pid, uid, gid, as the kernel knows them
_CREDENTIALS = struct.Struct("=iII")
_EVENTS, _ACTIVITIES = 1, 2

_NAME = "dynolog"
_FOLDER = "KINETO_IPC_SOCKET_DIR"
# A socket's path has at most 107 bytes, and the names of Kineto's own sockets have 52.
_LONGEST_FOLDER = 107 - 1 - 52
# No request is longer than some hundred bytes.
_LONGEST = 1 << 16
# As many are read before somebody else has a turn.
_AT_ONCE = 64


class DaemonRunningError(RuntimeError):
    """Another daemon holds the address at which Kineto asks."""


@dataclass(frozen=True)
class Ask:
    """A process asks for its configuration.

    The first of the pids is its own, the others are its ancestors', as it sees them. ``pid`` is
    the same process as it is known here. ``is_free`` says that it records no trace.
    """

    address: str | bytes
    pid: int
    pids: tuple[int, ...]
    job_id: int
    is_free: bool

    @property
    def ancestors(self) -> tuple[int, ...]:
        """Those of its ancestors that are known: in another PID namespace they have other ids."""
        return self.pids[1:] if self.pids[0] == self.pid else ()


class Listener:
    """The daemon's address, and nobody else's until `close`.

    Args:
        folder: the folder of the sockets, as in ``KINETO_IPC_SOCKET_DIR``; None for what that
            variable says, and for Linux's abstract names if it is not set.

    Raises:
        DaemonRunningError: the address is taken.
        OSError: the folder is missing or cannot be written.
        ValueError: its path is too long for a socket.
        RuntimeError: this is not Linux.
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        if not sys.platform.startswith("linux"):
            raise RuntimeError(
                f"Kineto takes requests for traces on Linux only, not {sys.platform}"
            )
        named = folder or os.environ.get(_FOLDER)
        self._file = Path(named, _NAME) if named else None
        # Datagrams that were not answered, by why.
        self.refused: Counter[str] = Counter()
        self._contexts: set[tuple[int, int, int]] = set()
        self._is_bound = False
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        try:
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
            self._bind()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Free the address."""
        if self._is_bound and self._file is not None:
            self._file.unlink(missing_ok=True)
        self._is_bound = False
        self._socket.close()

    def fileno(self) -> int:
        """Return the socket's, for `select`."""
        return self._socket.fileno()

    def asks(self) -> Iterator[Ask]:
        """Yield who has asked since. Never waits."""
        for _ in range(_AT_ONCE):
            try:
                # Room for the credentials and for nothing else, such as files.
                data, extra, flags, address = self._socket.recvmsg(
                    _LONGEST, socket.CMSG_SPACE(_CREDENTIALS.size)
                )
            except BlockingIOError:
                return
            try:
                if flags & socket.MSG_TRUNC:
                    raise _RefusedError("longer than any that Kineto sends")
                if not address:
                    raise _RefusedError("without an address to answer")
                pid, uid, _gid = _CREDENTIALS.unpack(extra[0][2])
                kind, body = _parse(data)
                if os.geteuid() not in (0, uid):
                    raise _RefusedError("from another user")
                if kind == "ctxt":
                    self._register(_context(body), pid, address)
                else:
                    yield _ask(body, pid, address)
            except _RefusedError as refusal:
                self.refused[str(refusal)] += 1

    def tell(self, ask: Ask, configuration: str) -> bool:
        """Answer with a configuration, or none. Return whether the answer could be sent."""
        return self._send("req", os.fsencode(configuration), ask.address)

    def _register(self, context: tuple[int, int, int], pid: int, address: str | bytes) -> None:
        gpu, claimed, job_id = context
        _check_pid(claimed, pid)
        self._contexts.add((job_id, gpu, pid))
        together = sum(other[:2] == (job_id, gpu) for other in self._contexts)
        self._send("ctxt", _PID.pack(together), address)

    def _send(self, kind: str, body: bytes, address: str | bytes) -> bool:
        message = _HEADER.pack(len(body), kind.encode()) + body
        with contextlib.suppress(OSError):
            return self._socket.sendto(message, address) == len(message)
        self.refused["answer not taken"] += 1
        return False

    def _bind(self) -> None:
        if self._file is None:
            address: str | bytes = f"\0{_NAME}\0".encode()
        else:
            address = os.fspath(self._file)
            self._make_way(self._file)
        try:
            self._socket.bind(address)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                raise self._taken() from None
            raise type(error)(error.errno, error.strerror, os.fspath(self._file or _NAME)) from None
        self._is_bound = True
        if self._file is not None:
            # For the training of other users, where root runs this; who asks is checked anyway.
            self._file.chmod(0o666)

    def _make_way(self, file: Path) -> None:
        if not file.parent.is_dir():
            raise NotADirectoryError(
                errno.ENOTDIR,
                f"socket_folder, or {_FOLDER}, must name a folder",
                os.fspath(file.parent),
            )
        length = len(os.fsencode(file.parent))
        if length > _LONGEST_FOLDER:
            # Kineto does not look, and writes over its own memory.
            raise ValueError(
                f"socket_folder, or {_FOLDER}, must be a path of at most {_LONGEST_FOLDER} "
                f"bytes, or Kineto has no room for its own sockets there; "
                f"{os.fspath(file.parent)!r} has {length}"
            )
        try:
            mode = file.stat().st_mode
        except FileNotFoundError:
            return
        if not stat.S_ISSOCK(mode):
            raise FileExistsError(errno.EEXIST, "this is no socket; move it", os.fspath(file))
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as probe:
            try:
                probe.connect(os.fspath(file))
            except ConnectionRefusedError:
                file.unlink(missing_ok=True)  # left over by a daemon that was killed
                return
            except OSError as error:
                raise type(error)(error.errno, error.strerror, os.fspath(file)) from None
        raise self._taken()

    def _taken(self) -> DaemonRunningError:
        where = f"the abstract socket {_NAME}" if self._file is None else str(self._file)
        return DaemonRunningError(
            f"another daemon holds {where}, such as dynolog or another kineto-step-tracker trace. "
            f"Stop it, or set {_FOLDER} to a folder of your own for both this and the training"
        )


class _RefusedError(Exception):
    """Why a datagram is not answered."""


def _parse(data: bytes) -> tuple[str, bytes]:
    if len(data) < _HEADER.size:
        raise _RefusedError("malformed")
    size, kind = _HEADER.unpack_from(data)
    body = data[_HEADER.size :]
    name = kind.partition(b"\0")[0].decode("latin-1")
    if size != len(body) or name not in ("ctxt", "req"):
        raise _RefusedError("malformed")
    return name, body


def _context(body: bytes) -> tuple[int, int, int]:
    if len(body) != _CONTEXT.size:
        raise _RefusedError("malformed")
    gpu, pid, job_id = _CONTEXT.unpack(body)
    return gpu, pid, job_id


def _ask(body: bytes, pid: int, address: str | bytes) -> Ask:
    if len(body) < _REQUEST.size + _PID.size:
        raise _RefusedError("malformed")
    free, count, job_id = _REQUEST.unpack_from(body)
    rest = body[_REQUEST.size :]
    if len(rest) != count * _PID.size or not 0 <= free <= _EVENTS + _ACTIVITIES:
        raise _RefusedError("malformed")
    pids = tuple(number for (number,) in _PID.iter_unpack(rest))
    if min(pids) < 0:
        raise _RefusedError("malformed")
    _check_pid(pids[0], pid)
    return Ask(address, pid, pids, job_id, bool(free & _ACTIVITIES))


def _check_pid(claimed: int, pid: int) -> None:
    """Refuse a pid that is not the sender's, in any of the namespaces that it has one in."""
    if pid == 0:
        raise _RefusedError("from outside this PID namespace")
    if claimed == pid:
        return
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_bytes().splitlines():
            if line.startswith(b"NSpid:") and str(claimed).encode() in line.split()[1:]:
                return
    raise _RefusedError("in the name of another process")
