"""The look from outside: steps and rates, which job, and what answers when there is none."""

from __future__ import annotations

import fcntl
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch._C._distributed_c10d import FileStore, HashStore, PrefixStore, Store

from kineto_step_tracker.fleet import Observer, RankView, connection, observer, open_store
from kineto_step_tracker.fleet.board import Board

from .stores import PREFIX, Connect, host


def publish(store: Store, steps: dict[int, int], prefix: str = PREFIX) -> None:
    board = Board(store, 3, prefix)
    board.agree(5)
    for rank, step in steps.items():
        board.publish(rank, step, "me")


def test_how_each_rank_stands(connect: Connect) -> None:
    publish(connect(), {})
    looks = Observer(connect(), 3)
    assert (looks.world_size, looks.every) == (3, 5)
    view = looks.look()
    assert (view.step, view.skew, view.ranks) == (0, 0, (RankView(0), RankView(1), RankView(2)))
    publish(connect(), {0: 40, 2: 31})
    view = looks.look()
    assert (view.step, view.skew) == (40, 9)
    first, second, third = view.ranks
    assert (first.rank, first.step, first.behind) == (0, 40, 0)
    assert second == RankView(1)
    assert (third.rank, third.step, third.behind) == (2, 31, 9)
    with pytest.raises(ValueError, match=r"^the job's world size is 3, not 2$"):
        Observer(connect(), 2)


def test_rates_are_of_the_last_two_times_that_a_rank_published(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = 1_000.0
    monkeypatch.setattr("time.time", lambda: clock)
    monkeypatch.setattr("time.monotonic", lambda: clock)
    store = HashStore()
    publish(store, {0: 10, 1: 10})
    looks = Observer(store)

    def rates() -> list[float | None]:
        return [rank.rate for rank in looks.look().ranks]

    assert rates() == [None, None, None]
    clock = 1_004.0
    publish(store, {0: 30, 2: 5})
    clock = 1_010.0
    assert rates() == [5, None, None]
    assert rates() == [5, None, None]
    assert [rank.age for rank in looks.look().ranks] == [6, 10, 6]
    clock = 1_024.0
    publish(store, {0: 20, 1: 10, 2: 5})
    assert rates() == [-0.5, 0, 0]


def test_a_job_is_found_by_the_end_of_its_prefix(connect: Connect) -> None:
    """Behind what torchrun and the process group put before it, from both sides of that.

    That leaves no job behind where none is.
    """
    outer = PrefixStore("/worker/attempt_0", connect())
    publish(PrefixStore("default_pg/0", outer), {0: 7})
    name = "/worker/attempt_0/default_pg/0/kineto_step_tracker"
    for prefix in (None, PREFIX, f"0/{PREFIX}", name):
        looks = Observer(connect(), prefix=prefix)
        assert looks.prefix == name
        assert looks.look().step == 7
    assert Observer(outer).look().step == 7
    with pytest.raises(LookupError, match=rf"under the prefix 'tracker' .* there is {name}$"):
        Observer(connect(), prefix="tracker")
    assert sum(key.endswith("job/form") for key in connect().list_keys()) == 1


def test_one_of_several_jobs_has_to_be_chosen(connect: Connect) -> None:
    for prefix, step in (("b", 1), ("a", 2), ("x/a", 3)):
        publish(connect(), {0: step}, prefix)
    with pytest.raises(LookupError, match=r"several jobs .* choose one by its prefix: a, b, x/a$"):
        Observer(connect())
    # To the letter it is one, though another ends with it.
    assert Observer(connect(), prefix="a").look().step == 2
    publish(connect(), {0: 4}, "y/c")
    publish(connect(), {0: 5}, "x/c")
    with pytest.raises(LookupError, match=r"several jobs .*: x/c, y/c$"):
        Observer(connect(), prefix="c")
    assert Observer(connect(), prefix="b").look().step == 1
    assert Observer(connect(), prefix="x/a").look().step == 3


def test_a_bad_argument_is_named(connect: Connect) -> None:
    wanted = r"store must be a torch.distributed store, as open_store\(\) makes one"
    with pytest.raises(TypeError, match=rf"^{wanted}, not 'tcp://x:1'$"):
        Observer("tcp://x:1")  # type: ignore[arg-type]
    for world_size in ("2", True):
        with pytest.raises(TypeError, match=f"^world_size must be an int .* not {world_size!r}"):
            Observer(connect(), world_size)  # type: ignore[arg-type]


def test_its_repr_says_which_job(connect: Connect) -> None:
    publish(connect(), {0: 1})
    assert repr(Observer(connect())) == f"<Observer of '{PREFIX}', 3 ranks>"


def test_nothing_there(connect: Connect) -> None:
    connect().set("a/job/forms", "")
    for prefix in (None, "a"):
        with pytest.raises(LookupError, match=r"^no rank has published anything in this store"):
            Observer(connect(), prefix=prefix)


def test_open_store_of_a_file(tmp_path: Path) -> None:
    path = tmp_path / "store"
    with pytest.raises(FileNotFoundError):
        open_store(f"file:{path}")
    assert not path.exists()
    publish(FileStore(str(path)), {0: 3})
    for address in (f"file:{path}", f"file://{path}"):
        assert Observer(open_store(address)).look().step == 3


@pytest.mark.parametrize("content", [b"hello, world\n" * 9, b"\0" * 64, b"hi", bytes(range(256))])
def test_open_store_of_a_file_that_is_no_store(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(content)
    with pytest.raises(RuntimeError, match=r"^the file is no store of torch.distributed$"):
        open_store(f"file:{path}")
    assert path.read_bytes() == content


def test_open_store_of_a_host() -> None:
    store = host()
    publish(store, {0: 3})
    assert Observer(open_store(f"tcp://127.0.0.1:{store.port}")).look().step == 3


@pytest.mark.parametrize(
    ("find_host", "says"),
    [
        (connection.find_host, r"^127.0.0.1:\d+ does not answer$"),
        (lambda host, port: None, r"does not answer as a store of torch.distributed does$"),
    ],
)
def test_open_store_of_a_listener_that_says_nothing(
    find_host: Callable[[str, int], None], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither to who hangs up, nor, as if it did that, to who asks as a store does."""
    monkeypatch.setattr(connection, "PATIENCE", 0.2)
    monkeypatch.setattr(connection, "_CONNECTING", 0.2)
    monkeypatch.setattr(observer, "find_host", find_host)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        with pytest.raises(TimeoutError, match=says):
            open_store(address)
    monkeypatch.undo()
    with pytest.raises(ConnectionRefusedError):
        open_store(address)


@pytest.mark.parametrize(
    "address",
    ["", "store", "tcp://", "tcp://:1", "tcp://h", "tcp://h:", "tcp://h:0", "tcp://h:65536", "h:1"],
)
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ValueError, match=r"is given as tcp://HOST:PORT or file:PATH$"):
        open_store(address)


def test_a_file_that_another_has_locked_is_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "store"
    publish(FileStore(str(path)), {0: 3})
    monkeypatch.setattr(observer, "PATIENCE", 0.1)
    with path.open("r+b") as locked:
        fcntl.flock(locked, fcntl.LOCK_EX)
        with pytest.raises(TimeoutError, match=r"^the file is locked by another process$"):
            open_store(f"file:{path}")
    assert Observer(open_store(f"file:{path}")).look().step == 3


@pytest.mark.parametrize("last", [1, 3, 5, 20])
def test_a_store_that_was_cut_short(tmp_path: Path, last: int) -> None:
    path = tmp_path / "store"
    publish(FileStore(str(path)), {0: 3})
    path.write_bytes(path.read_bytes()[:-last])
    with pytest.raises(RuntimeError, match=r"^the file is a store .* that was cut short$"):
        open_store(f"file:{path}")
