"""A store before each act, and what is seen of it: made once on a local disk, for all tests of an act."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from ckstore.objects import reserve
from tests.cluster.acts import ACTS, Act, Seen, base, seen


class Stage(NamedTuple):
    """An act, with what goes before it.

    Attributes:
        act: What is to be done.
        store: A store in which all acts before it were done; for copying.
        before: What is seen before.
        after: What is seen after it.
    """

    act: Act
    store: Path
    before: Seen
    after: Seen


@pytest.fixture(autouse=True)
def _little_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is no fallocate the C library writes into each block to try for room: 256 calls that are alike."""
    monkeypatch.setattr(reserve, "LEAST_BYTES", 4 * 4096)


@pytest.fixture(scope="session")
def stages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Stage]:
    """Each act by its name, in their order."""
    place = tmp_path_factory.mktemp("local")
    outside = place / "outside"
    outside.mkdir()
    found = {}
    with base(place / "store") as store:
        before = seen(store, outside)
        for act in ACTS:
            copied(place / "store", place / act.name)
            act.do(store, outside)
            after = seen(store, outside)
            found[act.name] = Stage(act, place / act.name, before, after)
            before = after
    return found


def copied(store: Path, target: Path) -> None:
    """Copy a store with its hardlinks and times."""
    subprocess.run(["cp", "-a", str(store), str(target)], check=True, timeout=60)
