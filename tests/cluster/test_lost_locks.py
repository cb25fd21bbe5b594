"""A lock that other hosts see is lost while its holder waits for the disk, and another host has it meanwhile.

On a local disk, with a catalog that says that other hosts may be at work.
"""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import InUse
from ckstore.fs import files, locks
from ckstore.fs.lock_files import LockFile
from ckstore.objects import publish
from tests.support.stores import check_blobs, check_links


def state(seed: int) -> dict[str, Any]:
    return {"w": np.full(3000, seed)}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """A store with step 1, and something in each small file."""
    store = Store.open_or_init(tmp_path / "store", catalog_path=tmp_path / "its.db")
    store.save(state(1), step=1)
    store.annotate(1, {"loss": 0.5})
    store.config.grace_s = 7
    return store


class Lost(NamedTuple):
    """An act that loses its lock.

    Attributes:
        act: What is done.
        where: The module of the call after which the lock is lost, and its name there.
        lock: The name of the lock.
    """

    act: Callable[[Store], object]
    where: tuple[Any, str]
    lock: str = "run-main"


_ACTS = {
    "publish": Lost(lambda store: store.save(state(2), step=2), (publish, "_sound_of_step")),
    "replace": Lost(
        lambda store: store.save(state(2), step=1, if_exists="replace", parent=1), (publish, "_sound_of_step")
    ),
    "config": Lost(lambda store: setattr(store.config, "grace_s", 8), (files, "create_file"), "store"),
    "annotate": Lost(lambda store: store.annotate(1, {"loss": 0.25}), (files, "create_file"), "store"),
    "tag": Lost(lambda store: store.tag("best", 1), (files, "sync_directory")),
    "pin": Lost(lambda store: store.pin(1, "for the paper"), (files, "sync_directory")),
}


@pytest.mark.parametrize("lost", _ACTS.values(), ids=_ACTS)
@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
def test_what_loses_its_lock_in_the_middle_changes_nothing(
    lost: Lost, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, name = lost.where
    waits = getattr(module, name)
    losses = 0

    def losing(*given: Any, **named: Any) -> Any:
        nonlocal losses
        found = waits(*given, **named)
        for held in locks._held:
            if held.file is not None and held.file.path.name == lost.lock and not losses:
                fcntl.flock(held.file._fd, fcntl.LOCK_UN)
                LockFile.take(held.file.path, exclusive=True, timeout_s=0.0).close()
                losses += 1
        return found

    before = seen(store)
    monkeypatch.setattr(module, name, losing)
    with pytest.raises(InUse, match="was lost"):
        lost.act(store)
    monkeypatch.setattr(module, name, waits)

    assert losses == 1
    assert seen(store) == before
    assert not list(store.path.rglob(".new-*"))
    assert not list(store.path.glob("checkpoints/*/.*"))
    lost.act(store)
    assert seen(store) != before
    check_links(store.path)
    check_blobs(store.path)


def seen(store: Store) -> object:
    return (
        [(info.name, info.id, info.metrics, info.tags, int(store.load(info)["w"][0])) for info in store.checkpoints()],
        [pin.reason for pin in store.pins()],
        store.config.grace_s,
    )
