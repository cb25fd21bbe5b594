"""Differences in transfers: few bytes are sent, the result is identical, and the bases are kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RemoteError, Store
from ckstore.codecs import container
from ckstore.model.digest import algorithm_of
from ckstore.model.manifest.encoding import Encoding
from ckstore.model.manifest.parse import parse_encoding
from ckstore.model.manifest.stored import OldPiece
from ckstore.remote import keys
from ckstore.remote.source import ObjectSource
from tests.format import reader
from tests.remote.double import REMOTES, Double, new_remote
from tests.remote.test_pull import same
from tests.support.checkpoint_dirs import blobs_dir

pytest.importorskip("zstandard")
MIB = 2**20
ELEMENTS = MIB


def weights(step: int) -> dict[str, Any]:
    """Return weights of which a step changes one element in two hundred, as in reinforcement learning."""
    random = np.random.default_rng(0)
    bits = random.integers(0x3C00, 0x3E00, ELEMENTS, dtype=np.uint16)
    for i in range(step):
        at = np.random.default_rng(i + 1).integers(0, ELEMENTS, ELEMENTS // 200)
        bits[at] += 1
    return {"w": bits.view(np.float16), "bias": np.arange(64.0) + step, "step": step}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.config.push_deltas = True
    return made


@pytest.fixture
def other(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "other", chunk_bytes=MIB)


def encoding_of(objects: Double, store: Store, step: int) -> Encoding | None:
    place = keys.Place("main", step, store.info(step).id)
    data = objects.held[place.manifest]
    return parse_encoding(data, where="it") if b'"checkpoint"' in data[:128] else None


def push_steps(store: Store, steps: range, remote: str) -> list[int]:
    """Save and push each step; return the bytes of each push."""
    sent = []
    for step in steps:
        store.save(weights(step), step=step)
        sent.append(store.push(step, remote).moved_bytes)
    return sent


def test_a_step_is_pushed_as_a_hundredth_of_its_size_and_stays_the_same(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    first, second, third = push_steps(store, range(3), remote)
    assert first > 2 * MIB
    assert max(second, third) < first / 60
    assert other.pull(0, remote).moved_bytes == first
    for step in (1, 2):
        objects.forget_requests()
        report = other.pull(step, remote)
        assert report.moved_bytes < first / 60
        assert objects.received_bytes < first / 30  # manifests and all
        assert same(other.load(step), weights(step))
        assert other.info(step).id == store.info(step).id
    assert other.verify().ok


def test_without_the_setting_everything_is_pushed_plain(store: Store) -> None:
    store.config.push_deltas = False
    objects, remote = new_remote(store.settings)
    first, second = push_steps(store, range(2), remote)
    assert second > 0.9 * first
    assert encoding_of(objects, store, 1) is None


def test_a_store_without_a_base_fetches_the_whole_chain(store: Store, other: Store) -> None:
    _, remote = new_remote(store.settings)
    first, *_ = push_steps(store, range(4), remote)
    report = other.pull(3, remote)
    assert first < report.moved_bytes < 1.1 * first
    assert same(other.load(3), weights(3))
    assert [info.step for info in other.checkpoints()] == [3]


def test_a_blob_without_a_worthwhile_encoding_is_pushed_plain(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    for step in range(2):
        random = np.random.default_rng(step)
        store.save({"w": random.integers(0, 255, 4 * MIB, dtype=np.uint8)}, step=step)
        store.push(step, remote)
    assert encoding_of(objects, store, 1) is None
    other.pull(1, remote)
    assert same(other.load(1), store.load(1))


def test_a_pack_of_too_many_tensors_for_a_header_is_pushed_plain(
    store: Store, other: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(container, "HEADER_MOST_BYTES", 1500)
    objects, remote = new_remote(store.settings)
    for step in range(2):
        store.save(weights(step) | {f"small{i}": np.full(4, i + step / 8) for i in range(100)}, step=step)
        store.push(step, remote)
    assert encoding_of(objects, store, 1) is not None
    other.pull(1, remote)
    assert same(other.load(1), store.load(1))


def test_chains_stay_short_and_links_continue(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    sent = push_steps(store, range(12), remote)
    assert max(sent[1:]) < sent[0] / 8
    linked = [step for step in range(12) if (found := encoding_of(objects, store, step)) is not None and found.links]
    assert linked == [9]
    other.pull(8, remote)
    # From the checkpoint before, although the remote decodes this one with the first.
    assert other.pull(9, remote).moved_bytes < sent[0] / 60
    other.pull(11, remote)
    assert same(other.load(11), weights(11))


def test_older_checkpoints_pushed_after_the_newest_are_also_differences(store: Store, other: Store) -> None:
    for step in range(4):
        store.save(weights(step), step=step)
    objects, remote = new_remote(store.settings)
    report = store.push(remote=remote, all=True)
    assert report.moved_bytes < 1.2 * 2 * MIB
    assert encoding_of(objects, store, 3) is None
    assert store.push(remote=remote, all=True).moved_bytes == 0
    other.pull(remote=remote, all=True)
    assert all(same(other.load(step), weights(step)) for step in range(4))


def test_a_prune_keeps_the_bases_of_encoded_blobs(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    push_steps(store, range(3), remote)
    found = encoding_of(objects, store, 2)
    assert found is not None
    for step in (0, 1):
        place = keys.Place("main", step, store.info(step).id)
        objects.put(place.dropped, b"{}")
        objects.delete([place.manifest, place.plain])
        store.delete(step)
    for year in (2027, 2028, 2029):
        objects.now = objects.now.replace(year=year)
        store.remotes.prune(remote, grace=60)
    assert all(keys.blob(file.digest) in objects.held for file in found.files)
    held = {key for key in objects.held if key.startswith(keys.BLOBS)}
    assert held == {keys.blob(file.digest) for file in found.files}
    other.pull(2, remote)
    assert same(other.load(2), weights(2))


def test_a_damaged_base_is_detected_and_no_wrong_bytes_arrive(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    push_steps(store, range(2), remote)
    key = max((key for key in objects.held if key.startswith(keys.BLOBS)), key=lambda key: len(objects.held[key]))
    objects.held[key] = objects.held[key][:-1] + bytes([objects.held[key][-1] ^ 1])
    with pytest.raises(RemoteError):
        other.pull(1, remote)
    assert other.checkpoints() == []
    # The base is not looked for there where it is here.
    other.save(weights(0), step=7, run="mine")
    other.pull(1, remote)
    assert same(other.load("main@1"), weights(1))


def test_a_base_that_is_deleted_during_the_push_is_not_relied_on(store: Store, other: Store) -> None:
    objects, remote = new_remote(store.settings)
    push_steps(store, range(2), remote)
    store.delete(0)
    store.save(weights(2), step=2)
    found = encoding_of(objects, store, 1)
    assert found is not None
    gone = next(file.digest for file in found.files if file.digest not in {b.digest for b in _blobs(store, 1)})

    def lose(call: str, key: str) -> None:
        if call == "put" and key.startswith(keys.INTENTS):
            objects.held.pop(keys.blob(gone), None)

    objects.fault = lose
    store.push(2, remote)
    assert encoding_of(objects, store, 2) is None
    other.pull(2, remote)
    assert same(other.load(2), weights(2))


def _blobs(store: Store, step: int) -> Any:
    with store.open_checkpoint(step) as checkpoint:
        return checkpoint._directory.manifest.blobs


def test_an_evicted_checkpoint_is_read_through_its_differences(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    REMOTES[remote] = REMOTES[remote].__class__(remote, objects, checks_bodies=True)
    push_steps(store, range(3), remote)
    report = store.evict(2, remote)
    assert not report.skipped
    assert report.read_back_bytes == 0
    assert same(store.load(2), weights(2))
    # What another store pushed is decoded and compared first.
    (store.path / "remotes/away.json").unlink()
    report = store.evict(1, remote)
    assert not report.skipped
    assert report.read_back_bytes > 0
    assert same(store.load(1), weights(1))


def test_memory_that_lacks_the_old_piece_is_not_changed(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    push_steps(store, range(2), remote)
    before, after = (_blobs(store, step) for step in range(2))
    old = next(blob for blob in before if blob not in after and blob.nbytes == MIB)
    found = encoding_of(objects, store, 1)
    assert found is not None
    new = next(digest for digest, form in found.encoded.items() if form.bases == (old.digest,))
    source = ObjectSource(objects, remote)
    place = keys.Place("main", 1, store.info(1).id)
    held = memoryview(bytearray((blobs_dir(store.path, "main", 0) / old.digest).read_bytes()))
    piece = OldPiece(old.digest, old.digest, 0)
    held[7] ^= 1
    changed = bytes(held)
    assert source.advance(place, new, 0, held, piece) is None
    assert bytes(held) == changed
    held[7] ^= 1
    assert source.advance(place, new, 0, held, piece) == dict(found.files)[found.file_of(new)]
    assert algorithm_of(new).digest(held) == new


def test_an_encoded_checkpoint_is_read_by_the_format_alone(store: Store, tmp_path: Path) -> None:
    objects, remote = new_remote(store.settings)
    push_steps(store, range(3), remote)
    place = keys.Place("main", 2, store.info(2).id)
    directory = tmp_path / "2"
    (directory / "blobs").mkdir(parents=True)
    for name in ("manifest.json", "plain.json"):
        (directory / name).write_bytes(objects.held[f"checkpoints/main/2/{place.id}/{name}"])
    checkpoint = reader.Checkpoint(directory)
    for digest, _ in checkpoint.stored():
        (directory / "blobs" / digest).write_bytes(objects.held[keys.blob(digest)])
    assert checkpoint.id == place.id
    assert checkpoint.is_complete()
    checkpoint.check_blobs()
    assert checkpoint.state()["step"] == 2
    found = [checkpoint.storage(index) for index in range(len(checkpoint.manifest["storages"]))]
    assert weights(2)["w"].tobytes() in found


def test_a_follower_updates_its_tensors_to_the_next_step(store: Store, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    def push(step: int) -> None:
        of_torch = {name: torch.from_numpy(value) for name, value in weights(step).items() if name != "step"}
        store.save({**of_torch, "step": step}, step=step)
        store.push(step, remote)

    objects, remote = new_remote(store.settings)
    push(0)
    push(1)
    follower = Store.init(tmp_path / "follower", chunk_bytes=MIB)
    target = {"w": torch.zeros(ELEMENTS, dtype=torch.float16), "bias": torch.zeros(64, dtype=torch.float64), "step": 0}
    with follower.follow(run="main", remote=remote, poll_s=0.01, timeout_s=30) as following:
        report = follower.load_into(target, next(following), cast=False)
        objects.forget_requests()
        report = follower.load_into(target, next(following), since=report)
        assert report.received_bytes < 2 * MIB / 60
        assert report.received_bytes < objects.received_bytes < 2 * MIB / 30
        assert np.array_equal(target["w"].numpy(), weights(1)["w"])
        push(2)
        target["w"][5] += 1  # as of a worker that changed its weights: then all of it is fetched
        objects.forget_requests()
        follower.load_into(target, next(following), since=report)
    assert objects.received_bytes > MIB
    assert np.array_equal(target["w"].numpy(), weights(2)["w"])
