"""The checker finds each kind of harm that it is there to find; one that finds none would pass every store."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from ckstore import RetentionPolicy, Store
from ckstore.fs import files
from ckstore.model.digest import algorithm_named
from tests.faults.checker import check_store
from tests.faults.harness import evenly, sample
from tests.faults.journal import Journal, Place, Promised, read_journal
from tests.faults.scenarios import SCENARIOS
from tests.faults.states import state
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir, checkpoint_dirs

pytestmark = pytest.mark.crash

ONE: Place = ("main", 1)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A store with the state `first` as step 1."""
    path = tmp_path / "store"
    with Journal(tmp_path / "journal") as journal:
        SCENARIOS["deduplicated_save"].prepare(path, journal)
    return path


def promise(*states: str | None) -> Promised:
    return Promised(options={ONE: set(states)}, store=True)


def a_blob(store: Path) -> Path:
    return max(blobs_dir(store, "main", 1).iterdir(), key=lambda path: path.stat().st_size)


def test_a_whole_store_passes(store: Path, tmp_path: Path) -> None:
    assert check_store(store, read_journal(tmp_path / "journal")) == []


def test_every_directory_of_a_step_is_looked_at(store: Path) -> None:
    with Store.open(store) as opened:
        opened.tag("older", "main@1")  # it protects the checkpoint that is replaced
        opened.save(state("second"), step=1, if_exists="replace")
    promised = promise("second")
    promised.facts = {("tag", "older"): {"main@1"}}
    older, _ = checkpoint_dirs(store, "main", 1)

    assert check_store(store, promised) == []
    (older / "blobs" / "more").touch()
    assert f"{older.relative_to(store)} does not need more" in check_store(store, promised)


@pytest.mark.parametrize(
    "promised,found",
    [
        (promise("second"), "main@1 must be one of ['second'], found first"),
        (promise("second", None), "main@1 must be one of ['None', 'second'], found first"),
        (Promised(store=True), "main@1 must be one of ['None'], found first"),
        (
            Promised({ONE: {"first"}, ("main", 2): {"second"}}, store=True),
            "main@2 must be one of ['second'], found None",
        ),
    ],
    ids=["another state", "another or none", "nothing", "one more"],
)
def test_a_broken_promise_is_found(store: Path, promised: Promised, found: str) -> None:
    assert check_store(store, promised) == [found]


def test_a_fact_that_is_missing_or_too_much_is_found(store: Path) -> None:
    with Store.open(store) as opened:
        opened.tag("best", "main@1")
        opened.pin("main@1", "figure 3")
        opened.annotate("main@1", {"loss": 0.5})
        opened.config.retention = RetentionPolicy(keep_last=9)
    promised = promise("first")
    promised.facts = {
        ("tag", "best"): {"main@1", None},
        ("pin", "main@1"): {"figure 3"},
        ("metric", "main@1 loss"): {"0.5"},
        ("retention", "policy"): {'{"keep_last": 9}'},
    }

    assert check_store(store, promised) == []
    promised.facts |= {("pin", "main@1"): {"figure 4"}, ("tag", "lost"): {"main@1"}}
    del promised.facts["metric", "main@1 loss"]
    # The second look finds what the first one saved.
    assert [line for line in check_store(store, promised) if "probe" not in line] == [
        "metric main@1 loss must be one of ['None'], found 0.5",
        "pin main@1 must be one of ['figure 4'], found figure 3",
        "tag lost must be one of ['main@1'], found None",
    ]


def lose_the_store(store: Path) -> None:
    (store / "store.json").unlink()


def lose_a_checkpoint(store: Path) -> None:
    shutil.rmtree(checkpoint_dir(store, "main", 1))


def lose_a_blob_of_a_checkpoint(store: Path) -> None:
    a_blob(store).unlink()


def change_a_blob_and_hide_it(store: Path) -> None:
    blob = a_blob(store)
    before = blob.stat().st_mtime_ns
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"x")
    blob.chmod(0o444)
    os.utime(blob, ns=(before, before))


def add_a_name_outside(store: Path) -> None:
    os.link(a_blob(store), store.parent / "elsewhere")


def leave_a_temporary_file(store: Path) -> None:
    (store / "blobs" / "new-1").write_bytes(b"")


def leave_a_temporary_directory(store: Path) -> None:
    (store / "blobs" / "tmp").mkdir()


def make_half_a_checkpoint(store: Path) -> None:
    (store / "checkpoints" / "main" / "2" / "blobs").mkdir(parents=True)


def make_a_blob_writable(store: Path) -> None:
    a_blob(store).chmod(0o644)


def leave_a_tag_that_is_being_written(store: Path) -> None:
    (store / "refs" / ".best").symlink_to("../checkpoints/main/1")


def leave_a_blob_that_gc_does_not_know(store: Path) -> None:
    data = b"no checkpoint has this"
    name = algorithm_named("xxh3_128").digest(data)
    (store / "blobs" / name[5:7]).mkdir(exist_ok=True)
    files.create_blob(store / "blobs" / name[5:7] / name, memoryview(data))


def lose_uses_in_the_catalog(store: Path) -> None:
    with closing(sqlite3.connect(store / "catalog.db")) as catalog, catalog:
        catalog.execute("DELETE FROM uses")


@pytest.mark.parametrize(
    "harm,found",
    [
        (lose_the_store, "the store was acknowledged and is gone"),
        (lose_a_checkpoint, "found None"),
        (lose_a_blob_of_a_checkpoint, "directories [('main', 1)], but listed and loaded []"),
        (change_a_blob_and_hide_it, "main@1 is listed, not loaded: DamagedBlob"),
        (change_a_blob_and_hide_it, "the bytes are not what the name says"),
        (add_a_name_outside, "link count 3, but 2 names"),
        (leave_a_temporary_file, "a file that has no business here: blobs/new-1"),
        (leave_a_temporary_directory, "a directory that has no business here: blobs/tmp"),
        (make_half_a_checkpoint, "directories [('main', 1), ('main', 2)], but listed and loaded [('main', 1)]"),
        (make_a_blob_writable, "mode 100644 of a blob"),
        (leave_a_tag_that_is_being_written, "a file that has no business here: refs/.best"),
        (leave_a_blob_that_gc_does_not_know, "gc left blobs that no checkpoint uses"),
        (lose_uses_in_the_catalog, "the catalog has other uses"),
        (lose_uses_in_the_catalog, "differ from the manifests"),
    ],
)
def test_harm_is_found(store: Path, harm: Callable[[Path], None], found: str) -> None:
    harm(store)

    wrong = check_store(store, promise("first"))

    assert any(found in line for line in wrong), wrong


@pytest.mark.usefixtures("descriptors_may_leak")
def test_a_descriptor_that_is_left_open_is_found(store: Path) -> None:
    fd = os.open(store, os.O_RDONLY)

    wrong = check_store(store, promise("first"))
    os.close(fd)

    assert wrong == [f"left open: {store}"]


def test_what_a_journal_promises_follows_its_lines(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    journal = Journal(path)
    two: Place = ("main", 2)

    def promised() -> tuple[bool, dict[Place, set[str | None]]]:
        read = read_journal(path)
        return read.store, read.options

    assert promised() == (False, {})
    journal.store_made()
    journal.begin(ONE, "a")
    assert promised() == (True, {ONE: {None, "a"}})
    journal.done(ONE, "a")
    journal.begin(ONE, "b")
    assert promised() == (True, {ONE: {"a", "b"}})
    journal.failed(unknown=False)
    assert promised() == (True, {ONE: {"a"}})
    journal.begin(ONE, "c")
    journal.failed(unknown=True)
    journal.begin(two, "d")
    journal.failed(unknown=False)
    assert promised() == (True, {ONE: {"a", "c"}, two: {None}})
    journal.begin(ONE, None)
    journal.done(ONE, None)
    journal.begin(("tag", "best"), "main@1")
    journal.close()
    assert promised() == (True, {ONE: {None}, two: {None}})
    assert read_journal(path).facts == {("tag", "best"): {None, "main@1"}}


def test_a_sample_is_spread_and_has_more_of_what_is_not_the_catalog() -> None:
    calls = [f"{n} 1 write catalog.db-wal" for n in range(1, 101)] + [f"{n} 1 write blobs/x" for n in range(101, 141)]

    assert evenly(range(1, 101), 4) == [1, 34, 67, 100]
    chosen = sample(calls, 20, 3)
    assert len(chosen) == 20
    assert sum(n > 100 for n in chosen) == 15
    assert all(sum(low < n <= low + 20 for n in chosen) == 1 for low in range(0, 100, 20))
    assert sample(calls, 1000, 3) == list(range(1, 141))


@pytest.mark.parametrize("wanted", [1, 2, 3, 10])
def test_samples_of_many_seeds_have_every_call_in_them(wanted: int) -> None:
    calls = [f"{n} 1 write catalog.db-wal" for n in range(1, 41)] + [f"{n} 1 write blobs/x" for n in range(41, 61)]
    samples = [sample(calls, wanted, seed) for seed in range(2000)]

    assert {len(chosen) for chosen in samples} == {wanted}
    assert {n for chosen in samples for n in chosen} == set(range(1, 61))
