"""An eviction or a pull that is killed anywhere: gc frees what is free, and says nothing false of what is not."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from ckstore import Store
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.crashing import run_and_kill
from tests.support.stores import check_links

pytestmark = pytest.mark.usefixtures("no_mirror_process")
_REMOTE = "cold"


def _evict(store: Store) -> None:
    store.evict(1, _REMOTE)


def _pull(store: Store) -> None:
    store.pull(1, _REMOTE)


@pytest.mark.parametrize("act", [_evict, _pull])
def test_a_gc_after_a_kill_anywhere_frees_what_is_free(tmp_path: Path, act: Callable[[Store], None]) -> None:
    made = Store.init(tmp_path / "made", chunk_bytes=MIB)
    made.remotes.add(_REMOTE, tmp_path / "remote")
    for step in (1, 2):
        made.save(state(step), step=step)
    made.push(all=True, remote=_REMOTE)
    if act is _pull:
        _evict(made)
        made.gc()
    made.close()
    for at in itertools.count(1):
        path = tmp_path / f"store-{at}"
        shutil.copytree(tmp_path / "made", path, symlinks=True)
        with Store.open(path) as store:
            store.reindex(relink=True)

        was_killed = run_and_kill(lambda path=path: act(Store.open(path)), at=at, before=True)  # type: ignore[misc]

        with Store.open(path) as store:
            report = store.gc(now=True)
            assert (report.linked_elsewhere, report.held) == ((), ()), f"at {at}: {report}"
            # What is evicted needs no local bytes, and what is pulled is back.
            here = {blob.name for blob in path.glob("checkpoints/*/*/blobs/*")}
            assert {blob.name for blob in path.glob("blobs/*/*")} == here, f"at {at}"
            assert same(store.load(1), state(1))
            store.pull(1, _REMOTE)
            assert not store.info(1).elsewhere
        check_links(path)
        shutil.rmtree(path)
        if not was_killed:
            return
