"""Rows may be reconciled often, late or never: after the next opening, they match the directories (ADR 0002)."""

import shutil
import sqlite3
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ckstore.catalog import Catalog
from ckstore.errors import BadInput
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.manifest.manifest import Description
from tests.catalog.manifests import (
    PIECE_BYTES,
    PIECES_A_PACK,
    SOON_S,
    Directories,
    Key,
    at,
    chunk_of,
    new_catalog,
    pack_of,
    piece_of,
    published,
    stamp_of,
)

KEYS = st.builds(at, st.sampled_from(["a", "b"]), st.integers(0, 2), st.sampled_from("de"))
PIECES = st.lists(st.tuples(st.integers(0, 3), st.integers(0, PIECES_A_PACK - 1)), max_size=6)
CHUNKS = st.lists(st.integers(0, 3), max_size=3)
TEXTS = st.dictionaries(st.sampled_from(["note", "code"]), st.integers(1, 3), max_size=2)
TAGS = st.dictionaries(st.sampled_from(["best", "good", "v1"]), KEYS)


def rows(path: Path, query: str) -> list[tuple[Any, ...]]:
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(query).fetchall()


def everything(path: Path) -> dict[str, list[tuple[Any, ...]]]:
    """Return what the rows say, without the numbers that depend on the order in which they were made."""
    queries = {
        "checkpoints": "SELECT run, step, directory, manifest_id, content, sequence, created, writer, parent, message,"
        " metrics, metadata, logical_bytes, new_bytes, reused_bytes, leaf_count, dir_inode, manifest_inode,"
        " manifest_mtime_ns, manifest_ctime_ns FROM checkpoints",
        "blobs": "SELECT digest, nbytes, is_pack, reference_count FROM blob_references WHERE reference_count > 0",
        "uses": "SELECT * FROM checkpoint_blobs",
        "tags": "SELECT * FROM tags",
    }
    return {name: sorted(set(rows(path, query)), key=repr) for name, query in queries.items()}


class Histories(RuleBasedStateMachine):
    """Checkpoints come, change and go; the catalog hears of it now, twice, late or never."""

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp(prefix="ckstore-catalog-"))
        self.directories = Directories()
        self.sequence = 0
        self.behind: set[Key] = set()
        self.catalog: Catalog

    @initialize()
    def make(self) -> None:
        self.catalog = new_catalog(self.root)

    @rule(key=KEYS, pieces=PIECES, chunks=CHUNKS, texts=TEXTS, inode=st.integers(1, 2**64 - 1))
    def publish_or_replace(
        self, key: Key, pieces: list[tuple[int, int]], chunks: list[int], texts: dict[str, int], inode: int
    ) -> None:
        self.sequence += 1
        found = published(*key, sequence=self.sequence, pieces=pieces, chunks=chunks, texts=texts, inode=inode)
        self.directories.put(found)
        self.behind.add(key)

    @rule(key=KEYS)
    def remove(self, key: Key) -> None:
        self.directories.there.pop(key, None)
        self.behind.add(key)

    @rule(tags=TAGS)
    def tag(self, tags: dict[str, Key]) -> None:
        self.directories.tags = tags

    @rule(keys=st.lists(KEYS, max_size=4))
    def reconcile(self, keys: list[Key]) -> None:
        self.catalog.reconcile(keys, self.directories.look, timeout_s=SOON_S)
        self.behind.difference_update(keys)

    @rule()
    def catch_up(self) -> None:
        self.directories.catalogue(self.catalog)
        self.behind.clear()

    @rule(chunks=CHUNKS)
    def enter_what_lies_in_trash(self, chunks: list[int]) -> None:
        self.catalog.add_candidates([(chunk_of(chunk), 1000 + chunk) for chunk in chunks], timeout_s=SOON_S)

    @rule(limit=st.none() | st.integers(0, 3))
    def collect(self, limit: int | None) -> None:
        self.catalog.forget([digest for digest, _ in self.catalog.unused()[:limit]], timeout_s=SOON_S)

    @rule(chunks=CHUNKS, packs=st.lists(st.integers(0, 3)))
    def forget_what_may_be_used(self, chunks: list[int], packs: list[int]) -> None:
        self.catalog.forget([*map(chunk_of, chunks), *map(pack_of, packs)], timeout_s=SOON_S)

    @invariant()
    def candidates_name_every_unused_blob(self) -> None:
        computed = rows(self.catalog.path, "SELECT digest, nbytes FROM unused_blobs")
        assert sorted(self.catalog.unused()) == sorted(computed)

    @invariant()
    @precondition(lambda self: not self.behind)
    def counts_equal_the_manifests(self) -> None:
        counted = rows(self.catalog.path, "SELECT digest, reference_count FROM blob_references")
        assert {digest: count for digest, count in counted if count} == self.directories.reference_counts()
        for digest, _ in counted:
            users = {
                key
                for key, found in self.directories.there.items()
                if digest in {blob.digest for blob in found.manifest.blobs}
            }
            query = f"SELECT run, step, directory FROM checkpoint_blobs WHERE digest = '{digest}'"
            assert set(rows(self.catalog.path, query)) == users

    @invariant()
    @precondition(lambda self: not self.behind)
    def used_bytes_equal_the_manifests(self) -> None:
        used = rows(self.catalog.path, "SELECT run, step, directory, digest, used_bytes FROM checkpoint_blobs")
        expected = self.directories.used_bytes()
        assert {(Key(*place), digest): nbytes for *place, digest, nbytes in used} == expected
        digests = {digest for _, digest in expected}
        best = {d: max(n for (_, other), n in expected.items() if other == d) for d in digests}
        assert self.catalog.best_shares([*digests, chunk_of(99)]) == {**best, chunk_of(99): 0}

    @invariant()
    @precondition(lambda self: not self.behind)
    def pieces_are_where_some_manifest_says(self) -> None:
        said = {
            extent.piece: (found.manifest.blobs[extent.blob], extent.offset, extent.length)
            for found in self.directories.there.values()
            for storage in found.manifest.storages
            for extent in storage.extents
        }
        found = self.catalog.find_pieces(said)[0]
        assert {
            piece: (place.blob, place.blob_nbytes, place.offset, place.length) for piece, place in found.items()
        } == {piece: (blob.digest, blob.nbytes, *where) for piece, (blob, *where) in said.items()}

    @invariant()
    @precondition(lambda self: not self.behind)
    def the_listing_is_the_directories(self) -> None:
        there = self.directories.there
        assert self.catalog.listing() == {key: found.stamp for key, found in there.items()}
        newest = max((f.manifest.sequence for f in there.values()), default=0)
        assert self.catalog.count_and_sequence() == (len(there), newest)
        assert self.catalog.counts() == Counter(key.run for key in there)

    @rule()
    def a_catalog_made_from_nothing_says_the_same(self) -> None:
        self.catch_up()
        again = new_catalog(self.root / "again")
        self.directories.catalogue(again)
        assert everything(again.path) == everything(self.catalog.path)
        # The older one may remember more: pieces of packs in use that no manifest names any more.
        pieces = "SELECT p.digest, b.digest, p.offset, p.nbytes FROM pieces p JOIN blobs b ON b.id = p.blob_id"
        assert set(rows(again.path, pieces)) <= set(rows(self.catalog.path, pieces))
        shutil.rmtree(self.root / "again")

    def teardown(self) -> None:
        try:
            assert self.catalog.check() == []
        finally:
            shutil.rmtree(self.root)


TestHistories = pytest.mark.property(Histories.TestCase)
TestHistories.settings = settings(max_examples=max(8, settings().max_examples // 4), stateful_step_count=20)


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    made = new_catalog(tmp_path / "store")
    yield made
    assert made.check() == []


def test_what_is_known_about_a_checkpoint_comes_from_rows_alone(catalog: Catalog) -> None:
    description = Description(
        metrics={"loss": 2.5, "steps": 7, "worst": float("inf"), "best": float("-inf")},
        metadata={"lr": 0.1, "tags": ["x", None]},
        message="first \N{SNOWMAN}",
        parent=chunk_of(1),
    )
    directories = Directories(tags={"good": at("main", 3), "best": at("main", 3), "other": at("main", 4)})
    directories.put(published("main", 3, pieces=[(0, 0), (0, 1)], chunks=[1], description=description))

    directories.catalogue(catalog)

    found = directories.there[at("main", 3)]
    expected = CheckpointInfo.of(
        found.manifest, found.manifest_id, directory=found.key.directory, tags=("best", "good")
    )
    assert catalog.infos() == [expected]
    assert [type(value) for value in catalog.infos()[0].metrics.values()] == [float, float, int, float]


def test_two_checkpoints_of_a_step_and_two_forms_of_one_have_rows_of_their_own(catalog: Catalog) -> None:
    one, form, other = (Key("main", 3, f"3.{name}") for name in ("d" * 10, "d" * 10 + ".1", "e" * 10))
    directories = Directories(tags={"best": one})
    directories.put(
        published(*one, sequence=1, chunks=[1], inode=1),
        published(*form, sequence=1, chunks=[1, 2], inode=2),
        published(*other, sequence=2, chunks=[1], inode=3),
    )

    directories.catalogue(catalog)

    assert {info.key: info.tags for info in catalog.infos()} == {one: ("best",), form: ("best",), other: ()}
    assert catalog.listing(places=[form]) == {form: stamp_of(2)}
    assert dict(rows(catalog.path, "SELECT directory, tags FROM checkpoint_log")) == {
        one.directory: "best",
        form.directory: "best",
        other.directory: None,
    }
    del directories.there[one]
    directories.catalogue(catalog)
    assert catalog.listing() == {form: stamp_of(2), other: stamp_of(3)}
    assert catalog.unused() == []


def test_a_metric_that_is_not_a_number_stays_one(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, description=Description(metrics={"loss": float("nan")})))

    directories.catalogue(catalog)

    (loss,) = catalog.infos()[0].metrics.values()
    assert isinstance(loss, float)
    assert loss != loss  # noqa: PLR0124 - nan


def test_names_and_messages_may_have_lone_surrogates_and_null_characters(catalog: Catalog) -> None:
    odd = "a\ud800\0b"
    directories = Directories()
    there = published("main", 1, pieces=[(0, 0)], name_prefix=odd, description=Description(message=odd))
    directories.put(there)

    directories.catalogue(catalog)

    assert catalog.infos()[0].message == odd
    assert catalog.blobs_of([at("main", 1)])[at("main", 1)] == {
        (blob.digest, blob.nbytes) for blob in there.manifest.blobs
    }


def test_checkpoints_come_in_the_order_of_commits_whatever_their_steps(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(
        published("main", 9, sequence=1), published("main", 1, sequence=3), published("side", 5, sequence=2)
    )

    directories.catalogue(catalog)

    assert [info.key for info in catalog.infos()] == [at("main", 9), at("side", 5), at("main", 1)]
    assert [info.step for info in catalog.infos("main")] == [9, 1]
    assert catalog.infos("none") == []


@pytest.mark.parametrize("seek", [False, True])
def test_current_are_those_whose_directory_is_the_one_that_the_catalog_saw(catalog: Catalog, *, seek: bool) -> None:
    directories = Directories()
    directories.put(*(published("main", step, sequence=10 - step, inode=100 + step) for step in range(1, 6)))
    directories.put(published("side", 1, sequence=20, inode=7))
    directories.catalogue(catalog)
    replaced, unknown = at("main", 2), at("main", 8)
    numbers = {at("main", 1): 101, replaced: 999, at("main", 3): 103, at("main", 4): 104, unknown: 108}
    there = {place: stamp_of(number) for place, number in numbers.items()}

    all_of_them, others, _ = catalog.current(there, "main", seek=seek)
    assert sorted(info.step for info in all_of_them) == [1, 3, 4]
    assert others == {replaced, unknown}
    if not seek:  # else there is no order to be the newest in
        newest, others, _ = catalog.current(there, newest=2)
        assert sorted(info.step for info in newest) == [1, 3]
        assert others == {replaced, unknown}
    assert catalog.current({}, "main", seek=seek) == ([], set(), 0)
    assert catalog.current({at("side", 2): stamp_of(7)}, seek=seek) == ([], {at("side", 2)}, 0)


def test_a_piece_is_found_in_the_newest_pack_even_when_an_older_checkpoint_is_told_late(catalog: Catalog) -> None:
    old = published("main", 1, sequence=1, pieces=[(0, 0)])
    new = published("main", 2, sequence=2, pieces=[(1, 1)])
    # The same piece, once in pack 0 and once in pack 1.
    (storage,) = new.manifest.storages
    moved = type(storage)(storage.nbytes, (type(storage.extents[0])(piece_of(0, 0), 0, 1 * PIECE_BYTES, PIECE_BYTES),))
    new = type(new)(
        type(new.manifest)(**{**fields(new.manifest), "storages": (moved,)}), new.manifest_id, new.key, stamp_of(1)
    )
    directories = Directories()
    directories.put(old, new)

    for key in [at("main", 2), at("main", 1)]:
        catalog.reconcile([key], directories.look, timeout_s=SOON_S)

    assert catalog.find_pieces([piece_of(0, 0)])[0][piece_of(0, 0)].blob == pack_of(1)


def fields(value: Any) -> dict[str, Any]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def test_a_blob_that_is_one_piece_is_found_by_its_own_digest(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, chunks=[5], pieces=[(0, 2)]))
    directories.catalogue(catalog)

    found = catalog.find_pieces([chunk_of(5), piece_of(0, 2), piece_of(0, 3), pack_of(0)])[0]

    places = {piece: (place.blob, place.offset, place.length) for piece, place in found.items()}
    assert places == {
        chunk_of(5): (chunk_of(5), 0, 1005),
        piece_of(0, 2): (pack_of(0), 2 * PIECE_BYTES, PIECE_BYTES),
        pack_of(0): (pack_of(0), 0, PIECES_A_PACK * PIECE_BYTES),
    }


def test_more_digests_than_a_statement_takes_are_looked_up(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, chunks=range(1500)))
    directories.catalogue(catalog)
    wanted = [chunk_of(number) for number in range(3000)]

    assert catalog.find_pieces(wanted)[0].keys() == set(wanted[:1500])
    assert set(catalog.best_shares(wanted).values()) == {0, *range(1000, 2500)}


def test_a_pack_counts_each_of_its_pieces_once(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, pieces=[(0, 0), (0, 0), (0, 1)]))

    directories.catalogue(catalog)

    assert catalog.best_shares([pack_of(0)]) == {pack_of(0): 2 * PIECE_BYTES}


def test_the_same_checkpoint_in_another_directory_changes_only_the_inode(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, chunks=[1], inode=2**64 - 1))
    directories.catalogue(catalog)
    directories.put(published("main", 1, chunks=[1], inode=7))

    before = rows(catalog.path, "SELECT id, manifest_id FROM checkpoints")
    directories.catalogue(catalog)

    assert rows(catalog.path, "SELECT id, manifest_id FROM checkpoints") == before
    assert catalog.listing() == {at("main", 1): stamp_of(7)}


def test_a_look_that_fails_changes_nothing(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, chunks=[1]))
    directories.catalogue(catalog)
    directories.put(published("main", 1, chunks=[2]))

    def fails_at_the_second(key: Key) -> Any:
        if key.step == 2:
            raise OSError("no such disk")
        return directories.look(key)

    before = everything(catalog.path)
    with pytest.raises(OSError, match="no such disk"):
        catalog.reconcile([at("main", 1), at("main", 2)], fails_at_the_second, timeout_s=SOON_S)

    assert everything(catalog.path) == before


def test_a_manifest_of_another_checkpoint_is_refused(catalog: Catalog) -> None:
    with pytest.raises(BadInput, match=r"manifest in main/1\.0000000000 names main@2"):
        catalog.reconcile([at("main", 1)], lambda *_: published("main", 2), timeout_s=SOON_S)

    assert catalog.listing() == {}


def test_tags_are_made_equal(catalog: Catalog) -> None:
    first = {"a": at("main", 1), "b": at("main", 2)}
    second = {"b": at("main", 3), "c": at("side", 2**53)}
    stored = "SELECT name, run, step, directory FROM tags ORDER BY name"

    catalog.replace_tags(first, timeout_s=SOON_S)
    catalog.replace_tags(first, timeout_s=SOON_S)
    after_first = rows(catalog.path, stored)
    catalog.replace_tags(lambda: second, timeout_s=SOON_S)

    assert after_first == [(name, *target) for name, target in first.items()]
    assert rows(catalog.path, stored) == [(name, *target) for name, target in second.items()]


def test_unused_blobs_are_forgotten_with_their_pieces_and_used_ones_stay(catalog: Catalog) -> None:
    directories = Directories()
    directories.put(published("main", 1, pieces=[(0, 0)]), published("main", 2, pieces=[(1, 0)]))
    directories.catalogue(catalog)
    del directories.there[at("main", 1)]
    directories.catalogue(catalog)

    unused = catalog.unused()
    forgotten = catalog.forget([pack_of(0), pack_of(1), pack_of(2)], timeout_s=SOON_S)

    assert unused == [(pack_of(0), PIECES_A_PACK * PIECE_BYTES)]
    assert forgotten == 1
    assert catalog.find_pieces([piece_of(0, 0), piece_of(1, 0)])[0].keys() == {piece_of(1, 0)}


def test_only_blobs_that_lose_their_last_use_become_candidates(catalog: Catalog) -> None:
    directories = Directories()
    for step in range(3):
        directories.put(published("main", step, chunks=[*range(100), 1000 + step]))
    directories.catalogue(catalog)
    del directories.there[at("main", 1)]
    directories.catalogue(catalog)
    removed = rows(catalog.path, "SELECT b.digest FROM candidates c JOIN blobs b ON b.id = c.blob_id")
    directories.put(published("main", 7, chunks=[1001]))

    directories.catalogue(catalog)

    assert removed == [(chunk_of(1001),)]
    assert rows(catalog.path, "SELECT * FROM candidates") == []
    catalog.add_candidates([(chunk_of(1), 1001), (chunk_of(5000), 6000)], timeout_s=SOON_S)
    assert rows(catalog.path, "SELECT count(*) FROM candidates") == [(1,)]
    assert catalog.unused() == [(chunk_of(5000), 6000)]
