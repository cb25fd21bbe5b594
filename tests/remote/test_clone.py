"""Clone: a new store lists all checkpoints of a remote at once, and reads their bytes from it."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from ckstore import (
    BadInput,
    BytesElsewhere,
    CheckpointInfo,
    CkstoreError,
    CkstoreWarning,
    NoSuchRemote,
    RemoteError,
    Store,
)
from ckstore.remote.remote_only.clone import list_remote
from tests.remote.double import REMOTES, Double, Fault, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.s3_server import Service


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.save(state(1), step=1, metrics={"loss": 2.0})
    made.save(state(2), step=2)
    made.tag("best", 1)
    made.pin(1, "paper")
    made.annotate(1, metrics={"bleu": 1.0})
    return made


def test_a_clone_lists_everything_has_no_bytes_and_trains_on(store: Store, tmp_path: Path) -> None:
    clone = Store.clone(store.path, tmp_path / "clone")
    assert [(info.id, info.elsewhere) for info in clone.checkpoints()] == [
        (info.id, True) for info in store.checkpoints()
    ]
    assert not list(clone.path.rglob("xxh3-*"))
    assert clone.info("best").metrics == {"loss": 2.0, "bleu": 1.0}
    assert len(clone.pins()) == 1
    assert clone.settings.chunk_bytes == MIB
    assert same(clone.load("latest"), state(2))
    assert same(clone.load("latest-valid"), state(2))
    target = state(9)
    clone.load_into(target, "best")
    assert same(target, state(1))
    assert clone.save(state(3)).step == 3
    assert clone.verify().ok
    assert clone.pull(2).moved_bytes > 3 * MIB
    assert not clone.info(2).elsewhere
    clone.gc()
    assert same(clone.load(2), state(2))


def test_a_clone_is_complete_from_the_start_and_gc_does_not_suggest_deleting_evicted_checkpoints(
    store: Store, tmp_path: Path
) -> None:
    clone = Store.clone(store.path, tmp_path / "clone")

    assert clone.verify().findings == ()
    clone.save(state(3), step=3)
    clone.save(state(4), step=4)
    clone.untag("best")
    assert "deleting the oldest checkpoint main@3 would free" in clone.gc().explanation


def test_a_repeated_clone_adds_new_checkpoints(store: Store, tmp_path: Path) -> None:
    Store.clone(store.path, tmp_path / "clone")
    store.save(state(4), step=4)
    clone = Store.clone(store.path, tmp_path / "clone")
    assert [info.step for info in clone.checkpoints()] == [1, 2, 4]


def test_a_repeated_clone_adds_the_tags_and_pins_that_a_killed_one_did_not(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def die(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("ckstore.remote.remote_only.clone.take_names", die)
        with pytest.raises(KeyboardInterrupt):
            Store.clone(store.path, tmp_path / "clone")
    clone = Store.clone(store.path, tmp_path / "clone")
    assert [(tag.name, tag.step) for tag in clone.tags()] == [("best", 1)]
    assert [pin.reason for pin in clone.pins()] == ["paper"]


def test_a_clone_of_a_place_without_a_remote_leaves_nothing(store: Store, tmp_path: Path) -> None:
    with pytest.raises(NoSuchRemote, match="neither a store nor a remote"):
        Store.clone(tmp_path / "nothing", tmp_path / "clone")
    assert not (tmp_path / "clone").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    with pytest.raises(BadInput):
        Store.clone(store.path, tmp_path / "full")
    assert os.listdir(tmp_path / "full") == ["file"]


def test_a_store_that_may_not_be_read_is_an_error_of_ckstore_and_leaves_nothing(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def closed(root: Path) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(root / "store.json"))

    monkeypatch.setattr("ckstore.remote.remote_opener.read_settings", closed)
    with pytest.raises(CkstoreError, match=r"Permission denied.*store\.json"):
        Store.clone(store.path, tmp_path / "clone")

    assert not (tmp_path / "clone").exists()


def test_a_clone_of_a_wrong_address_names_it(service: Service, tmp_path: Path) -> None:
    target = service.target("runn")

    with pytest.raises(NoSuchRemote, match=f"there is no remote at {target.address}") as raised:
        Store.clone(target.address, tmp_path / "clone", endpoint=target.endpoint)

    assert "check the address" in raised.value.hint
    assert not (tmp_path / "clone").exists()


def test_a_clone_of_object_storage(store: Store, service: Service, tmp_path: Path) -> None:
    target = service.target("run")
    with pytest.raises(RemoteError):
        Store.clone(target.address, tmp_path / "clone", endpoint=target.endpoint, region=target.region)
    assert not (tmp_path / "clone").exists()
    store.remotes.add("cloud", target.address, endpoint=target.endpoint, region=target.region)
    store.push(all=True)
    clone = Store.clone(target.address, tmp_path / "clone", endpoint=target.endpoint, region=target.region)
    assert [info.name for info in clone.checkpoints()] == ["main@1", "main@2"]
    assert same(clone.load("best"), state(1))


def test_one_damaged_manifest_keeps_no_other_one_from_being_listed(
    store: Store, service: Service, tmp_path: Path
) -> None:
    target = service.target("run")
    store.remotes.add("cloud", target.address, endpoint=target.endpoint, region=target.region)
    for step in range(3, 10):
        store.save({"x": step}, step=step)
    store.push(all=True)
    for key, (data, etag, when) in [*service.objects.items()]:
        if key.endswith("manifest.json") and "/main/2/" not in key:
            service.objects[key] = data[:-9], etag, when
    with pytest.warns(CkstoreWarning) as caught:
        clone = Store.clone(target.address, tmp_path / "clone", endpoint=target.endpoint, region=target.region)
    assert [info.name for info in clone.checkpoints()] == ["main@2"]
    assert [str(one.message) for one in caught][-1] == (
        "3 more checkpoints of origin could not be read from the remote, and were not listed"
    )
    assert same(clone.load(2), state(2))


def test_removing_the_only_remote_of_listed_checkpoints_warns(store: Store, tmp_path: Path) -> None:
    clone = Store.clone(store.path, tmp_path / "clone")
    with pytest.warns(CkstoreWarning, match=r"2 checkpoints .* may fail to load until .* is added again as origin"):
        clone.remotes.remove("origin")
    with pytest.raises(BytesElsewhere) as raised:
        clone.load(2)
    assert "ckstore remote add origin PLACE" in raised.value.hint
    clone.remotes.add("origin", store.path)
    assert same(clone.load(2), state(2))


@pytest.fixture
def away(store: Store) -> str:
    return new_remote(store.settings)[1]


def again(store: Store, away: str, seed: int) -> CheckpointInfo:
    """Save and push another checkpoint at step 2, like a training that resumed from step 1."""
    saved = store.save(state(seed), step=2, if_exists="replace")
    store.push(2, away)
    return saved


def listing(away: str, path: Path) -> Store:
    clone = Store.open_or_init(path, chunk_bytes=MIB)
    list_remote(clone._context, REMOTES[away])
    return clone


def test_a_clone_lists_the_newest_checkpoint_of_a_step(store: Store, away: str, tmp_path: Path) -> None:
    store.push(all=True, remote=away)
    seed, old = 3, store.info(2)
    while (newest := again(store, away, seed)).id < old.id:  # the greater id must not be what decides
        seed += 1
    clone = listing(away, tmp_path / "clone")
    assert clone.info(2).id == newest.id
    assert same(clone.load("latest"), state(seed))


def test_a_listed_checkpoint_is_superseded_by_a_later_one_of_its_remote(
    store: Store, away: str, tmp_path: Path
) -> None:
    store.push(all=True, remote=away)
    listing(away, tmp_path / "clone")
    newest = again(store, away, 3)
    clone = listing(away, tmp_path / "clone")
    assert clone.info(2).id == newest.id
    assert same(clone.load(2), state(3))
    assert clone.verify().ok


@pytest.mark.parametrize("how", ["bytes", "remote"])
def test_checkpoints_with_local_bytes_or_on_another_remote_stay_current(
    store: Store, away: str, tmp_path: Path, how: str
) -> None:
    clone = Store.clone(store.path, tmp_path / "clone") if how == "remote" else None
    store.push(all=True, remote=away)
    clone = clone or listing(away, tmp_path / "clone")
    old = clone.info(2)
    if how == "bytes":
        clone.pull(2, away)
    again(store, away, 3)
    listing(away, tmp_path / "clone")
    assert clone.info(2).id == old.id


@pytest.mark.parametrize("kind", ["store", "objects"])
def test_a_tag_from_a_clone_follows_its_source(store: Store, away: str, tmp_path: Path, kind: str) -> None:
    """V14: the step follows its source, and so does a tag that was not moved locally."""
    store.unpin("main@1")
    if kind == "objects":
        store.push(all=True, remote=away)
    remote = REMOTES[away] if kind == "objects" else None

    def listed() -> Store:
        return listing(away, tmp_path / "clone") if remote else Store.clone(store.path, tmp_path / "clone")

    old = listed().info("best")
    new = store.save(state(3), step=1, if_exists="replace", tags=["best"])
    if remote:
        store.push(1, away)
    clone = listed()
    assert [info.id for info in clone.checkpoints() if info.step == 1] == [new.id]
    assert same(clone.load(1), state(3))
    clone.gc(now=True)
    if remote:  # of a remote without a place in the settings it is not remembered what came from there
        assert (clone.info("best").id, clone.info("best").superseded) == (old.id, True)
        assert same(clone.load("best"), state(1))
    else:
        assert clone.info("best").id == new.id
        assert same(clone.load("best"), state(3))

    clone.untag("best")
    clone.gc(now=True)
    assert [info.id for info in clone.checkpoints(superseded=True) if info.step == 1] == [new.id]
    assert clone.verify().ok


@pytest.mark.parametrize("name", ["tag", "pin"])
def test_a_superseded_checkpoint_that_is_named_at_the_remote_is_listed(
    store: Store, away: str, tmp_path: Path, name: str
) -> None:
    old = store.info(2)
    if name == "tag":
        store.tag("old", 2)
    else:
        store.pin(2, "of the paper")
    new = again(store, away, 3)
    store.push(all=True, remote=away)
    clone = listing(away, tmp_path / "clone")
    assert [info.id for info in clone.checkpoints(superseded=True) if info.step == 2] == [old.id, new.id]
    clone.gc(now=True)
    assert same(clone.load(old.id), state(2))
    assert same(clone.load(2), state(3))


def test_listing_a_remote_drops_nothing_and_supersedes_no_local_checkpoint(
    store: Store, away: str, tmp_path: Path
) -> None:
    here = Store.init(tmp_path / "clone", chunk_bytes=MIB)
    mine = here.save(state(7), step=2)
    store.tag("old", 2)
    newest = again(store, away, 3)
    store.push(all=True, remote=away)
    assert mine.order < store.info("old").order < newest.order
    clone = listing(away, tmp_path / "clone")
    clone.gc(now=True)
    assert clone.info(2).id == mine.id
    assert same(clone.load(2), state(7))


def test_a_manifest_received_with_a_flipped_bit_is_read_again(store: Store, away: str, tmp_path: Path) -> None:
    store.push(all=True, remote=away)
    harmed: set[str] = set()

    def flip_once(call: str, key: str) -> Fault | None:
        if call == "get" and key.endswith("manifest.json") and key not in harmed:
            harmed.add(key)
            return "flip"
        return None

    objects = REMOTES[away].objects
    assert isinstance(objects, Double)
    objects.fault = flip_once
    assert [info.step for info in listing(away, tmp_path / "clone").checkpoints()] == [1, 2]
    assert len(harmed) == 2


def test_superseded_unnamed_checkpoints_of_a_remote_are_never_listed(store: Store, away: str, tmp_path: Path) -> None:
    store.push(all=True, remote=away)
    newest = again(store, away, 3)
    for _ in range(2):
        clone = listing(away, tmp_path / "clone")
        assert [info.id for info in clone.checkpoints(superseded=True) if info.step == 2] == [newest.id]
