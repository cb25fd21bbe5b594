"""A load that finds a damaged or missing blob fetches an intact copy from a remote, and repairs the store."""

from __future__ import annotations

import os
import shutil
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import CkstoreWarning, DamagedBlob, NoWholeCheckpoint, RemoteError, Store
from ckstore.objects.staging import Staging
from ckstore.remote import keys
from ckstore.remote.remote_only import remote_copies
from ckstore.remote.service.remote_entries import open_objects
from ckstore.remote.service.target import Target
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414 - a fixture
from tests.saver.conftest import wait_for
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir
from tests.support.damage import MIB, cut, flip
from tests.support.s3_proxy import Proxy
from tests.support.stores import check_store

BASE = np.arange(MIB, dtype=np.float32)


def state(step: int) -> dict[str, Any]:
    rng = np.random.default_rng(step)
    return {"base": BASE, "w": rng.random(MIB // 4), "small": {f"l{i}": rng.random(40) for i in range(8)}, "step": step}


def is_state(found: Any, step: int) -> bool:
    wanted = state(step)
    same = all(np.array_equal(found["small"][name], wanted["small"][name]) for name in wanted["small"])
    return same and all(np.array_equal(found[name], wanted[name]) for name in ("base", "w", "step"))


@pytest.fixture
def store(tmp_path: Path, memory: Target) -> Iterator[Store]:
    """A store with three checkpoints that share a frozen base, all of them at the remote `m`."""
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as made:
        made.remotes.add("m", memory.address)
        for step in (1, 2, 3):
            made.save(state(step), step=step)
        made.push(remote="m", all=True)
        yield made


def blobs_of(store: Store, step: int) -> list[Path]:
    """Return the blobs of a checkpoint: shared ones first, then the smallest."""
    found = blobs_dir(store.path, "main", step).iterdir()
    return sorted(found, key=lambda path: (-path.stat().st_nlink, path.stat().st_size, path.name))


def without_catalog(store: Store) -> Store:
    for path in store.path.glob("catalog.db*"):
        path.unlink()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return Store.open(store.path)


def shared_blob(store: Store) -> Path:
    return blobs_of(store, 3)[0]


def unlink_everywhere(path: Path, root: Path) -> None:
    inode = path.stat().st_ino
    for folder, _, names in os.walk(root):
        for name in names:
            if os.lstat(os.path.join(folder, name)).st_ino == inode:
                os.unlink(os.path.join(folder, name))


def lose_every_blob(store: Store, step: int) -> None:
    for path in blobs_of(store, step):
        unlink_everywhere(path, store.path)


HARMS: dict[str, Callable[[Store], None]] = {
    "flipped base": lambda store: flip(shared_blob(store), keep_time=True),
    "written base": lambda store: flip(shared_blob(store)),
    "short base": lambda store: cut(shared_blob(store), 1000),
    "lost base": lambda store: unlink_everywhere(shared_blob(store), store.path),
    "lost name": lambda store: shared_blob(store).unlink(),
    "flipped pack": lambda store: flip(blobs_of(store, 3)[-2], keep_time=True),
    "every blob lost": lambda store: lose_every_blob(store, 3),
    "lost blobs/": lambda store: shutil.rmtree(blobs_dir(store.path, "main", 3)),
}


def loaded_into(store: Store) -> dict[str, Any]:
    target = state(9)
    store.load_into(target, "latest-valid")
    return target


def loaded_open(store: Store) -> Any:
    with store.open_checkpoint(3) as checkpoint:
        return checkpoint.load()


LOADS: dict[str, Callable[[Store], Any]] = {
    "load": lambda store: store.load(3),
    "latest": lambda store: store.load(),
    "latest-valid": lambda store: store.load("latest-valid"),
    "mmap": lambda store: store.load(3, mmap=True),
    "unverified": lambda store: store.load("latest-valid", verify=False),
    "load_into": loaded_into,
    "open": loaded_open,
}


@pytest.mark.crossed
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("harm", HARMS)
def test_the_load_succeeds_and_repairs_the_store(store: Store, harm: str, load: str) -> None:
    HARMS[harm](store)
    if load == "unverified" and harm in ("flipped base", "flipped pack"):
        return  # no read notices it

    said = "main@3: repaired damaged or missing blobs: .* from the " + (
        "store" if harm in ("lost name", "lost blobs/") else "remote m"
    )
    with pytest.warns(CkstoreWarning, match=said) as caught:
        found = LOADS[load](store)

    assert len([one for one in caught if "repaired" in str(one.message)]) == 1
    assert caught[0].filename == __file__
    assert is_state(found, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for step in (1, 2, 3):
            assert is_state(store.load(step), step)
        assert is_state(store.load("latest-valid"), 3)
    assert store.verify().ok
    assert not list(store.path.rglob("damaged.json"))
    store.gc(now=True)
    check_store(store.path)


ASKING: dict[str, Callable[[Store], object]] = {
    "latest": lambda store: store.latest(),
    "latest valid": lambda store: store.latest(valid=True),
    "load": lambda store: store.load(),
    "load latest-valid": lambda store: store.load("latest-valid"),
    "load step": lambda store: store.load(3),
}


@pytest.mark.crossed
@pytest.mark.parametrize("lose", ["every blob lost", "lost base"])
@pytest.mark.parametrize("ask", ASKING)
def test_a_new_catalog_does_not_hide_what_the_remote_can_repair(store: Store, lose: str, ask: str) -> None:
    HARMS[lose](store)
    opened = without_catalog(store)

    with pytest.warns(CkstoreWarning, match="main@3: repaired"):
        assert ASKING[ask](opened) is not None

    assert opened.info().step == opened.info("latest-valid").step == 3
    assert is_state(opened.load(), 3)


def test_a_damaged_manifest_is_restored_from_the_remote(store: Store) -> None:
    manifest = checkpoint_dir(store.path, "main", 3) / "manifest.json"
    flip(manifest, at=manifest.stat().st_size // 2)
    opened = without_catalog(store)

    assert is_state(opened.load("latest-valid"), 3)
    assert opened.verify().ok


def test_damage_marked_by_a_failed_load_is_repaired_once_the_remote_answers(store: Store, memory: Target) -> None:
    objects = open_objects(memory)
    info = objects.get(keys.INFO, 10_000)
    assert info is not None
    objects.delete([keys.INFO])
    flip(shared_blob(store), keep_time=True)
    with pytest.raises(
        DamagedBlob, match=r"base of main@3 is damaged.*No remote has an intact copy: m: .*remote.json is missing"
    ):
        store.load(3)
    assert store.info(3).damaged
    objects.create(keys.INFO, info)

    with Store.open(store.path) as again, pytest.warns(CkstoreWarning, match="repaired"):
        assert is_state(again.load("latest-valid"), 3)

    assert not store.info(3).damaged
    assert store.verify().ok


def test_a_read_only_store_reads_from_the_remote_and_explains_why_it_repairs_nothing(store: Store) -> None:
    flip(shared_blob(store), keep_time=True)
    before = shared_blob(store).read_bytes()

    with Store.open(store.path, readonly=True) as reader:
        with pytest.warns(CkstoreWarning, match="read damaged .* without a repair: .*open for reading only") as caught:
            assert is_state(reader.load(3), 3)
        with pytest.warns(CkstoreWarning):
            assert is_state(reader.load("latest-valid"), 3)

    assert len(caught) == 1
    assert shared_blob(store).read_bytes() == before
    assert not os.listdir(store.path / "quarantine")


def test_a_load_succeeds_on_a_full_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(shared_blob(store), keep_time=True)
    real = store._context.measure
    monkeypatch.setattr(store._context, "measure", lambda new: replace(real(new), free_bytes=0))

    with pytest.warns(CkstoreWarning, match="read damaged .* without a repair: .*no room"):
        assert is_state(store.load(3), 3)

    monkeypatch.undo()
    with pytest.warns(CkstoreWarning, match="repaired"):
        store.load(3)
    check_store(store.path)


def counted_reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that records the digests requested from remotes."""
    asked: list[str] = []
    real = remote_copies._read_blob

    def counting(source: Any, blob: Any, places: Any) -> Any:
        asked.append(blob.digest)
        return real(source, blob, places)

    monkeypatch.setattr(remote_copies, "_read_blob", counting)
    return asked


def test_a_load_succeeds_if_the_repair_fills_the_disk(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, os.strerror(28))

    flip(shared_blob(store), keep_time=True)
    asked = counted_reads(monkeypatch)
    with monkeypatch.context() as patch:
        patch.setattr(Staging, "write", full)
        with pytest.warns(CkstoreWarning, match="without a repair: .*No space left"):
            assert is_state(store.load(3), 3)

    assert asked == [shared_blob(store).name]
    assert not store.info(3).damaged
    # No save relies on it: it is written again, and so repaired.
    store.save(state(4), step=4)
    assert store.verify().ok


def damage_at(target: Target, digest: str) -> None:
    objects = open_objects(target)
    key = keys.blob(digest)
    listed = objects.head(key)
    assert listed is not None
    data = bytearray(listed.nbytes)
    assert objects.read_into(key, 0, memoryview(data))
    data[100] ^= 1
    objects.delete([key])
    objects.create(key, bytes(data))


def test_a_remote_with_a_damaged_copy_is_named_and_the_next_one_is_asked(
    store: Store, memory: Target, tmp_path: Path
) -> None:
    flip(shared_blob(store), keep_time=True)
    damage_at(memory, shared_blob(store).name)
    with pytest.raises(DamagedBlob, match=r"m has a damaged copy of blob"):
        store.load(3)
    assert not os.listdir(store.path / "quarantine")

    with Store.init(tmp_path / "other", chunk_bytes=MIB) as other:
        other.save(state(7), step=7, run="elsewhere")  # the base is in another checkpoint there
    store.remotes.add("other", tmp_path / "other")

    with pytest.warns(CkstoreWarning, match="repaired damaged or missing blobs: .* from the remote other"):
        assert is_state(store.load(3), 3)
    assert store.verify().ok


def test_an_evicted_blob_comes_from_another_remote_when_its_own_has_lost_it(
    store: Store, memory: Target, tmp_path: Path
) -> None:
    store.evict(1, "m")
    objects = open_objects(memory)
    objects.delete([listed.key for listed in objects.list(keys.BLOBS)])
    with pytest.raises(RemoteError, match="m: it lacks the blob"):
        store.load(1)

    with Store.init(tmp_path / "other", chunk_bytes=MIB) as other:
        other.save(state(1), step=1)
    store.remotes.add("other", tmp_path / "other")

    with pytest.warns(CkstoreWarning, match=r"read .* from the remote other \(the checkpoint is evicted"):
        assert is_state(store.load(1), 1)


def test_committed_files_are_checked_out_and_repaired(store: Store, tmp_path: Path) -> None:
    data = np.random.default_rng(4).bytes(2 * MIB)
    (tmp_path / "weights.bin").write_bytes(data)
    store.commit(tmp_path / "weights.bin", step=9)
    store.push(9, remote="m")
    for path in blobs_of(store, 9):
        flip(path, keep_time=True)

    with pytest.warns(CkstoreWarning, match="main@9: repaired"):
        store.checkout(9, tmp_path / "out", link="hardlink")

    assert (tmp_path / "out/weights.bin").read_bytes() == data
    assert store.verify().ok


def test_without_a_remote_damage_is_an_error_and_nothing_is_quarantined(tmp_path: Path) -> None:
    with Store.init(tmp_path / "alone", chunk_bytes=MIB) as store:
        store.save(state(3), step=3)
        flip(blobs_of(store, 3)[-1], keep_time=True)

        with pytest.raises(DamagedBlob) as caught:
            store.load(3)

        assert "remote" not in str(caught.value)
        assert not os.listdir(store.path / "quarantine")


def test_several_readers_fetch_the_blob_once(store: Store, memory: Target, monkeypatch: pytest.MonkeyPatch) -> None:
    flip(shared_blob(store), keep_time=True)
    asked = counted_reads(monkeypatch)
    barrier = threading.Barrier(4)

    def load(_: int) -> bool:
        with Store.open(store.path) as own:
            barrier.wait(20)
            return is_state(own.load(3), 3)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with ThreadPoolExecutor(4) as pool:
            assert all(pool.map(load, range(4)))

    assert len(asked) == 1
    assert len({path.stat().st_ino for path in store.path.glob(f"**/{shared_blob(store).name}")}) == 1
    check_store(store.path)


def test_a_load_waits_only_once_for_a_remote_that_does_not_answer(
    tmp_path: Path, through: Target, proxy: Proxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote_copies, "CONTACT_S", 1.0)
    with Store.init(tmp_path / "far", chunk_bytes=MIB) as far:
        far.remotes.add("slow", through.address, endpoint=through.endpoint, region="us-east-1")
        far.save(state(3), step=3)
        far.save({"w": BASE + 1}, step=4)  # no blob is in both, or the second load would wait for the lock of one
        far.push(remote="slow", all=True)
        for path in blobs_of(far, 3) + blobs_of(far, 4):
            flip(path, keep_time=True)
        proxy.always("stall")
        proxy.seen.clear()
        begun_s = time.monotonic()

        def load(step: int) -> None:
            with pytest.raises(DamagedBlob, match=r"is damaged: .*No remote has an intact copy: slow: "):
                far.load(step)

        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(load, 3)
            wait_for(lambda: bool(proxy.seen), "the remote is asked")
            time.sleep(0.3)  # the second load must still wait when the first gives up
            pool.submit(load, 4).result()
            first.result()
        load(3)

        assert len(proxy.seen) == 1
        assert time.monotonic() - begun_s < 5


def test_verify_repair_asks_all_remotes(store: Store, run: Run) -> None:
    flip(shared_blob(store), keep_time=True)
    unlink_everywhere(blobs_of(store, 2)[-1], store.path)
    looked = run("verify", "--store", store.path)
    assert (looked.exit_code, looked.stderr) == (3, "ckstore verify --repair also uses intact copies from m\n")

    report = store.verify(repair=True)

    assert report.ok
    assert {one.source for one in report.repaired} == {"the remote m"}
    assert len(report.repaired) == 2
    check_store(store.path)


def test_a_repair_from_a_url_uses_the_copies_of_that_remote(
    store: Store, memory: Target, tmp_path: Path, run: Run
) -> None:
    with Store.init(tmp_path / "mine", chunk_bytes=MIB) as mine:
        mine.save(state(3), step=3)
        flip(blobs_of(mine, 3)[-1], keep_time=True)

        with pytest.raises(RemoteError, match="there is no remote at"):
            mine.verify(repair_from=f"{memory.address}/nothing")
        done = run("verify", "--repair-from", memory.address, "--store", mine.path)

        assert done.exit_code == 0
        assert "from the remote memory://" in done.stdout
        assert is_state(mine.load(3), 3)
        assert not mine.remotes.list()
    check_store(tmp_path / "mine")


def test_the_error_for_a_blob_without_a_copy_has_the_answer_of_each_remote(store: Store, memory: Target) -> None:
    digest = shared_blob(store).name
    flip(shared_blob(store), keep_time=True)
    open_objects(memory).delete([keys.blob(digest)])

    report = store.verify(repair=True)

    assert not report.ok
    assert [one.why for one in report.unrepaired] == ["no intact copy exists; m does not have it"]


def drifting(count: int) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    values = [rng.standard_normal(50_000).astype(np.float32)]
    for _ in range(count - 1):
        values.append(np.where(rng.random(50_000) < 0.01, values[-1] * np.float32(1.5), values[-1]))
    return values


@pytest.mark.parametrize("how", ["flipped", "lost"])
def test_a_compacted_checkpoint_is_repaired_by_the_plain_blob(tmp_path: Path, memory: Target, how: str) -> None:
    values = drifting(4)
    with Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        store.remotes.add("m", memory.address)
        for step, value in enumerate(values):
            store.save({"w": value}, step=step)
        store.push(remote="m", all=True)
        store.compact()
        assert store.info(0).compacted
        own = list(blobs_dir(store.path, "main", 0).iterdir())
        for path in own:
            if how == "lost":
                unlink_everywhere(path, store.path)
            else:
                flip(path, at=path.stat().st_size // 2, keep_time=True)

        with pytest.warns(CkstoreWarning, match="main@0: "):
            found = store.load(0)

        assert np.array_equal(found["w"], values[0])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert all(np.array_equal(store.load(step)["w"], value) for step, value in enumerate(values))
        assert store.verify(repair=True).ok
        store.gc(now=True)
    check_store(tmp_path / "store")


def test_without_any_copy_the_error_of_the_newest_names_all_damage(store: Store, memory: Target) -> None:
    for path in blobs_of(store, 3):
        open_objects(memory).delete([keys.blob(path.name)])
    for step in (1, 2):
        shutil.rmtree(checkpoint_dir(store.path, "main", step))
    HARMS["every blob lost"](store)
    opened = without_catalog(store)

    with pytest.raises(NoWholeCheckpoint, match="main@3: "):
        opened.latest()
