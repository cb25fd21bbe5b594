"""Each act on a shared filesystem, in combinations of what such filesystems do: it works, or fails and changes nothing.

What is tried together: whether locks reach other hosts, caches of names and attributes, and one thing that fails: an
error that comes late, at fsync or close, and ESTALE, for a moment and for as long as the act takes. A reader has a
checkpoint mapped meanwhile, so what is removed gets a silly name. ``CKSTORE_CRASH=full`` tries every combination; else
a few that are drawn.
"""

from __future__ import annotations

import itertools
import os
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from ckstore import Store
from ckstore.errors import CkstoreError, UnknownOutcome
from tests.cluster.acts import Act, base, cleared, seen, state
from tests.cluster.conftest import Stage
from tests.support.requirements import CRASH_FULL, require_fuse, require_root
from tests.support.shared_folder import shared_folder
from tests.support.stores import check_blobs, check_links

_FAILS = ("", "fsync", "close", "stale twice", "stale")
_SEED = int(os.environ.get("CKSTORE_CRASH_SEED", "28"))
_DRAWN = 1

pytestmark = [
    pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning"),
    pytest.mark.crash,
]


class Switches(NamedTuple):
    """What the filesystem does."""

    locks: bool
    cache_s: float
    fails: str

    def __str__(self) -> str:
        words = (
            "cluster" if self.locks else "host",
            f"{self.cache_s:g} s",
        )
        return ", ".join((*words, self.fails or "nothing fails"))


def combinations() -> list[Switches]:
    every = [Switches(*one) for one in itertools.product((False, True), (0.0, 1.0), _FAILS)]
    if CRASH_FULL:
        return every
    drawing = random.Random(_SEED)
    return [drawing.choice([one for one in every if one.fails == fails]) for fails in drawing.sample(_FAILS, _DRAWN)]


@pytest.fixture(params=combinations(), ids=str)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """A filesystem with these switches, and what puts its failure on and off."""
    require_root()
    require_fuse()
    switches: Switches = request.param
    name, _, often = switches.fails.partition(" ")
    for folder in ("real", "switches"):
        (tmp_path / folder).mkdir()
    switch = tmp_path / "switches" / (name or "none")

    def put(on: bool) -> None:
        if on:
            switch.write_text("2" if often else "")
        else:
            switch.unlink(missing_ok=True)

    with shared_folder(
        tmp_path / "real",
        tmp_path / "shown",
        cache_s=switches.cache_s,
        locks=switches.locks,
        switches=tmp_path / "switches",
    ) as shown:
        yield shown, put
    check_links(tmp_path / "real/store")
    check_blobs(tmp_path / "real/store")


def test_each_act_works_or_fails_and_changes_nothing(
    place: tuple[Path, Callable[[bool], None]], stages: dict[str, Stage]
) -> None:
    shown, put = place
    outside = shown / "outside"
    outside.mkdir()
    put(True)
    try:
        Store.init(shown / "store")
    except CkstoreError:
        pass
    finally:
        put(False)
    with base(shown / "store") as store:
        mapped = store.load(1, mmap=True)
        for act, _, before, after in stages.values():
            put(True)
            try:
                failed = carried_out(act, store, outside)
            finally:
                put(False)
            now = seen(store, outside)
            if failed is None or isinstance(failed, UnknownOutcome):
                assert now == after or (failed and now == before), act.name
            else:
                assert now == before, f"{act.name} failed with {failed!r}"
                assert carried_out(act, store, outside) is None
                assert seen(store, outside) == after, act.name
        assert (mapped["w"] == state(1)["w"]).all()
        del mapped
        cleared(store)
        assert store.verify().ok


def carried_out(act: Act, store: Store, outside: Path) -> CkstoreError | None:
    """Return the error with which it failed, which has a type of ours."""
    try:
        act.do(store, outside)
    except CkstoreError as error:
        return error
    return None
