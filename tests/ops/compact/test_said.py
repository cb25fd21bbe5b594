"""What the reports say of a compacted store is what is on the disk: gc, du, why, verify, log, prune."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ckstore import RetentionPolicy, Store
from ckstore.model.digest import is_digest
from ckstore.model.manifest.encoding import encoding_of
from ckstore.ops.compact import encoding_table
from tests.support.plans import plan_of

COUNT = 40_000


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    generator = torch.Generator().manual_seed(5)
    value = torch.randn(COUNT, generator=generator)
    with Store.init(tmp_path / "store") as opened:
        for step in range(8):
            opened.save({"w": value}, step=step)
            moved = torch.rand(COUNT, generator=generator) < 0.02
            value = torch.where(moved, value * 1.5, value)
        yield opened


def sizes(store: Store) -> dict[int, int]:
    """Return the size of every file that has the name of a blob, by its inode number."""
    found = (path.stat() for path in store.path.rglob("*") if is_digest(path.name) and path.is_file())
    return {status.st_ino: status.st_size for status in found}


def test_du_says_what_is_on_the_disk_and_what_of_it_is_encoded(store: Store) -> None:
    before = store.du()
    report = store.compact()
    after = store.du()

    assert (before.saved_bytes, before.encoded_bytes) == (0, 0)
    assert after.disk_bytes == sum(sizes(store).values())
    assert after.encoded_bytes == report.encoded_bytes
    assert before.disk_bytes - after.disk_bytes == after.saved_bytes == report.plain_bytes - report.encoded_bytes
    assert "of it is encoded: " in str(after)
    assert sum(one.alone_bytes + one.shared_bytes for one in after.checkpoints) == after.disk_bytes


def test_gc_frees_as_many_bytes_as_its_plan_says_and_as_leave_the_disk(store: Store) -> None:
    store.compact()
    store.config.undo_by_hand_s = 3600
    for step in (7, 5, 3, 0):
        store.delete(step)
    before = sum(sizes(store).values())
    planned = store.gc(dry_run=True, now=True)
    done = store.gc(now=True)

    assert done.freed_bytes == planned.freed_bytes == before - sum(sizes(store).values()) > 0
    assert done.differences == ()
    assert store.verify().ok


def test_why_says_in_which_form_the_bytes_are_there(store: Store) -> None:
    store.compact()
    with store.open_checkpoint(0) as opened:
        kept, saved = opened.kept_bytes, opened.saved_bytes
        encoding = encoding_of(opened._directory.manifest)
    assert encoding is not None
    (blob,) = [digest for digest, form in encoding.encoded.items() if form.nbytes >= 4 * COUNT]
    form = encoding.encoded[blob]

    for digest in (blob, encoding.files[form.file].digest):
        (use,) = store.why(digest)
        assert (use.name, use.how, use.nbytes) == ("main@0", "encoded", form.nbytes)
        assert use.kept_bytes == encoding.files[form.file].nbytes <= kept
        assert use.nbytes - use.kept_bytes <= saved
        assert "kept of" in str(use)
    (base,) = form.bases
    by_step = {use.step: use.how for use in store.why(base)}
    assert by_step.pop(0) == "base"
    assert set(by_step.values()) <= {"base", "plain"}
    assert [use.how for use in store.why(blob_of(store, 6))] == ["plain"]


def blob_of(store: Store, step: int) -> str:
    with store.open_checkpoint(step) as opened:
        return max(opened._directory.manifest.blobs, key=lambda blob: blob.nbytes).digest


def test_verify_says_what_was_read_and_what_was_decoded(store: Store) -> None:
    assert store.verify().decoded_bytes == 0
    store.compact()
    infos = store.checkpoints()
    report = store.verify()

    assert report.checked_bytes == sum(sizes(store).values())
    # Each encoded blob once, whatever part of a pack nothing uses.
    assert 5 * 4 * COUNT <= report.decoded_bytes <= sum(info.logical_bytes for info in infos)
    assert "decoded: no damage" in str(report)


def test_log_marks_what_takes_less_than_its_size_says(store: Store) -> None:
    plain = store.checkpoints()
    store.compact()

    assert [info.compacted for info in store.checkpoints()] == [step < 5 for step in range(8)]
    assert store.checkpoints() == plain, "how it is kept is no part of what it is"
    assert "compacted" in str(store.info(0))
    with Store.open(store.path, readonly=True) as other:
        assert other.info(0).compacted


def test_a_plan_says_which_bytes_stay_since_others_are_decoded_with_them(store: Store) -> None:
    store.compact()
    store.tag("first", 0)
    plan = plan_of(store, RetentionPolicy(keep_last=1))

    said = {entry.step: [reason for reason in entry.reasons if "decoded with it" in reason] for entry in plan.entries}
    assert {step for step, reasons in said.items() if reasons} == bases_of(store, 0) - {7}
    done = store.prune(plan, now=True)
    assert [info.step for info in done.dropped] == [1, 2, 3, 4, 5, 6]
    assert store.load(0)["w"].shape == (COUNT,)


def bases_of(store: Store, step: int) -> set[int]:
    """Return the other checkpoints of which a blob is needed to decode this one."""
    with store.open_checkpoint(step) as opened:
        encoding = encoding_of(opened._directory.manifest)
        blobs = [blob.digest for blob in opened._directory.manifest.blobs]
    assert encoding is not None
    needed = {digest for blob in blobs for digest in encoding.path(blob)} - set(blobs)
    found = set()
    for info in store.checkpoints():
        with store.open_checkpoint(info) as opened:
            if info.step != step and needed & {blob.digest for blob in opened._directory.manifest.blobs}:
                found.add(info.step)
    return found


# ------------------------------------------------------------------------------------ over a hole in a chain


def form_of(store: Store, step: int) -> tuple[str, tuple[str, ...]]:
    """Return the file of the largest blob of a checkpoint, and its bases."""
    blob = blob_of(store, step)
    with store.open_checkpoint(step) as opened:
        encoding = encoding_of(opened._directory.manifest)
        assert encoding is not None
        return encoding.file_of(blob), encoding.encoded[blob].bases


def test_what_hung_on_a_dropped_checkpoint_is_encoded_against_another_and_the_plan_says_so(store: Store) -> None:
    store.compact(keep_newest=1)
    before = form_of(store, 3)
    assert before[1] == (blob_of(store, 4),)
    store.delete(4, now=True)
    store.gc()

    plan = store.compact(keep_newest=1, dry_run=True).plan
    (entry,) = [entry for entry in plan.entries if entry.info.step == 3]
    assert entry.gone_bytes > 0
    assert "; decoded with " in str(entry)
    assert "of deleted checkpoints" in str(entry)
    unused = store.du().disk_bytes
    store.compact(keep_newest=1)

    assert form_of(store, 3)[1] == (blob_of(store, 5),)
    assert store.du().disk_bytes < unused
    assert not any(entry.gone_bytes for entry in store.compact(keep_newest=1, dry_run=True).plan.entries)
    assert store.verify().ok


def test_gc_says_why_what_was_deleted_of_a_compacted_run_frees_nothing(store: Store) -> None:
    store.config.undo_by_hand_s = 3600
    store.compact(keep_newest=1)
    store.delete(store.checkpoints()[-1])

    waits, planned, done = store.gc(), store.gc(now=True, dry_run=True), store.gc(now=True)

    assert waits.explanation.startswith("no other unused data; 1 dropped checkpoint with 0 B can be restored")
    assert "are decoded with them" in waits.explanation
    assert "frees that at once" not in str(waits)
    assert planned.explanation.startswith(
        "the dropped checkpoints would free nothing: other checkpoints have the same blobs"
    )
    assert done.explanation.startswith("the dropped checkpoints free nothing: other checkpoints have the same blobs")
    assert "are decoded with them" in str(done)
    assert store.gc(now=True).explanation.startswith("no unused data; ")


def test_what_is_too_far_from_every_base_keeps_the_piece_of_a_dropped_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store") as store:
        value = torch.randn(COUNT, generator=torch.Generator().manual_seed(5))
        for step in range(12):
            store.save({"w": value}, step=step)
            value[step::97] *= 1.5
        store.compact(keep_newest=1)
        before = form_of(store, 7)
        assert before[1] == (blob_of(store, 8),)
        store.delete(8, now=True)
        store.gc()
        # The next newer one is decoded through two others.
        monkeypatch.setattr(encoding_table, "PATH_MOST", 2)

        report = store.compact(keep_newest=1)

        assert form_of(store, 7) == before
        assert not report.skipped
        count = store.compact(keep_newest=1).encoded_count
        assert count == 0, "nothing is encoded again only to compare"
        assert store.verify().ok
