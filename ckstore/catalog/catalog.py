"""The catalog: an index in SQLite over the directories of a store.

The directories are authoritative. The catalog can be behind or missing, and every caller works without it. A method
that reads takes no lock, and raises `CatalogUnavailable` for every kind of failure. A method that writes takes an
exclusive flock for one transaction, which is durable when the method returns. Only the rows of a save may be undone by
a power cut. Modules for writers are imported when a process writes, so that `ckstore log` starts fast.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

from ckstore.catalog import queries, space
from ckstore.catalog.connection import reading, unavailable, writing
from ckstore.catalog.queries import CatalogListing, Outline, Proposal
from ckstore.errors import CatalogUnavailable
from ckstore.model.names import CheckpointKey, key_of

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from ckstore.model.manifest.info import CheckpointInfo, Published, Stamp

CATALOG_NAME = "catalog.db"

P = ParamSpec("P")
Answer = TypeVar("Answer")
Tags = Mapping[str, CheckpointKey]
Look = Callable[[CheckpointKey], "Published | None"]


def _asked(query: Callable[Concatenate[sqlite3.Connection, P], Answer]) -> Callable[Concatenate[Catalog, P], Answer]:
    """Return a method that runs a query of the catalog in a new connection."""

    @wraps(query)
    def method(self: Catalog, /, *args: P.args, **kwargs: P.kwargs) -> Answer:
        with reading(self.path) as connection:
            return query(connection, *args, **kwargs)

    return method


class Catalog:
    """The catalog of the store at `root`. It keeps no file open, so threads and forked processes may share it.

    A method that writes raises `InUse` if it gets no lock within `timeout_s` seconds, `NewerFormat` if a newer ckstore
    made the catalog, and `CatalogUnavailable` if the catalog cannot be written for another reason. After such an error,
    nothing was changed. A method that reads raises only `CatalogUnavailable`.
    """

    def __init__(self, root: Path, path: Path | None = None, *, store: str = "") -> None:
        # The path of the database, usually ``catalog.db`` in the store. If the filesystem of the store is one that
        # SQLite cannot share between hosts, the database is in another directory.
        self.path = root / CATALOG_NAME if path is None else path
        self.store = store  # the uuid of the store, which a new catalog records; empty if it is unknown

    # -------------------------------------------------------------------------------------- writing

    def reconcile(
        self,
        targets: Iterable[CheckpointKey],
        look: Look,
        *,
        timeout_s: float,
        tags: Callable[[], Tags] | None = None,
        readings: Mapping[str, tuple[int, int]] | None = None,
        durable: bool = True,
    ) -> None:
        """Make the rows of checkpoints equal to their directories, in one transaction.

        Calls may be repeated, delayed or omitted, because the directories are authoritative. `look` and `tags` are
        called inside the transaction, and must not use the catalog. If one of them raises, the transaction is rolled
        back.

        Args:
            targets: The keys of the checkpoints.
            look: Reads the directory of a key. Returns None if there is no complete checkpoint.
            timeout_s: The time to wait for the lock, in seconds. The time of `look` does not count.
            tags: Reads all tags. If None, the tags are not changed.
            readings: Last readings of blobs, as for `record_readings`.
            durable: If False, a power cut may undo the transaction.
        """
        from ckstore.catalog import rows

        # All checkpoints share one transaction. The lock and the fsyncs of a transaction take 2 ms (docs/adr/0002).
        with writing(self.path, timeout_s=timeout_s, durable=durable) as connection:
            for key in targets:
                # The directory is read inside the transaction, so that the process that reads it last also writes last.
                found = look(key)
                # The limit on steps depends on the size of the file. A checkpoint with many pieces needs more steps.
                connection.renew(0 if found is None else rows.row_count(found.manifest))
                rows.set_checkpoint(connection, key, found)
            if tags is not None:
                rows.set_tags(connection, tags())
            if readings:
                rows.set_readings(connection, readings)

    def record_readings(self, readings: Mapping[str, tuple[int, int]], *, timeout_s: float) -> None:
        """Record the last readings of blobs: digest -> `read_ns` and `read_to` (`model/settings/recheck`)."""
        from ckstore.catalog import rows

        with writing(self.path, timeout_s=timeout_s) as connection:
            rows.set_readings(connection, readings)

    def replace_tags(self, tags: Tags | Callable[[], Tags], *, timeout_s: float) -> None:
        """Make the tags equal to `tags`. If `tags` is a function, it is called inside the transaction."""
        from ckstore.catalog import rows

        # Most saves change no tag. Without a change, no lock is taken and nothing is synced.
        if not callable(tags):
            # If the catalog cannot be read, the transaction below reports this.
            with suppress(CatalogUnavailable), reading(self.path) as connection:
                if queries.tags(connection) == dict(tags):
                    return
        with writing(self.path, timeout_s=timeout_s) as connection:
            rows.set_tags(connection, tags() if callable(tags) else tags)

    def add_candidates(self, blobs: Iterable[tuple[str, int]], *, timeout_s: float) -> None:
        """Record blobs, given as (digest, size), so that `unused` returns those that no checkpoint uses."""
        from ckstore.catalog import rows

        with writing(self.path, timeout_s=timeout_s) as connection:
            rows.add_candidates(connection, blobs)

    def remove_wrong(self, *, timeout_s: float) -> int:
        """Remove the rows of checkpoints whose checksums are wrong, and return the number of these rows.

        It is unknown which checkpoints had these rows. Like any checkpoint without a row, these checkpoints must be
        entered again from their directories.
        """
        from ckstore.catalog import rows

        with writing(self.path, timeout_s=timeout_s) as connection:
            removed = rows.remove_wrong(connection)
            # A row that cannot be deleted is on a damaged page, so the file must be replaced.
            if rows.wrong_ids(connection):
                raise unavailable(self.path, "has damaged rows that cannot be removed", "damaged")
        return removed

    def forget(self, digests: Iterable[str], *, timeout_s: float) -> int:
        """Delete the rows of the blobs that no checkpoint uses, and return the number of these blobs."""
        from ckstore.catalog import rows

        with writing(self.path, timeout_s=timeout_s) as connection:
            return rows.forget(connection, digests)

    def note_blobs_listed(self, boot_id: str, *, timeout_s: float) -> None:
        """Record that all blobs were listed during the boot with this id."""
        from ckstore.catalog import rows

        with writing(self.path, timeout_s=timeout_s) as connection:
            rows.set_blobs_listed(connection, boot_id)

    # -------------------------------------------------------------------------------------- reading

    owner = _asked(queries.owner)
    places_of_id = _asked(queries.places_of_id)
    counts = _asked(queries.counts)
    chosen = _asked(queries.chosen)
    count_and_sequence = _asked(queries.count_and_sequence)
    find_pieces = _asked(queries.find_pieces)
    best_shares = _asked(queries.best_shares)
    readings_of_newest = _asked(queries.readings_of_newest)
    readings = _asked(queries.readings)
    oldest_reading = _asked(queries.oldest_reading)
    blobs_of = _asked(queries.blobs_of)
    unused = _asked(queries.unused)
    pack_uses = _asked(space.pack_uses)
    without_use = _asked(space.without_use)
    dead_pack_bytes = _asked(space.dead_pack_bytes)
    used_bytes = _asked(space.used_bytes)

    def listing(
        self, run: str | None = None, *, places: Iterable[CheckpointKey] | None = None
    ) -> dict[CheckpointKey, Stamp]:
        """Return the key and the stamp of each checkpoint with an unchanged row, in the order of commits."""
        with reading(self.path) as connection:
            return queries.listing(connection, run, places=places).stamps

    def orders(self, *, places: Iterable[CheckpointKey] | None = None, beyond: int | None = None) -> CatalogListing:
        """Return the checkpoints in the catalog with their sequence numbers, unordered.

        If `places` is given, only the checkpoints at these places are returned. If `beyond` is given, only checkpoints
        with greater sequence numbers are returned.
        """
        with reading(self.path) as connection:
            if beyond is not None:
                return queries.beyond(connection, beyond)
            return queries.everything(connection) if places is None else queries.listing(connection, places=places)

    def propose(self, listed: Mapping[str, Mapping[str, int]], *, newest: int, run: str | None = None) -> Proposal:
        """Compare names and inode numbers of all checkpoints with the rows, and return the newest ones that agree.

        This takes 2 microseconds for each checkpoint, because only the rows of the newest checkpoints are read.

        Args:
            listed: Run -> name -> inode number of every existing directory, or of every directory of `run`.
            newest: The number of checkpoints to return.
            run: The run, or None for all runs.
        """
        unknown: set[CheckpointKey] = set()
        missing: set[CheckpointKey] = set()
        with reading(self.path) as connection:
            # Runs that only the catalog has are included, because all rows of a deleted run must be reported.
            runs = {run} if run is not None else listed.keys() | queries.counts(connection).keys()
            for name in runs:
                present, known = listed.get(name, {}), queries.inodes(connection, name)
                # Equal dicts are compared in C, so a run without changes needs no loop.
                if present != known:
                    names = [directory for directory, _ in present.items() - known.items()]
                    unknown.update(key for directory in names if (key := key_of(name, directory)) is not None)
                    gone = known.keys() - present.keys()
                    missing.update(key for directory in gone if (key := key_of(name, directory)) is not None)
            left_out = unknown | missing
            # In the worst case, all checkpoints that are left out are the newest, so this many more rows are read.
            first = queries.first_by_order(connection, run, newest + len(left_out))
            places = [place for place in first if place not in left_out]
            return Proposal(queries.listing(connection, places=places), unknown, missing)

    def outline(self, *, rows: bool = True) -> Outline:
        """Return the facts for opening a store, and, if `rows` is true, the rows of all checkpoints."""
        # All queries share one connection, because opening a connection takes half a millisecond.
        with reading(self.path) as connection:
            listing = queries.everything(connection) if rows else CatalogListing({}, {}, 0)
            return Outline(listing, queries.tags(connection), queries.blobs_listed(connection))

    def infos(
        self, run: str | None = None, *, places: Iterable[CheckpointKey] | None = None, durable: bool = True
    ) -> list[CheckpointInfo]:
        """Return the checkpoints of `run`, or of all runs, in the order of commits."""
        with reading(self.path) as connection:
            found = queries.infos(connection, run, places=places, durable=durable)
        self._keys(found.infos)
        return found.infos

    def current(
        self,
        published: Mapping[CheckpointKey, Stamp | None],
        run: str | None = None,
        *,
        newest: int | None = None,
        seek: bool = False,
        durable: bool = True,
    ) -> tuple[list[CheckpointInfo], set[CheckpointKey], int]:
        """Return the checkpoints whose directories have the stamps in the catalog, and the keys of other directories.

        Args:
            published: Key -> stamp of each directory.
            run: The run, or None for all runs.
            newest: If given, return only this number of checkpoints, the last in the order of commits.
            seek: Whether `published` has only a few checkpoints of the run, so that each is looked up.
            durable: The field `durable` of the returned checkpoints.

        Returns:
            The checkpoints, the keys whose stamps are not in the catalog, and the number of rows with flipped bits.
        """
        with reading(self.path) as connection:
            unknown, places, wrong_count = set(published), [*published] if seek else None, 0
            # Reading a complete row takes three times as long as reading its stamp. If few of many rows are needed, the
            # stamps are read first.
            if newest or (not seek and 2 * len(published) < queries.count_and_sequence(connection)[0]):
                listing = queries.listing(connection, run, places=places)
                same = [place for place, known in listing.stamps.items() if published.get(place) == known]
                places = same[-newest:] if newest else same
                unknown -= set(same) - set(places)
                wrong_count = listing.wrong_count
            found = queries.infos(connection, run, places=places, published=published, durable=durable)
        return found.infos, unknown - self._keys(found.infos), max(wrong_count, found.wrong_count)

    def _keys(self, found: list[CheckpointInfo]) -> set[CheckpointKey]:
        """Return the keys of checkpoints. Raise if two rows have the same key."""
        keys = {info.key for info in found}
        if len(keys) < len(found):  # possible if an entry of the unique index is damaged
            raise unavailable(self.path, "has two rows of one checkpoint", "damaged")
        return keys

    # --------------------------------------------------------------------------------------- upkeep

    def create_or_migrate(self, *, timeout_s: float) -> bool:
        """Create the catalog, or update its schema. Return False if the catalog was up to date."""
        from ckstore.catalog import upkeep

        return upkeep.create_or_migrate(self.path, self.store, timeout_s=timeout_s)

    def set_aside(self, *, timeout_s: float) -> Path | None:
        """Rename a damaged catalog to ``catalog.db.damaged-N``.

        Return the new path, or None if the catalog is intact or missing.
        """
        from ckstore.catalog import upkeep

        return upkeep.set_aside(self.path, timeout_s=timeout_s)

    def replace(self, *, timeout_s: float) -> Path | None:
        """Rename the catalog to ``catalog.db.old-N``, and create an empty catalog.

        Return the new path, or None if there was no catalog. No process writes to the old catalog afterwards, because a
        writer opens the catalog by its name, under the lock that this method holds.
        """
        from ckstore.catalog import upkeep

        return upkeep.replace(self.path, self.store, timeout_s=timeout_s)

    def damaged(self) -> list[str]:
        """Return the names of the damaged catalogs that `set_aside` renamed, oldest first."""
        from ckstore.catalog import upkeep

        return upkeep.names_aside(self.path, "damaged")

    def check(self) -> list[str]:
        """Return the problems of the catalog, one sentence each, without raising an error for them."""
        from ckstore.catalog import upkeep

        return upkeep.problems(self.path)
