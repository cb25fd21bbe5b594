"""Stores that are saved to in the background, and savers that meet with something."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckstore import Store
from ckstore.saver.client import process

DEADLINE_S = 120.0


def wait_for(condition: Callable[[], object], what: str) -> None:
    """Wait until something is so."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        assert time.monotonic() < end, f"not so after {DEADLINE_S} s: {what}"
        time.sleep(0.01)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    """A store, whose savers have ended when the test has."""
    before = process.reap()
    with Store.init(tmp_path / "store", chunk_bytes=2**20) as made:
        yield made
    wait_for(lambda: process.reap() <= before, "every saver has ended")


@pytest.fixture
def strike(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Have savers that are started from now on meet with something at a state; give the folder that shows it."""

    def struck(state: str, what: str, times: int = 2) -> Path:
        folder = tmp_path / "struck"
        folder.mkdir()
        asked = {"state": state, "what": what, "times": times, "folder": str(folder)}
        monkeypatch.setitem(os.environ, "CKSTORE_TEST_SAVER", json.dumps(asked))
        monkeypatch.setattr(process, "ENTRY", "tests.saver.double")
        return folder

    return struck
