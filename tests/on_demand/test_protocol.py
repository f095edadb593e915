"""The daemon's socket, against a client that speaks as libkineto does and against worse ones."""

from __future__ import annotations

import os
import re
import shutil
import socket
import struct
import subprocess
import sys
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kineto_step_tracker.on_demand.protocol import Ask, DaemonRunningError, Listener

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="Kineto takes requests on Linux only"),
    # What is to return at once must not be waited for as long as other tests are.
    pytest.mark.timeout(60),
]

FOLDER = "KINETO_IPC_SOCKET_DIR"
ABSTRACT = b"\0dynolog\0"
PID = os.getpid()
EVENTS, ACTIVITIES = 1, 2
MALFORMED = "malformed"
NOT_TAKEN = "answer not taken"
ANOTHER_PROCESS = "in the name of another process"
ANOTHER_USER = "from another user"
INT64 = st.integers(-(2**63), 2**63 - 1)
INT32 = st.integers(-(2**31), 2**31 - 1)


def message(kind: bytes, body: bytes, size: int | None = None) -> bytes:
    return struct.pack("=Q32s", len(body) if size is None else size, kind) + body


def context(pid: int = PID, gpu: int = 0, job_id: int = 0) -> bytes:
    return message(b"ctxt", struct.pack("=iiq", gpu, pid, job_id))


def ask(
    *pids: int, free: int = EVENTS | ACTIVITIES, count: int | None = None, job_id: int = 0
) -> bytes:
    count = len(pids) if count is None else count
    return message(b"req", struct.pack(f"=iiq{len(pids)}i", free, count, job_id, *pids))


class Client:
    """A process that trains. Bound to a name unless that is None."""

    def __init__(self, daemon: str | bytes, name: str | bytes | None) -> None:
        self.daemon = daemon
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK)
        if name is not None:
            self.socket.bind(name)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, data: bytes) -> None:
        assert self.socket.sendto(data, self.daemon) == len(data)

    def answer(self) -> tuple[bytes, bytes] | None:
        """Return an answer's type and body, None if there is none."""
        try:
            data = self.socket.recv(1 << 20)
        except BlockingIOError:
            return None
        size, kind = struct.unpack_from("=Q32s", data)
        assert size == len(data) - 40
        return kind.rstrip(b"\0"), data[40:]


@pytest.fixture
def listener(tmp_path: Path) -> Iterator[Listener]:
    with Listener(tmp_path) as listening:
        yield listening


@pytest.fixture
def client(tmp_path: Path, listener: Listener) -> Iterator[Client]:
    with Client(str(tmp_path / "dynolog"), str(tmp_path / "client")) as talking:
        yield talking


def descriptors() -> set[str]:
    return set(os.listdir("/proc/self/fd"))  # noqa: PTH208


def unheard(listener: Listener, client: Client, reason: str) -> None:
    """It has no effect but on the count, once."""
    assert list(listener.asks()) == []
    assert listener.refused == {reason: 1}
    assert client.answer() is None


# Sends from a process of its own: to which address, from which, the header and format of the body,
# its fields, of which "me" is the pid and "parent" the parent's; and under which name it runs.
SENDER = """
import os, socket, struct, sys
daemon, own, kind, form, name, *fields = sys.argv[1:]
if name:
    open("/proc/self/comm", "wb").write(os.fsencode(name))
pids = {"me": os.getpid, "parent": os.getppid}
body = struct.pack(form, *(pids[field]() if field in pids else int(field) for field in fields))
sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
sender.bind(own)
sender.sendto(struct.pack("=Q32s", len(body), kind.encode()) + body, daemon)
"""


def send_from_elsewhere(
    folder: Path, kind: str, form: str, *fields: str, name: str = "", under: tuple[str, ...] = ()
) -> None:
    """Return when the process has sent and ended."""
    own = folder / f"sender_{len(list(folder.iterdir()))}"
    line = [*under, sys.executable, "-I", "-S", "-c", SENDER]
    subprocess.run(
        [*line, str(folder / "dynolog"), str(own), kind, form, name, *fields], check=True
    )


def test_who_asks_is_told(listener: Listener, client: Client, tmp_path: Path) -> None:
    client.send(ask(PID, 17, 0, free=ACTIVITIES, job_id=-(2**63)))
    (found,) = listener.asks()
    assert found == Ask(str(tmp_path / "client"), PID, (PID, 17, 0), -(2**63), True)
    assert listener.tell(found, "A=1\nB=ü")
    assert client.answer() == (b"req", "A=1\nB=ü".encode())
    assert listener.tell(found, "")
    assert client.answer() == (b"req", b"")
    assert client.answer() is None
    assert listener.refused == {}


@pytest.mark.parametrize(
    ("free", "is_free"), [(0, False), (EVENTS, False), (ACTIVITIES, True), (3, True)]
)
def test_only_who_records_no_activities_is_free(
    listener: Listener, client: Client, free: int, is_free: bool
) -> None:
    client.send(ask(PID, free=free))
    assert [found.is_free for found in listener.asks()] == [is_free]


def test_the_answer_to_an_ask_of_before_goes_to_its_sender(
    listener: Listener, client: Client, tmp_path: Path
) -> None:
    with Client(client.daemon, str(tmp_path / "other")) as other:
        client.send(ask(PID, job_id=1))
        other.send(ask(PID, job_id=2))
        first, second = listener.asks()
        assert (first.job_id, second.job_id) == (1, 2)
        assert listener.tell(second, "2")
        assert listener.tell(first, "1")
        assert client.answer() == (b"req", b"1")
        assert other.answer() == (b"req", b"2")


def test_who_registers_is_told_how_many_did_for_the_same_job_and_gpu(
    listener: Listener, client: Client, tmp_path: Path
) -> None:
    def registered(gpu: int, job_id: int) -> int:
        client.send(context(gpu=gpu, job_id=job_id))
        assert list(listener.asks()) == []
        kind, body = client.answer() or (b"", b"")
        assert kind == b"ctxt"
        (number,) = struct.unpack("=i", body)
        assert isinstance(number, int)
        return number

    assert registered(gpu=0, job_id=7) == 1
    assert registered(gpu=0, job_id=7) == 1
    send_from_elsewhere(tmp_path, "ctxt", "=iiq", "0", "me", "7")
    assert list(listener.asks()) == []
    assert registered(gpu=0, job_id=7) == 2
    assert registered(gpu=1, job_id=7) == 1
    assert registered(gpu=0, job_id=8) == 1
    # The other one had gone before it was answered.
    assert listener.refused == {NOT_TAKEN: 1}


def test_nobody_is_waited_for(listener: Listener) -> None:
    assert list(listener.asks()) == []
    assert not os.get_blocking(listener.fileno())


# By name: with the pid in them, pytest-xdist's workers would not agree on the tests.
REGISTRATION, ASKING = context()[40:], ask(PID)[40:]
MALFORMED_ONES = {
    "empty": b"",
    "one byte": b"\0",
    "header too short": ask(PID)[:39],
    "asking for nothing": message(b"req", b""),
    "registering nothing": message(b"ctxt", b""),
    "registration too short": message(b"ctxt", REGISTRATION[:-1]),
    "registration too long": message(b"ctxt", REGISTRATION + b"\0"),
    "registration as asking": message(b"req", REGISTRATION),
    "asking as registration": message(b"ctxt", ASKING),
    "asking too short": message(b"req", ASKING[:-1]),
    "asking too long": message(b"req", ASKING + b"\0"),
    "size one too small": message(b"req", ASKING, len(ASKING) - 1),
    "size one too large": message(b"req", ASKING, len(ASKING) + 1),
    "size 0": message(b"req", ASKING, 0),
    "size of all": message(b"req", ASKING, len(ASKING) + 40),
    "largest size": message(b"req", ASKING, 2**64 - 1),
    "largest size, registering": message(b"ctxt", REGISTRATION, 2**64 - 1),
    "no type": message(b"", ASKING),
    "type in capitals": message(b"REQ", ASKING),
    "type with a blank": message(b"req ", ASKING),
    "type behind a NUL": message(b"\0req", ASKING),
    "another type": message(b"request", ASKING),
    "type without NUL": message(b"req".ljust(32, b"q"), ASKING),
    "type of high bytes": message(b"\xff" * 32, ASKING),
    "type not ASCII": message("réq".encode(), ASKING),
    "no pid": ask(),
    "no pid, of -1": ask(count=-1),
    "-1 pids": ask(PID, count=-1),
    "0 pids": ask(PID, count=0),
    "fewer pids than said": ask(PID, count=2),
    "more pids than said": ask(PID, PID, count=1),
    "most pids": ask(PID, count=2**31 - 1),
    "least pids": ask(PID, count=-(2**31)),
    # In 32 bits, times 4 this is what comes.
    "pids that wrap around": ask(PID, count=2**30 + 1),
    "free for -1": ask(PID, free=-1),
    "free for 4": ask(PID, free=4),
    "free for most": ask(PID, free=2**31 - 1),
    "pid -1": ask(-1),
    "minus the pid": ask(-PID),
    "ancestor -1": ask(PID, 1, -1),
    "least ancestor": ask(PID, -(2**31)),
}


@pytest.mark.parametrize("name", MALFORMED_ONES)
def test_a_malformed_datagram_is_refused(listener: Listener, client: Client, name: str) -> None:
    client.send(MALFORMED_ONES[name])
    unheard(listener, client, MALFORMED)
    # It is deaf to this one only.
    client.send(ask(PID))
    assert len(list(listener.asks())) == 1


@pytest.mark.parametrize("pids", [16_400, 40_000])
def test_an_oversized_datagram_is_refused(listener: Listener, client: Client, pids: int) -> None:
    client.send(ask(PID, *[1] * pids))
    unheard(listener, client, "longer than any that Kineto sends")
    client.send(ask(PID, *[1] * 16_000))
    assert [len(found.pids) for found in listener.asks()] == [16_001]


@pytest.mark.parametrize("data", [ask(PID), context()], ids=["asking", "registering"])
def test_who_has_no_address_is_refused(listener: Listener, client: Client, data: bytes) -> None:
    with Client(client.daemon, None) as unbound:
        unbound.send(data)
        unheard(listener, unbound, "without an address to answer")


@pytest.mark.parametrize("pid", [0, 1, os.getppid(), 2**31 - 1], ids=["0", "1", "parent", "most"])
def test_who_claims_to_be_somebody_else_is_refused(
    listener: Listener, client: Client, pid: int
) -> None:
    client.send(ask(pid, PID))
    unheard(listener, client, ANOTHER_PROCESS)
    client.send(context(pid))
    assert list(listener.asks()) == []
    assert listener.refused == {ANOTHER_PROCESS: 2}
    assert client.answer() is None


def test_somebody_else_who_has_ended_is_refused(listener: Listener, tmp_path: Path) -> None:
    send_from_elsewhere(tmp_path, "req", "=iiqi", "3", "1", "0", "parent")
    assert list(listener.asks()) == []
    assert listener.refused == {ANOTHER_PROCESS: 1}


def test_a_process_may_go_by_the_pid_in_its_own_namespace(
    listener: Listener, tmp_path: Path
) -> None:
    # It is kept until it has been heard: who has ended goes by no other pid.
    apart: tuple[str, ...] = ("unshare", "--pid", "--fork", "--kill-child")
    if os.geteuid() != 0:
        apart += ("--user", "--map-root-user")
    python = [*apart, sys.executable, "-I", "-S", "-c"]
    if shutil.which("unshare") is None or subprocess.run([*python, ""], check=False).returncode:
        pytest.skip("no namespace of pids can be made here")
    addresses = (str(tmp_path / "dynolog"), str(tmp_path / "sender"))
    wait = f"{SENDER}\nprint(flush=True)\nsys.stdin.read()"
    with subprocess.Popen(
        [*python, wait, *addresses, "req", "=iiqii", "", "3", "2", "0", "me", "parent"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"\n"
        (found,) = listener.asks()
        assert found.pids == (1, 0)
        assert Path(f"/proc/{found.pid}/status").exists()
        assert found.pid not in (1, PID)
        process.communicate()
    assert listener.refused == {}


def test_a_sender_under_an_odd_name_is_refused_like_others(
    listener: Listener, client: Client
) -> None:
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    comm.write_bytes(b"\xff\xfe")
    try:
        client.send(ask(os.getppid()))
        unheard(listener, client, ANOTHER_PROCESS)
    finally:
        comm.write_bytes(before)


@pytest.mark.parametrize("data", [ask(PID), context()], ids=["asking", "registering"])
def test_another_user_is_refused_and_root_hears_everybody(
    listener: Listener, client: Client, data: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The sender is who runs the tests, as the kernel says; the daemon's user is pretended.
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    client.send(data)
    unheard(listener, client, ANOTHER_USER)
    for mine in (os.getuid(), 0):
        monkeypatch.setattr(os, "geteuid", lambda mine=mine: mine)
        client.send(data)
        assert len(list(listener.asks())) + (client.answer() is not None) == 1
    assert listener.refused == {ANOTHER_USER: 1}


def test_a_user_who_is_another_one_really_is_refused_and_root_hears_everybody(
    listener: Listener, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    if os.getresuid() != (0, 0, 0):
        pytest.skip("only root can send as another user")

    def send_as_nobody() -> None:
        os.setresuid(65534, 0, 0)
        try:
            client.send(ask(PID))
        finally:
            os.setresuid(0, 0, 0)

    send_as_nobody()
    assert len(list(listener.asks())) == 1
    monkeypatch.setattr(os, "geteuid", lambda: 65533)
    send_as_nobody()
    unheard(listener, client, ANOTHER_USER)
    monkeypatch.setattr(os, "geteuid", lambda: 65534)
    send_as_nobody()
    assert len(list(listener.asks())) == 1


def test_who_can_write_to_the_socket_may_be_any_user(listener: Listener, tmp_path: Path) -> None:
    assert (tmp_path / "dynolog").stat().st_mode & 0o777 == 0o666


bodies = st.one_of(
    st.binary(max_size=64),
    st.builds(lambda *fields: struct.pack("=iiq", *fields), INT32, INT32 | st.just(PID), INT64),
    st.builds(
        lambda free, count, job_id, pids: struct.pack(
            f"=iiq{len(pids)}i", free, len(pids) if count is None else count, job_id, *pids
        ),
        st.integers(-1, 4) | INT32,
        st.none() | INT32,
        INT64,
        st.lists(INT32 | st.just(PID), max_size=4),
    ),
)
datagrams = st.one_of(
    st.binary(max_size=128),
    st.builds(
        message,
        st.sampled_from([b"req", b"ctxt"]) | st.binary(max_size=32),
        bodies,
        st.none() | st.integers(0, 2**64 - 1),
    ),
)


def test_whatever_comes_nothing_is_raised_and_nobody_is_taken_for_another(
    listener: Listener, client: Client
) -> None:
    @settings(max_examples=200, deadline=None)
    @given(data=datagrams)
    def hears(data: bytes) -> None:
        before = listener.refused.total()
        client.send(data)
        found = list(listener.asks())
        answer = client.answer()
        assert len(found) + (answer is not None) + listener.refused.total() - before == 1
        for asked in found:
            assert asked.pid == PID == asked.pids[0]
            assert min(asked.pids) >= 0
            assert data[8:11] == b"req"
        if answer is not None:
            assert answer == (b"ctxt", struct.pack("=i", 1))
            assert struct.unpack_from("=i", data, 44) == (PID,)

    hears()


def test_who_asks_without_end_does_not_keep_it(listener: Listener, client: Client) -> None:
    client.send(ask(PID, job_id=0))
    heard: list[int] = []
    for found in listener.asks():
        heard.append(found.job_id)
        if len(heard) == 1000:
            break
        client.send(ask(PID, job_id=len(heard)))
    assert heard == list(range(64))
    assert [found.job_id for found in listener.asks()] == [64]


def test_who_never_reads_is_not_waited_for(listener: Listener, client: Client) -> None:
    client.send(ask(PID))
    (found,) = listener.asks()
    taken = 0
    while listener.tell(found, "A=" + "1" * 10_000):
        taken += 1
    assert taken >= 1
    assert listener.refused == {NOT_TAKEN: 1}
    assert not listener.tell(found, "")
    assert listener.refused == {NOT_TAKEN: 2}
    client.send(context())
    assert list(listener.asks()) == []
    assert listener.refused == {NOT_TAKEN: 3}
    for _ in range(taken):
        assert client.answer() is not None
    assert client.answer() is None
    assert listener.tell(found, "A=2")
    assert client.answer() == (b"req", b"A=2")


@pytest.mark.parametrize("is_file_gone", [False, True])
def test_who_has_gone_is_not_told(
    listener: Listener, client: Client, tmp_path: Path, is_file_gone: bool
) -> None:
    client.send(ask(PID))
    (found,) = listener.asks()
    client.socket.close()
    if is_file_gone:
        (tmp_path / "client").unlink()
    assert not listener.tell(found, "A=1")
    assert listener.refused == {NOT_TAKEN: 1}


def test_an_answer_too_long_for_a_datagram_is_not_told(listener: Listener, client: Client) -> None:
    client.send(ask(PID))
    (found,) = listener.asks()
    assert not listener.tell(found, "A" * (1 << 23))
    assert listener.refused == {NOT_TAKEN: 1}
    assert client.answer() is None


def test_a_path_that_is_no_text_can_be_told(listener: Listener, client: Client) -> None:
    client.send(ask(PID))
    (found,) = listener.asks()
    assert listener.tell(found, "ACTIVITIES_LOG_FILE=" + os.fsdecode(b"/tmp/\xc3"))
    assert client.answer() == (b"req", b"ACTIVITIES_LOG_FILE=/tmp/\xc3")


@pytest.mark.parametrize(
    "data",
    [ask(PID), context(), b"", ask(1)],
    ids=["asking", "registering", "malformed", "as another"],
)
def test_files_that_come_with_a_datagram_are_not_kept(
    listener: Listener, client: Client, data: bytes
) -> None:
    reading, writing = os.pipe()
    before = descriptors()
    files = struct.pack("=10i", *[writing] * 10)
    client.socket.sendmsg([data], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)], 0, client.daemon)
    heard = len(list(listener.asks())) + (client.answer() is not None)
    assert heard + listener.refused.total() == 1
    assert descriptors() == before
    os.close(writing)
    # Nobody else could write into it any more.
    assert os.read(reading, 1) == b""
    os.close(reading)


def test_without_a_folder_the_name_is_abstract_and_taken_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv(FOLDER, raising=False)
    try:
        listening = Listener()
    except DaemonRunningError:
        pytest.skip("a daemon runs on this machine, or another test's")
    own = f"\0kineto_step_tracker_test_{PID}\0".encode()
    with listening as listener, Client(ABSTRACT, own) as client:
        client.send(ask(PID, job_id=2**63 - 1))
        # On this machine there may be training that asks.
        (found,) = (each for each in listener.asks() if each.pid == PID)
        assert found == Ask(own, PID, (PID,), 2**63 - 1, True)
        assert listener.tell(found, "A=1")
        assert client.answer() == (b"req", b"A=1")
        before = descriptors()
        with pytest.raises(DaemonRunningError) as caught:
            Listener()
        assert str(caught.value) == (
            "another daemon holds the abstract socket dynolog, such as dynolog or another "
            "kineto-step-tracker trace. Stop it, or set KINETO_IPC_SOCKET_DIR to a folder of your "
            "own for both this and the training"
        )
        assert descriptors() == before
    assert listener.fileno() == -1


def test_the_environment_names_the_folder_and_an_argument_wins(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "other").mkdir()
    monkeypatch.setenv(FOLDER, str(tmp_path / "one"))
    with Listener():
        assert (tmp_path / "one" / "dynolog").is_socket()
        with Listener(tmp_path / "other") as listener:
            with Client(str(tmp_path / "other" / "dynolog"), str(tmp_path / "client")) as client:
                client.send(ask(PID))
            assert len(list(listener.asks())) == 1


def test_a_second_daemon_is_refused_and_told_what_to_do(tmp_path: Path, listener: Listener) -> None:
    before = descriptors()
    with pytest.raises(DaemonRunningError) as caught:
        Listener(tmp_path)
    assert str(caught.value) == (
        f"another daemon holds {tmp_path / 'dynolog'}, such as dynolog or another "
        "kineto-step-tracker trace. Stop it, or set KINETO_IPC_SOCKET_DIR to a folder of your own "
        "for both this and the training"
    )
    assert isinstance(caught.value, RuntimeError)
    assert descriptors() == before
    with Client(str(tmp_path / "dynolog"), str(tmp_path / "client")) as client:
        client.send(ask(PID))
    assert len(list(listener.asks())) == 1


def test_what_a_killed_daemon_left_is_replaced(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as killed:
        killed.bind(str(tmp_path / "dynolog"))
    assert (tmp_path / "dynolog").is_socket()
    with Listener(tmp_path) as listener:
        with Client(str(tmp_path / "dynolog"), str(tmp_path / "client")) as client:
            client.send(ask(PID))
        assert len(list(listener.asks())) == 1


@pytest.mark.parametrize("is_folder", [False, True])
def test_what_is_no_socket_is_left_alone(tmp_path: Path, is_folder: bool) -> None:
    file = tmp_path / "dynolog"
    if is_folder:
        file.mkdir()
    else:
        file.write_text("precious")
    before = descriptors()
    with pytest.raises(FileExistsError, match="this is no socket; move it") as caught:
        Listener(tmp_path)
    assert caught.value.filename == str(file)
    assert descriptors() == before
    assert file.is_dir() if is_folder else file.read_text() == "precious"


def test_a_socket_of_another_type_is_refused_by_name(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as stream:
        stream.bind(str(tmp_path / "dynolog"))
        with pytest.raises((OSError, DaemonRunningError), match=re.escape(str(tmp_path))):
            Listener(tmp_path)
    assert (tmp_path / "dynolog").is_socket()


@pytest.mark.parametrize("is_file", [False, True])
def test_a_folder_that_is_none_is_refused(tmp_path: Path, is_file: bool) -> None:
    folder = tmp_path / "missing"
    if is_file:
        folder.write_text("")
    before = descriptors()
    with pytest.raises(
        NotADirectoryError, match=f"socket_folder, or {FOLDER}, must name a folder"
    ) as caught:
        Listener(folder)
    assert caught.value.filename == str(folder)
    assert descriptors() == before


def test_a_path_too_long_for_kinetos_own_sockets_is_refused_and_the_longest_is_not(
    tmp_path: Path,
) -> None:
    room = 54 - len(str(tmp_path)) - 1
    longest = tmp_path / ("ü" * (room // 2) + "x" * (room % 2))  # two bytes each
    longest.mkdir()
    with Listener(longest) as listening:
        kinetos = longest / f"dynoconfigclient{uuid.uuid4()}"
        with Client(str(longest / "dynolog"), str(kinetos)) as client:
            client.send(ask(PID))
            assert len(list(listening.asks())) == 1
    longer = longest.with_name(f"{longest.name}x")
    longer.mkdir()
    before = descriptors()
    with pytest.raises(
        ValueError, match=f"^socket_folder, or {FOLDER}, must be a path of at most 54 bytes"
    ) as caught:
        Listener(longer)
    assert str(caught.value).endswith(f"{str(longer)!r} has 55")
    assert descriptors() == before
    assert list(longer.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    if os.geteuid() == 0:
        pytest.skip("root can write everywhere")
    tmp_path.chmod(0o500)
    before = descriptors()
    try:
        with pytest.raises(PermissionError) as caught:
            Listener(tmp_path)
    finally:
        tmp_path.chmod(0o700)
    assert caught.value.filename == str(tmp_path / "dynolog")
    assert descriptors() == before


def test_closed_once_or_twice_the_address_is_free(tmp_path: Path) -> None:
    listener = Listener(tmp_path)
    assert listener.fileno() >= 0
    listener.close()
    assert list(tmp_path.iterdir()) == []
    assert listener.fileno() == -1
    with Listener(tmp_path):
        # Another one's by now.
        listener.close()
        assert (tmp_path / "dynolog").is_socket()
    assert list(tmp_path.iterdir()) == []


def test_the_address_is_free_after_an_error(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), Listener(tmp_path):
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("platform", ["darwin", "win32"])
def test_elsewhere_than_on_linux_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, platform: str
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", platform)
        with pytest.raises(RuntimeError) as caught:
            Listener(tmp_path)
    assert str(caught.value) == f"Kineto takes requests for traces on Linux only, not {platform}"
    assert list(tmp_path.iterdir()) == []
