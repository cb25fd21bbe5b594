"""Evict: no bytes are freed before the remote has them, and evicted checkpoints are listed, readable and undamaged."""

from __future__ import annotations

import json
import os
import pickle
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from ckstore import BytesElsewhere, CheckpointInfo, DamagedBlob, RemoteError, RetentionPolicy, Store
from ckstore.model.words import mending_there
from ckstore.objects.remote import remote_only
from ckstore.remote import keys
from ckstore.remote.objects import Remote
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_only import remote_reader
from ckstore.remote.source import ObjectSource
from tests.remote.double import REMOTES, Double, new_remote
from tests.remote.test_pull import same
from tests.remote.test_push import MIB, state
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.damage import flip
from tests.support.meanwhile import elsewhere
from tests.support.stores import check_store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.save(state(1), step=1, metrics={"loss": 2.0})
    made.save(state(2), step=2)
    return made


@pytest.fixture
def evicted(store: Store) -> tuple[Store, Double]:
    objects, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)
    report = store.evict(1, remote)
    assert [info.step for info in report.evicted] == [1]
    assert report.freed_bytes > 3 * MIB
    objects.forget_requests()
    return store, objects


def blob_files(store: Store) -> set[str]:
    return {path.name for path in store.path.rglob("xxh3-*")}


def test_eviction_frees_the_bytes_and_everything_reads_as_before(evicted: tuple[Store, Double], tmp_path: Path) -> None:
    store, objects = evicted
    assert os.listdir(blobs_dir(store.path, "main", 1)) == []
    assert blob_files(store) == set(os.listdir(blobs_dir(store.path, "main", 2)))
    assert [(info.step, info.elsewhere) for info in store.checkpoints()] == [(1, True), (2, False)]
    assert store.info(1).elsewhere
    assert same(store.load(1), state(1))
    assert same(Store.open(store.path).load(1), state(1))
    assert same(store.load(1, mmap=True), state(1))
    target = state(7)
    store.load_into(target, 1)
    assert same(target, state(1))
    with store.open_checkpoint(1) as ckpt:
        assert np.array_equal(ckpt.slice("big")[5:10], state(1)["big"][5:10])  # type: ignore[index]
    store.export(1, tmp_path / "out")
    assert (tmp_path / "out/model.safetensors").stat().st_size > 3 * MIB
    assert not store.diff(1, 2).same_content
    assert objects.request_count() > 0


def test_all_evicted_checkpoints_are_read_through_one_open_remote(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store") as store:
        store.remotes.add("mirror", str(tmp_path / "mirror"))
        for step in (1, 2, 3):
            store.save(state(step), step=step)
            store.push(step, remote="mirror")
            store.evict(step)
    made = []
    real = ObjectSource.__init__

    def make(self: ObjectSource, *given: Any) -> None:
        made.append(self)
        real(self, *given)

    monkeypatch.setattr(ObjectSource, "__init__", make)

    with Store.open(tmp_path / "store") as store:
        for step in (1, 2, 3):
            assert same(store.load(step), state(step))

    assert len(made) == 1
    check_store(tmp_path / "store")


@pytest.mark.filterwarnings("ignore:.*may fail to load until")
@pytest.mark.parametrize("fails_first", [False, True])
def test_a_remote_that_got_another_place_is_opened_again(tmp_path: Path, fails_first: bool) -> None:
    with Store.init(tmp_path / "store") as store:
        store.remotes.add("mirror", str(tmp_path / "mirror"))
        for step in (1, 2):
            store.save(state(step), step=step)
            store.push(step, remote="mirror")
            store.evict(step)
        assert same(store.load(1), state(1))
        (tmp_path / "mirror").rename(tmp_path / "moved")
        if fails_first:
            with pytest.raises(BytesElsewhere):
                store.load(2)
        store.remotes.remove("mirror")
        store.remotes.add("mirror", str(tmp_path / "moved"))

        assert same(store.load(2), state(2))
        check_store(store.path)


def test_a_pickled_open_checkpoint_fetches_as_the_one_that_was_pickled(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    with store.open_checkpoint(1) as opened, pickle.loads(pickle.dumps(opened)) as again:
        assert np.array_equal(again.slice("big")[5:10], state(1)["big"][5:10])  # type: ignore[index]
        assert same(again.load(), state(1))
    assert objects.request_count() > 0


def test_an_evicted_committed_file_is_restored_byte_for_byte(store: Store, tmp_path: Path) -> None:
    source = tmp_path / "run"
    source.mkdir()
    (source / "w.bin").write_bytes(os.urandom(3 * MIB + 5))
    store.commit(source, step=7)
    _, remote = new_remote(store.settings)
    store.push(7, remote)
    store.evict(7, remote)
    for link in ("auto", "copy", "hardlink"):
        store.checkout(7, tmp_path / link, link=link)
        assert (tmp_path / link / "w.bin").read_bytes() == (source / "w.bin").read_bytes()


def test_nothing_reports_an_evicted_checkpoint_as_damaged(evicted: tuple[Store, Double]) -> None:
    store, _ = evicted
    assert store.verify().ok
    assert store.verify(1).ok
    assert store.info("latest-valid").step == 2
    store.delete(2)
    assert store.info("latest-valid").step == 1
    assert same(store.load("latest-valid"), state(1))
    assert not [finding for finding in store.doctor().findings if "main@1" in finding.found]
    assert not (checkpoint_dir(store.path, "main", 1) / "damaged.json").exists()
    report = Store.open(store.path, recover=False).reindex()
    assert report.ok
    assert report.incomplete == ()
    assert report.orphan_count == report.copy_count == 0
    assert store.gc().freed_count == 0
    assert [info.step for info in Store.open(store.path).checkpoints()] == [1]


def test_retention_and_pins_handle_evicted_checkpoints(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    store.tag("best", 1)
    store.annotate(1, metrics={"bleu": 1.0})
    store.prune(RetentionPolicy(keep_last=1))
    assert [info.step for info in store.checkpoints()] == [1, 2]
    store.untag("best")
    store.prune(RetentionPolicy(keep_last=1))
    assert [info.step for info in store.checkpoints()] == [2]
    assert any(key.startswith("checkpoints/main/1/") for key in objects.held)


def test_saving_evicted_bytes_again_writes_them(evicted: tuple[Store, Double]) -> None:
    store, objects = evicted
    saved = store.save(state(1), step=3)
    assert saved.new_bytes > 3 * MIB
    assert same(store.load(3), state(1))
    assert objects.request_count() == 0
    assert store.verify().ok


def test_saving_an_evicted_step_again_gives_the_same_checkpoint(evicted: tuple[Store, Double]) -> None:
    store, _ = evicted
    before = store.info(1).id
    assert store.save(state(1), step=1).id == before
    from ckstore import StepExists

    with pytest.raises(StepExists):
        store.save(state(5), step=1)
    assert store.save(state(5), step=1, if_exists="keep").id == before
    store.save(state(5), step=1, if_exists="replace")
    assert same(store.load(1), state(5))
    assert not store.info(1).elsewhere


@pytest.mark.parametrize("if_exists", ["error", "keep", "replace"])
def test_a_save_of_the_same_content_restores_the_evicted_bytes(
    evicted: tuple[Store, Double], if_exists: Literal["error", "keep", "replace"]
) -> None:
    store, objects = evicted
    evicted_id = store.info(1).id
    objects.held.clear()

    saved = store.save(state(1), step=1, if_exists=if_exists)

    assert (saved.id == evicted_id) is (if_exists != "replace")  # which also replaces its metrics
    assert saved.warnings == ()
    assert not store.info(1).elsewhere
    assert same(store.load(1), state(1))
    check_store(store.path)


def test_a_pull_verifies_local_blobs_that_replace_evicted_ones(store: Store) -> None:
    shared = np.random.default_rng(5).integers(0, 256, 2 * MIB, dtype=np.uint8)
    for step in (3, 4):
        store.save({"shared": shared, "own": np.full(1000, step)}, step=step)
    _, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)
    store.evict(3, remote)
    largest = max(blobs_dir(store.path, "main", 4).iterdir(), key=lambda path: path.stat().st_size)
    flip(largest, keep_time=True)

    store.pull(3, "away")

    for step in (3, 4):
        assert not store.info(step).elsewhere
        assert np.array_equal(store.load(step)["shared"], shared)
    assert store.verify().ok
    check_store(store.path)


def test_a_pull_restores_the_bytes(evicted: tuple[Store, Double]) -> None:
    store, _ = evicted
    store.annotate(1, note="kept")
    report = store.pull(1, "away")
    assert report.new_count == 0
    assert report.moved_bytes > 3 * MIB
    assert ": no new checkpoint, " in str(report)
    info = store.info(1)
    assert not info.elsewhere
    assert [note.text for note in info.notes] == ["kept"]
    assert store.verify().ok
    check_store(store.path)
    assert store.gc().freed_count == 0
    assert same(ckstore_open(store, 1), state(1))


def ckstore_open(store: Store, step: int) -> object:
    import ckstore

    with ckstore.open_checkpoint(checkpoint_dir(store.path, "main", step)) as ckpt:
        return ckpt.load()


def test_a_load_during_a_pull_reads_what_the_pull_restores(
    evicted: tuple[Store, Double], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, _ = evicted
    document = remote_only.read_remote_only
    pulled: list[int] = []

    def pull_first(fd: int) -> Any:
        if not pulled:
            pulled.append(1)
            elsewhere(lambda: Store.open(store.path).pull(1, "away"))
        return document(fd)

    monkeypatch.setattr(remote_reader, "read_remote_only", pull_first)

    assert same(store.load(1), state(1))

    assert pulled
    assert not store.info(1).elsewhere


def test_blobs_shared_with_another_checkpoint_are_kept(store: Store) -> None:
    changed = state(1)
    changed["step"] = 3
    store.save(changed, step=3)
    _, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)
    store.evict(1, remote)
    assert same(store.load(3), changed)
    assert store.verify().ok
    assert len(os.listdir(blobs_dir(store.path, "main", 3))) > 3


@pytest.mark.parametrize("harm", ["missing", "short", "other", "manifest", "dropped", "never pushed"])
def test_only_checkpoints_at_the_remote_are_evicted(store: Store, harm: str) -> None:
    objects, remote = new_remote(store.settings)
    if harm != "never pushed":
        store.push(1, remote)
    blobs = [key for key in objects.held if key.startswith(keys.BLOBS)]
    place = keys.Place("main", 1, store.info(1).id)
    if harm == "missing":
        objects.delete(blobs[:1])
    elif harm == "short":
        objects.put(blobs[0], b"x")
    elif harm == "other":
        # The same size and another version: what was noted of it at the push counts no more.
        objects.put(blobs[0], b"x" * len(objects.held[blobs[0]]))
    elif harm == "manifest":
        objects.delete([place.manifest])
    elif harm == "dropped":
        objects.put(place.dropped, b"{}")
    before = blob_files(store)
    report = store.evict(1, remote)
    assert report.evicted == ()
    assert report.skipped[0].reason
    assert blob_files(store) == before
    assert not store.info(1).elsewhere
    assert same(store.load(1), state(1))


def test_reading_back_detects_a_bit_that_flipped_at_the_remote(store: Store, tmp_path: Path) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    key = next(key for key in objects.held if key.startswith(keys.BLOBS))
    objects.held[key] = objects.held[key][:-1] + bytes([objects.held[key][-1] ^ 1])  # the same version
    assert "damaged" in store.evict(1, remote).skipped[0].reason
    assert same(store.load(1), state(1))
    # A push looks at sizes: what the hint says is done.
    with pytest.raises(RemoteError) as raised:
        Store.init(tmp_path / "other", chunk_bytes=MIB).pull(1, remote)
    assert raised.value.hint.startswith(f"delete {key} from the remote, then push")
    objects.delete([key])
    store.push(1, remote)
    assert store.evict(1, remote).evicted
    assert same(store.load(1), state(1))


def test_a_damaged_manifest_at_the_remote_is_repaired_as_the_hint_says(store: Store, tmp_path: Path) -> None:
    objects, remote = new_remote(store.settings)
    place = place_of(store.push(1, remote).checkpoints[0])
    objects.held[place.manifest] = objects.held[place.manifest][:-9]
    with pytest.raises(RemoteError) as raised:
        store.pull(place.id, remote)
    assert raised.value.hint.startswith(f"delete {place.manifest} from the remote, then push")
    objects.delete([place.manifest])
    store.push(1, remote)
    assert Store.init(tmp_path / "other", chunk_bytes=MIB).pull(1, remote).new_count == 1


def test_verified_blobs_are_not_read_back_again(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.save({**state(1), "step": 3}, step=3)
    store.push(remote=remote, all=True)
    first = store.evict(1, remote)
    assert first.read_back_bytes > 3 * MIB
    assert store.evict(3, remote).read_back_bytes < MIB
    REMOTES[remote] = Remote(remote, objects, checks_bodies=True)
    assert store.evict(2, remote).read_back_bytes == 0


@pytest.mark.parametrize("how", ["gone", "damaged"])
def test_an_unreadable_checkpoint_does_not_stop_other_evictions(store: Store, how: str) -> None:
    objects, remote = new_remote(store.settings)
    store.save(state(3), step=3)
    store.push(remote=remote, all=True)
    manifest = checkpoint_dir(store.path, "main", 2) / "manifest.json"

    def harm(call: str, key: str) -> None:
        if "/main/1/" in key and manifest.exists():
            if how == "gone":
                shutil.rmtree(manifest.parent)
            else:
                manifest.write_bytes(manifest.read_bytes()[:-9])
            objects.fault = lambda *_: None

    objects.fault = harm
    report = store.evict(remote=remote, all=True)
    assert [info.step for info in report.evicted] == [1, 3]
    assert [skipped.info.step for skipped in report.skipped] == [2]


def test_dry_run_changes_nothing(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    objects.forget_requests()
    report = store.evict(remote=remote, all=True, dry_run=True)
    assert [info.step for info in report.evicted] == [1]
    assert [skipped.info.step for skipped in report.skipped] == [2]
    assert objects.requests["read"] == 0
    assert not store.info(1).elsewhere
    assert "would evict" in str(report)
    assert report.freed_bytes == store.evict(1, remote).freed_bytes > 0


def test_a_prune_of_evicted_checkpoints_says_why_it_frees_nothing(store: Store) -> None:
    _, remote = new_remote(store.settings)
    store.push(1, remote)
    store.evict(1, remote)

    report = store.prune(RetentionPolicy(keep_last=1), dry_run=True)

    assert [info.step for info in report.dropped] == [1]
    assert report.explanation == "would free nothing: their data is only on a remote"
    done = store.prune(RetentionPolicy(keep_last=1)).explanation
    assert done == "the dropped checkpoints free nothing: their data is only on a remote"


def test_an_open_checkpoint_keeps_its_bytes(store: Store) -> None:
    _, remote = new_remote(store.settings)
    store.push(1, remote)
    with store.open_checkpoint(1):
        planned, kept = store.evict(1, remote, dry_run=True), store.evict(1, remote)
        assert "open" in kept.skipped[0].reason
        assert planned.skipped == kept.skipped
    assert store.evict(1, remote).evicted


def test_only_the_needed_bytes_are_fetched(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    rng = np.random.default_rng(0)
    base = {f"layer{i}": rng.integers(0, 255, 2 * MIB, dtype=np.uint8) for i in range(4)}
    lora = {f"layer{i}.lora_{ab}": rng.random(1000 + i) for i in range(30) for ab in "AB"}
    tensor = rng.integers(0, 255, (200, MIB // 2), dtype=np.uint8)
    store.save({"base": base, "lora": lora, "tensor": tensor}, step=1)
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    store.evict(1, remote)
    objects.forget_requests()
    loaded = store.load(1, select="lora")
    needed = sum(array.nbytes for array in lora.values())
    assert same(loaded, {"lora": lora})
    assert objects.received_bytes <= 1.05 * needed
    assert objects.requests["read"] <= 8
    objects.forget_requests()
    with store.open_checkpoint(1) as ckpt:
        assert np.array_equal(ckpt.slice("tensor")[100:102], tensor[100:102])
    assert objects.received_bytes <= 0.02 * tensor.nbytes


def test_bytes_corrupted_in_transfer_are_read_again_and_never_mark_the_checkpoint(
    evicted: tuple[Store, Double],
) -> None:
    store, objects = evicted
    store.config.cache_bytes = 0
    flipped: set[str] = set()

    def flip_once(call: str, key: str) -> str | None:
        if call == "read" and key not in flipped:
            flipped.add(key)
            return "flip"
        return None

    objects.fault = flip_once  # type: ignore[assignment]
    assert same(store.load(1), state(1))
    objects.fault = lambda call, key: "flip" if call == "read" else None
    with pytest.raises(RemoteError, match="damaged on the remote") as raised:
        store.load(1)
    assert raised.value.hint == f"{mending_there()}; a store repairs it with store.verify(repair=True)"
    assert not (checkpoint_dir(store.path, "main", 1) / "damaged.json").exists()
    objects.fault = lambda *_: None
    assert same(store.load(1), state(1))


def test_an_unavailable_remote_is_reported(evicted: tuple[Store, Double], tmp_path: Path) -> None:
    store, objects = evicted
    store.config.cache_bytes = 0
    objects.fault = lambda call, key: "fail"
    with pytest.raises(BytesElsewhere, match=r"away: .*503"):
        store.load(1)
    objects.fault = lambda *_: None
    assert same(store.load(1), state(1))
    # Another remote that has the name by now is not asked.
    new_remote(store.settings)
    with pytest.raises(BytesElsewhere, match="another remote has the name away"):
        Store.open(store.path).load(1)
    import ckstore

    with (
        ckstore.open_checkpoint(checkpoint_dir(store.path, "main", 1)) as ckpt,
        pytest.raises(BytesElsewhere, match="stored only on a remote"),
    ):
        ckpt.load()


def test_an_older_reader_refuses_the_store(evicted: tuple[Store, Double]) -> None:
    store, _ = evicted
    assert json.loads((store.path / "store.json").read_bytes())["requires"] == ["checkpoint-ids", "elsewhere"]


def test_an_unreadable_elsewhere_file_is_not_trusted(evicted: tuple[Store, Double]) -> None:
    store, _ = evicted
    path = checkpoint_dir(store.path, "main", 1) / "elsewhere.json"
    whole = path.read_bytes()
    path.write_bytes(whole.replace(b"away", b"aw y"))
    os.utime(checkpoint_dir(store.path, "main", 1) / "manifest.json")
    with pytest.raises(DamagedBlob, match="is missing"):
        store.verify(1)
    assert not (path.parent / "damaged.json").exists()
    path.write_bytes(whole)
    assert store.verify(1).ok


def test_a_checkpoint_replaced_while_it_was_read_back_is_not_evicted(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    replaced: list[CheckpointInfo] = []

    def replace(call: str, _key: str) -> None:
        if call == "read" and not replaced:
            replaced.append(store.save(state(9), step=1, if_exists="replace"))

    objects.fault = replace
    report = store.evict(1, remote)
    assert "no longer exists" in report.skipped[0].reason
    assert same(ckstore_open(store, 1), state(9))


@pytest.mark.parametrize(
    "step", ["write_remote_only", "rename", "make_directory", "sync_directory", "touch", "touch again"]
)
def test_an_eviction_that_fails_at_any_step_leaves_a_checkpoint_that_reads(
    store: Store, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    from ckstore import CkstoreError
    from ckstore.fs import files, links
    from ckstore.remote.remote_only import evict as evicting

    _, remote = new_remote(store.settings)
    store.push(1, remote)

    def fail(*_: object, **__: object) -> None:
        raise OSError(5, "Input/output error")

    def fail_once_renamed(_: object) -> None:
        if not os.listdir(blobs_dir(store.path, "main", 1)):
            fail()

    with monkeypatch.context() as failing:
        if step == "touch again":
            failing.setattr(evicting, "touch", fail_once_renamed)
        elif step in ("write_remote_only", "touch"):
            failing.setattr(evicting, step, fail)
        else:
            module = files if step == "sync_directory" else links
            failing.setattr(evicting, "make_kept_durable", lambda *_: None)
            failing.setattr(module, step, fail)
        with pytest.raises(CkstoreError):
            store.evict(1, remote)
    again = Store.open(store.path)
    assert same(again.load(1), state(1))
    assert again.verify().ok
    again.evict(1, remote)
    assert again.pull(1, remote).checkpoints[0].step == 1
    assert same(ckstore_open(again, 1), state(1))
    check_store(store.path)
