"""Push: only missing blobs are sent, the manifest last; a push can be repeated, and relies only on checks."""

from __future__ import annotations

import json
import os
import shutil
import threading
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from ckstore import BytesElsewhere, DamagedBlob, NoSuchRef, RemoteError, Store
from ckstore.remote import keys, transfer
from ckstore.remote.budget import MemoryBudget
from ckstore.remote.intents import LIFE_S
from ckstore.remote.metadata_sync import MetadataPusher
from ckstore.remote.push import Push, TransferLimits, push
from ckstore.remote.push_plan import place_of
from ckstore.remote.record import read_record
from ckstore.remote.source import ObjectSource
from ckstore.store import context_of
from tests.remote.double import REMOTES, Double, Fault, new_remote
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir

MIB = 2**20


def state(seed: int, chunks: int = 3) -> dict[str, object]:
    rng = np.random.default_rng(seed)
    big = rng.integers(0, 255, chunks * MIB, dtype=np.uint8)
    return {"big": big, "small": {f"p{i}": rng.random(50) for i in range(5)}, "step": seed}


@pytest.fixture
def store(tmp_path: Path) -> Store:
    made = Store.init(tmp_path / "store", chunk_bytes=MIB)
    made.save(state(1), step=1, metrics={"loss": 2.0})
    return made


def test_every_blob_of_a_checkpoint_is_pushed_under_its_digest(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    report = store.push(1, remote)
    directory = checkpoint_dir(store.path, "main", 1)
    assert (
        objects.held[keys.Place("main", 1, report.checkpoints[0].id).manifest]
        == (directory / "manifest.json").read_bytes()
    )
    for blob in os.listdir(directory / "blobs"):
        assert objects.held[keys.blob(blob)] == (directory / "blobs" / blob).read_bytes()
    assert report.new_count == 1
    assert report.moved_bytes == sum(path.stat().st_size for path in (directory / "blobs").iterdir())
    assert not [key for key in objects.held if key.startswith(keys.INTENTS)]


def test_a_store_without_a_record_of_its_mirror_sends_no_existing_blob(store: Store, tmp_path: Path) -> None:
    """A new node pulled a base that another node had pushed, and pushes its first checkpoint."""
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    with Store.init(tmp_path / "node", chunk_bytes=MIB) as node:
        node.pull(1, remote)
        changed = state(1)
        changed["step"] = 2
        info = node.save(changed, step=2)
        before = objects.sent_bytes
        transfer.push(context_of(node), [info], remote, {}, lacks_all=True)

    assert objects.sent_bytes - before < MIB


def test_the_manifest_comes_after_every_blob_and_the_intent_before_everything(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    written = objects.keys_written
    assert written[0].startswith(keys.INTENTS)
    manifest = next(i for i, key in enumerate(written) if key.endswith("manifest.json"))
    assert all(i < manifest for i, key in enumerate(written) if key.startswith(keys.BLOBS))


def test_an_unchanged_state_costs_few_requests_and_no_bytes(store: Store) -> None:
    for step in range(2, 6):
        store.save(state(1), step=step)
    store.tag("best", 3)
    store.annotate(3, metrics={"bleu": 1.0})
    store.pin(3, "paper")
    objects, remote = new_remote(store.settings)
    store.push(remote=remote, all=True)
    objects.forget_requests()
    report = store.push(remote=remote, all=True)
    assert report.new_count == report.moved_bytes == 0
    assert objects.request_count() <= 20
    assert objects.sent_bytes == 0


def test_the_cost_of_a_push_depends_on_its_checkpoints_and_not_on_the_remote(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    for number in range(5000):
        objects.put(keys.blob(f"xxh3-{number:032x}"), b"x")
        objects.put(keys.Place("other", number, f"xxh3-{number:032x}").annotations, b"x")
    store.save(state(2), step=2)
    store.push(2, remote)  # sees how much is there
    store.save(state(3), step=3)
    objects.forget_requests()
    store.push(3, remote, dry_run=True)
    report = store.push(3, remote)

    assert report.new_count == 1
    assert objects.requests["list"] == 0
    assert objects.request_count() <= 50


def test_a_second_similar_checkpoint_sends_only_changed_blobs(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    changed = state(1)
    changed["step"] = 2
    store.save(changed, step=2)
    objects.forget_requests()
    report = store.push(2, remote)
    assert report.new_count == 1
    assert report.moved_bytes < MIB


def test_a_push_plan_lists_missing_blobs_and_changes_nothing(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    plan = store.push(1, remote, dry_run=True)
    assert len(plan.new) == 1
    assert plan.moved_bytes > 3 * MIB
    assert plan.reused_bytes == 0
    assert list(objects.held) == [keys.INFO]
    assert "would push 1 new checkpoint" in str(plan)
    store.push(1, remote)
    assert store.push(1, remote, dry_run=True).moved_count == 0


def test_later_metadata_is_pushed_with_the_checkpoint(store: Store) -> None:
    store.tag("best", 1)
    pin = store.pin(1, "paper")
    store.annotate(1, metrics={"bleu": 27.0}, note="good")
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    tag = json.loads(objects.held["refs/best.json"])
    assert (tag["run"], tag["step"], tag["id"]) == ("main", 1, info.id)
    assert json.loads(objects.held[f"pins/{pin.name}.json"])["reason"] == "paper"
    assert b'"bleu":27.0' in objects.held[keys.Place("main", 1, info.id).annotations]


@pytest.mark.parametrize("which", ["one", "all"])
def test_a_repeated_push_sends_the_metadata_that_a_killed_one_did_not(
    store: Store, monkeypatch: pytest.MonkeyPatch, which: str
) -> None:
    store.tag("best", 1)
    pin = store.pin(1, "paper")
    store.annotate(1, note="good")
    objects, remote = new_remote(store.settings)

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(MetadataPusher, "push", die)
        patched.setattr(Push, "keep_record", lambda _: None)
        with pytest.raises(KeyboardInterrupt):
            store.push(1, remote)
    place = keys.Place("main", 1, store.info(1).id)
    assert place.manifest in objects.held
    wanted = {"refs/best.json", f"pins/{pin.name}.json", place.annotations}
    assert not wanted & set(objects.held)
    objects.forget_requests()

    report = store.push(1, remote) if which == "one" else store.push(remote=remote, all=True)

    assert report.new_count == report.moved_bytes == 0
    assert wanted <= set(objects.held)
    assert objects.request_count() <= 20


def test_annotations_of_two_stores_are_merged(store: Store, tmp_path: Path) -> None:
    other_path = tmp_path / "other"
    shutil.copytree(store.path, other_path)
    other = Store.open(other_path)
    objects, remote = new_remote(store.settings)
    store.annotate(1, metrics={"a": 1.0}, note="one")
    other.annotate(1, metrics={"b": 2.0}, note="two")
    info = store.push(1, remote).checkpoints[0]
    other.push(1, remote)
    joined = json.loads(objects.held[keys.Place("main", 1, info.id).annotations])
    assert joined["metrics"] == {"a": 1.0, "b": 2.0}
    assert [note["text"] for note in joined["notes"]] == ["one", "two"]


def test_a_lost_response_is_not_an_error(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    lost: set[str] = set()

    def lose_once(call: str, key: str) -> Fault | None:
        if call == "put" and key not in lost and not key.startswith(keys.INTENTS):
            lost.add(key)
            return "lose"
        return None

    objects.fault = lose_once
    store.push(1, remote)
    assert len(lost) > 4
    objects.fault = lambda *_: None
    assert store.push(1, remote, dry_run=True).new == ()


def test_an_interrupted_push_continues_where_it_stopped(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    blobs: set[str] = set()

    def fail_after_two(call: str, key: str) -> Fault | None:
        if call == "put" and key.startswith(keys.BLOBS):
            if len(blobs | {key}) > 2:
                return "fail"
            blobs.add(key)
        return None

    objects.fault = fail_after_two
    with pytest.raises(RemoteError):
        push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(threads=1))
    assert not any(key.endswith("manifest.json") for key in objects.held)
    objects.fault = lambda *_: None
    objects.forget_requests()
    store.push(1, remote)
    assert not blobs & set(objects.keys_written)
    assert any(key.endswith("manifest.json") for key in objects.held)


def test_damaged_bytes_are_never_pushed_under_their_digest(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    blob = next(blobs_dir(store.path, "main", 1).iterdir())
    data = bytearray(blob.read_bytes())
    data[5] ^= 1
    os.chmod(blob, 0o644)
    with open(blob, "r+b") as file:
        file.write(data)
    with pytest.raises(DamagedBlob, match="was not sent"):
        store.push(1, remote)
    assert keys.blob(blob.name) not in objects.held
    assert not any(key.endswith("manifest.json") for key in objects.held)


@pytest.mark.parametrize("how, error", [("damaged", DamagedBlob), ("let go", BytesElsewhere), ("gone", NoSuchRef)])
def test_an_incomplete_local_checkpoint_does_not_hold_up_others(
    store: Store, monkeypatch: pytest.MonkeyPatch, how: str, error: type[Exception]
) -> None:
    objects, remote = new_remote(store.settings)
    new_remote(store.settings, "cold")
    for step in (2, 3):
        store.save(state(step), step=step)
        store.tag(f"t{step}", step)
    if how == "damaged":
        blob = next(blobs_dir(store.path, "main", 2).iterdir())
        os.chmod(blob, 0o644)
        blob.write_bytes(bytes(blob.stat().st_size))
    elif how == "let go":
        store.push(2, "cold")
        store.evict(2, "cold")

    def drop_meanwhile(call: str, key: str) -> Fault | None:
        if how == "gone" and call == "put" and key.startswith(keys.INTENTS):
            objects.fault = lambda *_: None
            (store.path / "refs/t2").unlink()
            shutil.rmtree(checkpoint_dir(store.path, "main", 2))
        return None

    objects.fault = drop_meanwhile
    monkeypatch.setattr("ckstore.remote.push._BATCH", 1 if how == "gone" else 16)
    with pytest.raises(error):
        store.push(all=True, remote=remote)
    there = ObjectSource(objects, remote)
    assert [place.step for place in there.places()] == [1, 3]
    assert sorted(there.tags()) == ["t3"]


def test_a_short_blob_at_the_remote_is_sent_again(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    store.push(1, remote)
    key = next(key for key in objects.held if key.startswith(keys.BLOBS))
    whole = objects.held[key]
    objects.put(key, whole[:10])
    store.push(1, remote)
    assert objects.held[key] == whole


def test_a_marked_blob_is_unmarked_before_a_push_relies_on_it(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    digests = os.listdir(blobs_dir(store.path, "main", 1))
    other = f"xxh3-{'0' * 32}"
    _condemn(objects, condemned=dict.fromkeys((digests[0], other), "2026-11-26T00:00:00.000000Z"))
    store.push(1, remote)
    assert list(json.loads(objects.held[keys.CONDEMNED])["condemned"]) == [other]


def test_a_blob_that_a_pruner_deletes_gets_a_new_name(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    digests = os.listdir(blobs_dir(store.path, "main", 1))
    batch = {"names": [digests[0]], "since": "2026-11-26T00:00:00.000000Z"}
    _condemn(objects, deleting={"0" * 32: batch})
    store.push(1, remote)
    assert json.loads(objects.held[keys.CONDEMNED])["burnt"] == {digests[0]: 1}
    assert keys.blob(f"{digests[0]}.1") in objects.held
    objects.forget_requests()
    store.push(1, remote)
    assert objects.sent_bytes == 0


def _condemn(objects: Double, **members: object) -> None:
    from ckstore.model.canonical import canonical_json
    from ckstore.model.seal import seal

    empty: dict[str, object] = {"condemned": {}, "deleting": {}, "burnt": {}}
    whole = {**empty, **members, "format": "ckstore-remote-condemned", "version": 1}
    objects.put(keys.CONDEMNED, seal(canonical_json(whole)))


def sleep_once(now_s: list[float]) -> Callable[[str, str], Fault | None]:
    """Return a fault that delays the first blob until the life of its intent is over."""
    slept: list[str] = []

    def fault(call: str, key: str) -> Fault | None:
        if call == "put" and key.startswith(keys.BLOBS) and not slept:
            slept.append(key)
            now_s[0] += LIFE_S
        return None

    return fault


def test_a_push_that_was_suspended_starts_again(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    now_s = [0.0]
    objects.fault = sleep_once(now_s)
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(threads=1, clock=lambda: now_s[0]))
    assert len({key for key in objects.keys_written if key.startswith(keys.INTENTS)}) == 2
    assert store.push(1, remote, dry_run=True).new == ()


def test_a_restarted_push_keeps_to_its_rate(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    objects, remote = new_remote(store.settings)
    now_s = [0.0]

    def pass_time(self: MemoryBudget, seconds: float) -> None:
        assert not self.is_ended
        now_s[0] += seconds

    objects.fault = sleep_once(now_s)
    monkeypatch.setattr(MemoryBudget, "sleep", pass_time)
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(MIB, threads=1, clock=lambda: now_s[0]))
    assert now_s[0] >= LIFE_S + 1.9


def test_a_push_suspended_before_its_manifest_starts_again_without_compare_and_swap(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    objects, remote = new_remote(store.settings, cas=False)
    real, now_s = Push._publish, [0.0]

    def sleep_once(*args: object) -> None:
        if not now_s[0]:
            now_s[0] += LIFE_S
            # As a prune that was vouched for does with what a stale intent named.
            objects.delete([key for key in objects.held if key.startswith((keys.BLOBS, keys.INTENTS))])
        real(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(Push, "_publish", sleep_once)
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(clock=lambda: now_s[0]))
    assert all(keys.blob(blob) in objects.held for blob in os.listdir(blobs_dir(store.path, "main", 1)))


def test_a_push_whose_intent_was_voided_starts_again(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    voided: list[str] = []

    def void_once(call: str, key: str) -> Fault | None:
        if call == "update" and key.startswith(keys.INTENTS) and not voided:
            voided.append(key)
            objects.put(key, b'{"state":"void"}')
        return None

    objects.fault = void_once
    store.push(1, remote)
    assert voided
    assert store.push(1, remote, dry_run=True).new == ()


def test_a_long_push_renews_its_intent(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    now_s = [0.0]

    def pass_time(call: str, key: str) -> Fault | None:
        if call == "put" and key.startswith(keys.BLOBS):
            now_s[0] += LIFE_S * 0.3
        return None

    objects.fault = pass_time
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(threads=1, clock=lambda: now_s[0]))
    assert objects.requests["update"] > 1
    assert len({key for key in objects.keys_written if key.startswith(keys.INTENTS)}) == 1


def _wait_for_renewals(objects: Double, count: int) -> None:
    """Wait until another thread has tried to renew the intent a number of times."""
    until_s = time.monotonic() + 20
    while objects.requests["update"] < count:
        assert time.monotonic() < until_s, "the intent was not renewed"
        time.sleep(0.01)


def test_an_intent_is_renewed_while_a_single_blob_is_sent(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "one")
    store.save({"x": b"a single blob" * 1000}, step=1)
    objects, remote = new_remote(store.settings)
    now_s = [0.0]

    def take_hours(call: str, key: str) -> Fault | None:
        if call == "put" and key.startswith(keys.BLOBS):
            for count in range(1, 8):
                now_s[0] += LIFE_S * 0.3
                _wait_for_renewals(objects, count)
        return None

    objects.fault = take_hours
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(clock=lambda: now_s[0]))
    assert now_s[0] > 2 * LIFE_S
    assert len({key for key in objects.keys_written if key.startswith(keys.INTENTS)}) == 1
    assert store.push(1, remote, dry_run=True).new == ()


def test_a_push_whose_intent_is_voided_during_the_transfer_sends_no_more_blobs(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "many", chunk_bytes=MIB)
    store.save(state(1, chunks=12), step=1)
    objects, remote = new_remote(store.settings)
    now_s, taken, both = [0.0], threading.Event(), threading.Barrier(2, timeout=20)

    def take_it(call: str, key: str) -> Fault | None:
        if call == "put" and key.startswith(keys.BLOBS) and not taken.is_set():
            if both.wait() == 0:
                objects.put(objects.keys_written[0], b'{"state":"void"}')
                now_s[0] += LIFE_S * 0.3
                _wait_for_renewals(objects, 1)
                taken.set()
            taken.wait(20)
        return None

    objects.fault = take_it
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(threads=2, clock=lambda: now_s[0]))
    intents = [key for key in objects.keys_written if key.startswith(keys.INTENTS)]
    second = next(at for at, key in enumerate(objects.keys_written) if key in intents and key != intents[0])
    assert sum(key.startswith(keys.BLOBS) for key in objects.keys_written[:second]) <= 2
    assert store.push(1, remote, dry_run=True).new == ()


def test_a_removed_checkpoint_is_pushed_again_on_request(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    place = keys.Place("main", 1, info.id)
    objects.put(place.dropped, b"{}")
    objects.delete([place.manifest])
    store.push(1, remote)
    assert place.manifest in objects.held
    assert place.dropped not in objects.held


def test_memory_is_bounded_whatever_the_threads(store: Store) -> None:
    budget = MemoryBudget(10)
    with budget.taking(7):
        came = threading.Event()

        def take() -> None:
            with budget.taking(7):
                came.set()

        thread = threading.Thread(target=take)
        thread.start()
        assert not came.wait(0.1)
    thread.join(5)
    assert came.is_set()
    with budget.taking(100):  # larger than all of it: alone
        pass


def test_a_wait_of_ten_thousand_years_ends_with_the_transfer() -> None:
    budget = MemoryBudget()
    failures: list[BaseException] = []

    def wait() -> None:
        try:
            budget.sleep(3e11)
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=wait)
    thread.start()
    budget.end()
    thread.join(10)
    assert not thread.is_alive()
    assert failures == []


def test_buffers_are_reused_and_idle_ones_are_freed_for_others() -> None:
    budget = MemoryBudget(8 * 4096)
    with budget.lending(5000) as memory:
        memory[:5] = b"first"
    with budget.lending(4097) as memory, budget.lending(4097) as other:
        assert len(memory) == len(other) == 4097
        assert {bytes(memory[:5]), bytes(other[:5])} == {b"first", bytes(5)}
    with budget.lending(8 * 4096 - 1):
        assert not budget._idle
    with pytest.raises(ValueError, match="cut off"), budget.lending(10):
        raise ValueError("cut off")
    # What was abandoned may still be on its way.
    assert not budget._idle


def test_a_sent_blob_is_recorded_with_its_listed_version(store: Store) -> None:
    objects, remote = new_remote(store.settings)
    info = store.push(1, remote).checkpoints[0]
    record = read_record(store._context.layout, remote)
    assert set(record.blobs) == set(os.listdir(blobs_dir(store.path, "main", 1)))
    assert list(record.checkpoints) == [info.id]
    for digest, seen in record.blobs.items():
        listed = objects.head(keys.blob(digest))
        assert listed is not None
        assert seen.is_still(listed)
        objects.put(keys.blob(digest), objects.held[keys.blob(digest)])
        again = objects.head(keys.blob(digest))
        assert again is not None
        assert not seen.is_still(again)


def test_another_hash_is_refused(store: Store, tmp_path: Path) -> None:
    pytest.importorskip("blake3")
    other = Store.init(tmp_path / "b3", hash="blake3")
    other.save({"w": np.arange(5)}, step=1)
    _, remote = new_remote(store.settings)
    from ckstore import BadInput

    with pytest.raises(BadInput, match="named by xxh3_128"):
        other.push(1, remote)


def test_a_push_works_without_compare_and_swap(store: Store) -> None:
    objects, remote = new_remote(store.settings, cas=False)
    store.tag("best", 1)
    store.push(1, remote)
    assert objects.requests["update"] == 0
    assert "refs/best.json" in objects.held
    assert store.push(1, remote, dry_run=True).new == ()


def test_a_rate_is_kept_to(store: Store) -> None:
    _, remote = new_remote(store.settings)
    begun_s = time.monotonic()
    store.push(1, remote, bwlimit="8MiB")
    assert time.monotonic() - begun_s > 0.2


@pytest.mark.parametrize("bytes_s, cas", [(1, True), (500, True), (500, False)])
def test_a_push_at_a_few_bytes_a_second_keeps_its_intent_while_it_waits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_s: int, cas: bool
) -> None:
    store = Store.init(tmp_path / "large", chunk_bytes=MIB)
    store.save(state(1, chunks=12), step=1)
    objects, remote = new_remote(store.settings, cas=cas)
    now_s, stale_s = [0.0], [0.0]
    written: list[float] = []

    def pass_time(self: MemoryBudget, seconds: float) -> None:
        now_s[0] += seconds

    def watch(call: str, key: str) -> Fault | None:
        if key.startswith(keys.INTENTS) and call in ("put", "update"):
            written.append(now_s[0])
        stale_s[0] = max(stale_s[0], now_s[0] - written[-1]) if written else 0.0
        return None

    objects.fault = watch
    monkeypatch.setattr(MemoryBudget, "sleep", pass_time)
    push(store._context, [store.info(1)], REMOTES[remote], TransferLimits(bytes_s, threads=1, clock=lambda: now_s[0]))
    assert store.push(1, remote, dry_run=True).new == ()
    assert now_s[0] >= 11 * MIB / bytes_s
    assert len({key for key in objects.keys_written if key.startswith(keys.INTENTS)}) == 1
    assert stale_s[0] <= LIFE_S / 2


def test_checkpoints_can_be_selected_in_several_ways(store: Store) -> None:
    store.save(state(2), step=2)
    store.save(state(3), step=1, run="other")
    store.tag("best", "main@2")
    assert [info.name for info in store.push(["main@1", "main@2"], _remote(store), dry_run=True).checkpoints] == [
        "main@1",
        "main@2",
    ]
    assert len(store.push(remote=_remote(store), all=True, dry_run=True).checkpoints) == 3
    assert [info.name for info in store.push(remote=_remote(store), tagged=True, dry_run=True).checkpoints] == [
        "main@2"
    ]
    assert [info.name for info in store.push(remote=_remote(store), run="other", dry_run=True).checkpoints] == [
        "other@1"
    ]


def _remote(store: Store) -> str:
    return new_remote(store.settings)[1]


def test_a_compacted_checkpoint_is_pushed_as_it_was_saved(tmp_path: Path) -> None:
    with Store.init(tmp_path / "compacted", chunk_bytes=MIB) as store:
        for step in range(3):
            store.save({"w": np.arange(2**19, dtype=np.float32) + np.float32(step)}, step=step)
        manifest = (checkpoint_dir(store.path, "main", 0) / "manifest.json").read_bytes()
        plain = {path.name: path.read_bytes() for path in blobs_dir(store.path, "main", 0).iterdir()}
        assert store.compact(keep_newest=1).compacted
        objects, remote = new_remote(store.settings)

        report = store.push(0, remote)

        assert objects.held[keys.Place("main", 0, report.checkpoints[0].id).manifest] == manifest
        assert {name: objects.held[keys.blob(name)] for name in plain} == plain


def test_a_push_of_many_checkpoints_lists_only_their_hundreds_of_steps(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    objects, name = new_remote(store.settings)
    steps = range(1080, 1120)
    infos = [store.save({"step": step}, step=step) for step in steps]
    removed = place_of(infos[7])
    objects.put(removed.dropped, b"")
    listed: list[str] = []
    objects.fault = lambda call, key: listed.append(key) if call == "list" else None
    store.push(all=True, remote=name)
    assert {key for key in listed if key.startswith(f"{keys.CHECKPOINTS}main/")} == {
        f"{keys.CHECKPOINTS}main/10",
        f"{keys.CHECKPOINTS}main/11",
    }
    assert removed.dropped not in objects.held
    assert {place.step for key in objects.held if (place := keys.place_in(key)) is not None} == {*steps}


def test_a_dry_run_names_the_evicted_checkpoints_that_a_push_cannot_send(store: Store, tmp_path: Path) -> None:
    for name in ("far", "near"):
        store.remotes.add(name, tmp_path / name)
    for step in (11, 12):
        store.save(state(step), step=step)
    store.push([11, 12], "far")
    store.evict(11, "far")
    store.gc(now=True)

    planned = store.push([11, 12], "near", dry_run=True)
    with pytest.raises(BytesElsewhere, match="data of main@11 is only on far"):
        store.push([11, 12], "near")

    assert [info.step for info in planned.new] == [12]
    assert planned.warnings == ("main@11 cannot be pushed: data of main@11 is only on far",)
    assert store.push([11, 12], "near", dry_run=True).new == ()
    store.pull(11, "far")
    assert store.push([11, 12], "near", dry_run=True).warnings == ()
    assert [info.step for info in store.push([11, 12], "near").new] == [11]
