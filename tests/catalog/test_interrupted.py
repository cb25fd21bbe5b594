"""A signal that comes in the middle of a query: what its handler raises arrives, and says nothing about the catalog."""

from __future__ import annotations

import ctypes
import itertools
import signal
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from ckstore import Store
from ckstore.catalog import row_checks
from ckstore.catalog.connection import BoundedConnection

QUERIES: dict[str, Callable[[Store], object]] = {
    "checkpoints": lambda store: store.checkpoints(),
    "info": lambda store: store.info(2),
    "save": lambda store: store.save({"step": 7}, step=2, if_exists="replace"),
}


class HandlerError(Exception):
    """What the handler raises."""


@pytest.mark.crossed
@pytest.mark.parametrize("raised", [KeyboardInterrupt, SystemExit, HandlerError])
@pytest.mark.parametrize("query", QUERIES)
def test_what_a_handler_raises_in_a_query_arrives_and_the_next_query_works(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: str, raised: type[BaseException]
) -> None:
    store = Store.init(tmp_path / "store")
    for step in range(3):
        store.save({"step": step}, step=step)

    with _signal_in_a_checksum(monkeypatch, raised), pytest.raises(raised, match="of this test"):
        QUERIES[query](store)

    assert [info.step for info in store.checkpoints()] == [0, 1, 2]
    assert [info.step for info in Store.open(store.path).checkpoints()] == [0, 1, 2]


@contextmanager
def _signal_in_a_checksum(patch: pytest.MonkeyPatch, raised: type[BaseException]) -> Iterator[None]:
    """Let a signal come at each step of a statement that has a checksum; its handler raises the first time.

    The handler runs in the first Python code that follows a step.
    """
    number = signal.SIGUSR1
    came = []
    execute = BoundedConnection.execute
    raise_signal = ctypes.CDLL(None)["raise"]  # that of C: Python's own also runs the handler

    def handle(*_: object) -> None:
        came.append(number)
        if len(came) == 1:
            raise raised("of this test")

    def executing(connection: BoundedConnection, sql: str, parameters: Any = ()) -> sqlite3.Cursor:
        if row_checks.CHECKSUM in sql:
            connection.set_progress_handler(map(raise_signal, itertools.repeat(number)).__next__, 1)
        return execute(connection, sql, parameters)

    before = signal.signal(number, handle)
    try:
        with patch.context() as within:
            within.setattr(BoundedConnection, "execute", executing)
            yield
    finally:
        signal.signal(number, before)
