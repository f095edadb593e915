"""What stands where in the store: one form, what each rank has published, nothing that waits."""

from __future__ import annotations

import pytest

pytest.importorskip("torch", reason="PyTorch is not installed; tox -e torch has it")

from torch._C._distributed_c10d import HashStore

from kineto_step_tracker.fleet import FleetError, board
from kineto_step_tracker.fleet.board import Board

from .stores import PREFIX, Connect, ScriptedStore


@pytest.mark.parametrize("at_once", [2, 1_000])
def test_what_is_published_is_read_and_what_is_not_is_left_out(
    connect: Connect, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also by one who has read before, when nobody had published."""
    monkeypatch.setattr(board, "_AT_ONCE", at_once)
    clock = 1_000.0
    monkeypatch.setattr("time.time", lambda: clock)
    ours, theirs = (Board(connect(), 5, PREFIX) for _ in range(2))
    assert theirs.read() == {}
    for rank, step in ((1, 7), (2, 0), (4, 9), (1, 8)):
        ours.publish(rank, step, "me")
    for clock, age in ((1_002.5, 2.5), (990.0, 0)):  # noqa: B007
        for who in (ours, theirs):
            assert who.read() == {1: (8, age, "me"), 2: (0, age, "me"), 4: (9, age, "me")}


def test_how_many_requests_it_takes_to_read() -> None:
    """One that asks for all, once that they are known to be there."""
    store = ScriptedStore(HashStore())
    ours = Board(store, 100, PREFIX)
    ours.read()
    store.operations.clear()
    for _ in range(3):
        ours.read()
    assert store.operations == ["multi_get"] * 3


def test_the_form_is_what_came_first(connect: Connect, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = Board(connect(), 2, PREFIX), Board(connect(), 3, PREFIX)
    assert first.form() is None
    for _ in range(2):
        first.agree(4)
        assert first.form() == second.form() == (2, 4)
    with pytest.raises(FleetError, match=r"same: world_size is 2 there and 3 here$"):
        second.agree(4)
    with pytest.raises(FleetError, match=r"same: every is 4 there and 5 here$"):
        first.agree(5)
    monkeypatch.setattr(board, "_FORMAT", "2")
    with pytest.raises(FleetError, match="by another version of this package"):
        first.form()
    with pytest.raises(FleetError, match="by another version of this package"):
        first.agree(4)


@pytest.mark.parametrize("form", ["1", "1 abc 3", "1 -3 1", "1 60000000 1", "\N{SNOWMAN}"])
def test_a_form_that_something_else_has_written(form: str) -> None:
    board = Board(HashStore(), 1, PREFIX)
    board.store.set("job/form", form)
    with pytest.raises(FleetError, match="by something else"):
        board.form()


@pytest.mark.parametrize("text", ["garbage", "1 2", "-1 2.0 x", "1 -inf x", "1 2.0 x y"])
def test_what_something_else_has_written_is_no_rank(text: str) -> None:
    board = Board(HashStore(), 2, PREFIX)
    board.publish(0, 3, "x")
    board.store.set("rank/1", text)
    assert [(rank, seen.step) for rank, seen in board.read().items()] == [(0, 3)]
