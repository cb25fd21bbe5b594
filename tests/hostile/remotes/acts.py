"""All that a user does with a remote; afterwards the checkpoint that was here before loads bit for bit."""

from __future__ import annotations

import contextlib
import gc
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

from ckstore import CkstoreError, RemoteError, Store
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from tests.faults.states import fingerprint
from tests.hostile.acts import Act
from tests.hostile.places import state
from tests.hostile.remotes.contents import Contents
from tests.hostile.scene import Scene

OWN = "mine@1"
"""The checkpoint of the victim's own store."""
ADDRESS = "memory://hostile/run"
_STACK_BYTES = 2**18
REFS = ("main@latest", "main@2", "main@3", "files@3", "best", "main@1")


def make_own_store(path: Path) -> None:
    """Make the store of the user who meets the remote."""
    Store.init(path, chunk_bytes=2**20).save(state(77), step=1, run="mine")


def of_objects(contents: Contents, scene: Scene) -> Iterator[Act]:
    """Give the acts with a remote in memory that holds `contents`."""
    yield Act("fill the remote", partial(_fill, contents))
    yield from _acts(scene.store, scene, ADDRESS)
    store = Store.open(scene.store)
    yield Act("prune what would go", lambda: store.remotes.prune("far", dry_run=True))
    yield Act("prune", lambda: store.remotes.prune("far"))
    yield Act("prune again", lambda: store.remotes.prune("far", grace=60))
    yield Act("prune alone", lambda: store.remotes.prune("far", exclusive=True, grace=60))
    yield Act("pull after the prunes", lambda: store.pull(OWN, "far", if_exists="keep"))
    yield Act("probe", lambda: store.remotes.probe("far"))
    yield Act("open by its URL", partial(_open_url, ADDRESS))
    yield Act("own checkpoint at the end", partial(_own, scene.store))


def of_directory(scene: Scene) -> Iterator[Act]:
    """Give the acts with the store of the scene as the remote, in a directory."""
    own = scene.out / "own"
    yield Act("make a store", partial(make_own_store, own))
    yield from _acts(own, scene, str(scene.store))


def _acts(own: Path, scene: Scene, address: str) -> Iterator[Act]:
    store = Store.open(own)
    yield Act("add", partial(store.remotes.add, "far", address))
    yield Act("list", lambda: [str(entry) for entry in store.remotes])
    for ref in REFS:
        yield Act(f"plan pull {ref}", lambda ref=ref: str(store.pull(ref, "far", dry_run=True)))  # type: ignore[misc]
        yield Act(f"pull {ref}", partial(store.pull, ref, "far"))
        yield Act(f"load {ref}", partial(store.load, ref))
    yield Act("plan pull all", lambda: store.pull(remote="far", all=True, dry_run=True))
    yield Act("pull all", lambda: store.pull(remote="far", all=True))
    yield Act("pull what is tagged", lambda: store.pull(remote="far", tagged=True, if_exists="replace"))
    yield Act("plan push", lambda: store.push(OWN, "far", dry_run=True))
    yield Act("evict before the push", lambda: _refused(store))
    yield Act("push", lambda: store.push(OWN, "far"))
    yield Act("push all", lambda: store.push(remote="far", all=True))
    yield Act("verify", store.verify)
    yield Act("evict what would go", lambda: store.evict(OWN, "far", dry_run=True))
    yield Act("evict", lambda: store.evict(OWN, "far"))
    yield Act("evict all", lambda: store.evict(remote="far", all=True))
    yield Act("gc", store.gc)
    yield Act("own checkpoint", partial(_own, own))
    yield from _clone(scene, address)


def _clone(scene: Scene, address: str) -> Iterator[Act]:
    path, clones = scene.out / "clone", list[Store]()
    yield Act("clone", lambda: clones.append(Store.clone(address, path)))
    if not clones:
        return
    clone = clones[0]
    yield Act("clone again", partial(Store.clone, address, path))
    yield Act("checkpoints", lambda: [str(info) for info in clone.checkpoints()])
    yield Act("tags and pins", lambda: (clone.tags(), clone.pins()))
    for ref in REFS:
        to = scene.out / f"{ref}-far"
        yield Act(f"far info {ref}", partial(clone.info, ref))
        yield Act(f"far load {ref}", partial(clone.load, ref))
        yield Act(f"far load into {ref}", lambda ref=ref: clone.load_into(state(7), ref, strict=False))  # type: ignore[misc]
        yield Act(f"far slice {ref}", partial(_slice, clone, ref))
        yield Act(f"far diff {ref}", partial(clone.diff, ref, "main@1"))
        yield Act(f"far checkout {ref}", partial(clone.checkout, ref, to))
        yield Act(f"far verify {ref}", partial(clone.verify, ref))
        yield Act(f"far pull {ref}", partial(clone.pull, ref))
    yield Act("far latest valid", lambda: clone.load("main@latest-valid"))
    yield Act("far doctor", clone.doctor)
    yield Act("far follow", lambda: [*clone.follow("main", remote="origin", poll_s=0.1, timeout_s=0.2)])
    yield Act("far gc", clone.gc)
    yield Act("far save", lambda: clone.save(state(3), run="new"))
    yield Act("far save again", lambda: _equal(clone.load("new@latest"), 3))


def _fill(contents: Contents) -> None:
    # A thread sets aside 8 MiB of addresses, which are what is bounded here.
    threading.stack_size(_STACK_BYTES)
    objects = ServiceObjects(Target("url", ADDRESS))
    for key, data in contents.items():
        with contextlib.suppress(RemoteError):  # a key that this service does not take
            objects.put(key, data)
    contents.clear()
    gc.collect()


def _refused(store: Store) -> None:
    report = store.evict(OWN, "far")
    assert not report.evicted, "bytes were let go that were never pushed"


def _own(path: Path) -> None:
    try:
        loaded = Store.open(path).load(OWN)
    except RemoteError:
        # It was let go after every byte was seen there; a prune of the user's own may have followed. The words count.
        raise AssertionError(f"{OWN} was let go, and the remote does not have it") from None
    assert fingerprint(loaded) == fingerprint(state(77)), f"{OWN} is another one"


def _equal(loaded: object, seed: int) -> None:
    assert fingerprint(loaded) == fingerprint(state(seed)), "a save in the clone is another one"


def _slice(store: Store, ref: str) -> None:
    with store.open_checkpoint(ref) as checkpoint:
        for leaf in checkpoint.leaves()[:3]:
            if leaf.shape and leaf.shape[0]:
                checkpoint.slice(leaf.name)[0:2]


def _open_url(address: str) -> None:
    there = Store.open(address)
    there.checkpoints()
    with contextlib.suppress(CkstoreError):
        there.load("main@latest")
    there.latest(run="main")
