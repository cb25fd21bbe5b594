"""Queries of the catalog, each a function of an open connection.

This module imports few other modules, so that commands that list checkpoints start fast. Results have the form that
`row_checks` requires. Otherwise, the query raises `row_checks.NotOfItsForm`.

SQLite accepts any bytes as text, but Python's module refuses strings with lone surrogates, which messages may have.
Such a string is bound as WTF-8 bytes to a parameter of the form ``CAST(? AS TEXT)``. Inode numbers and times can be
almost 2^64, but SQLite's integers are signed, so these numbers are converted.
"""

from __future__ import annotations

import functools
import json
import time
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from ckstore.catalog import row_checks
from ckstore.catalog.row_checks import IS_RIGHT, checked
from ckstore.model.canonical import encode_metric
from ckstore.model.manifest.describe import decoded_metadata
from ckstore.model.manifest.info import CheckpointInfo, Stamp
from ckstore.model.names import CheckpointKey

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

    from ckstore.model.manifest.health import Health
    from ckstore.model.settings.recheck import Reading

_PARAMETERS = 500
T = TypeVar("T")

decode_text = functools.partial(str, encoding="utf-8", errors="surrogatepass")
"""The `text_factory` of a connection, for texts that `encode_text` encoded."""

# Members are sorted as in a manifest, so that a save and a later reading of the directory make equal rows.
_compact = json.JSONEncoder(separators=(",", ":"), allow_nan=False, sort_keys=True).encode

_INFO_COLUMNS = (
    "manifest_id, run, step, sequence, created, logical_bytes, new_bytes, reused_bytes, leaf_count,"
    " content, parent, message, metrics, metadata, directory, health"
)
_METRICS, _DIRECTORY, _HEALTH = 12, 14, 15
_INFO_FORMS = (
    row_checks.digests,
    row_checks.runs,
    row_checks.steps,
    row_checks.sequences,
    row_checks.times,
    *(row_checks.sizes,) * 4,
    row_checks.digests,
    row_checks.digests_or_nothing,
    row_checks.texts,
    row_checks.texts,  # metrics, which are parsed all at once
    row_checks.texts,  # metadata, likewise
    row_checks.directories,
    row_checks.texts,  # health, likewise
)
STAMP = "dir_inode, manifest_inode, manifest_mtime_ns, manifest_ctime_ns"
_LISTED = f"SELECT {IS_RIGHT}, run, step, directory, sequence, {STAMP} FROM checkpoints"  # noqa: S608
_PLACE_FORMS = (row_checks.runs, row_checks.steps, row_checks.directories)
_LISTED_FORMS = (row_checks.anything, *_PLACE_FORMS, row_checks.sequences, *(row_checks.integers,) * 4)
# No index is used, because a bit may have flipped in an entry of an index, and the checksum does not cover indexes. The
# parameters have names, because Python 3.12.0 to 3.12.3 warn about numbered placeholders.
_IN_ORDER = "NOT INDEXED WHERE :run IS NULL OR run = :run ORDER BY sequence, created, manifest_id"


class CatalogListing(NamedTuple):
    """The checkpoints in the catalog, with only their stamps and their sequence numbers."""

    # Key -> stamp of the directory and the manifest from which the row was made. Only unchanged rows are included.
    stamps: dict[CheckpointKey, Stamp]
    sequences: dict[CheckpointKey, int]  # key -> sequence number in the manifest
    wrong_count: int  # number of rows in which a bit has flipped since they were written


class Proposal(NamedTuple):
    """The newest checkpoints of a store according to the catalog, compared with a listing of its directories."""

    # The rows of the newest listed checkpoints, and the row of the checkpoint whose manifest was written last.
    newest: CatalogListing
    # The keys of listed directories that have no row, or a row with another inode number.
    unknown: set[CheckpointKey]
    missing: set[CheckpointKey]  # the keys of rows whose directories are not listed


class Described(NamedTuple):
    """Descriptions of checkpoints from rows."""

    infos: list[CheckpointInfo]  # from the unchanged rows
    wrong_count: int  # number of rows that changed since they were written


class Outline(NamedTuple):
    """The facts that opening a store compares with the directories."""

    listing: CatalogListing  # from the rows of all checkpoints
    tags: dict[str, CheckpointKey]  # name -> key of the first generation
    blobs_listed: str  # id of the boot during which all blobs were last listed; empty if they never were


class Counted(NamedTuple):
    """The number of checkpoints in a catalog at one moment."""

    checkpoints: int  # number of checkpoints
    newest: int  # the greatest sequence number; 0 without checkpoints
    at_s: float  # time of the query, by the monotonic clock


class PieceLocation(NamedTuple):
    """The location of a piece in the store."""

    blob: str  # digest of the blob that contains it
    blob_nbytes: int  # size of the whole blob in bytes
    offset: int  # bytes from the start of the blob to the piece
    length: int  # size of the piece in bytes


def encode_text(text: str) -> str | bytes:
    """Return `text` as a parameter for ``CAST(? AS TEXT)``."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        return text.encode("utf-8", "surrogatepass")
    return text


def encode_json(value: object) -> str:
    """Return plain JSON, in ASCII."""
    return _compact(value)


def encode_health(health: Health | None) -> str:
    """Return the reason why a checkpoint is unhealthy and its unchanged parts as JSON, or an empty text."""
    if health is None or not (health.unhealthy or health.unchanged):
        return ""
    return _compact([health.unhealthy, *health.unchanged])


def encode_metrics(metrics: Mapping[str, int | float]) -> str:
    """Return metrics as JSON. Numbers that JSON lacks are strings, as in the manifest."""
    return _compact({name: encode_metric(value) for name, value in metrics.items()})


def decode_metrics(texts: Sequence[str]) -> list[dict[str, int | float]]:
    """Decode many results of `encode_metrics` at once, in a fifth of the time of single calls."""
    try:
        found: list[Any] = json.loads(f"[{','.join(texts)}]")
    except (ValueError, RecursionError) as error:
        raise row_checks.NotOfItsForm(f"metrics: wanted JSON, found: {error}") from error
    if len(found) != len(texts) or not all(type(metrics) is dict for metrics in found):
        raise row_checks.NotOfItsForm("metrics: wanted one JSON object each")
    for metrics in found:
        row_checks.check_metrics(metrics)
        for name, value in metrics.items():
            if isinstance(value, str):
                metrics[name] = float(value)
    return found


def encode_stamp(stamp: Stamp) -> tuple[int, int, int, int]:
    """Return the unsigned 64-bit numbers of a stamp as signed numbers with the same bits."""
    dir_inode, inode, mtime_ns, ctime_ns = (n - 2**64 if n >= 2**63 else n for n in stamp)
    return dir_inode, inode, mtime_ns, ctime_ns


def decode_stamps(*columns: Sequence[int]) -> Iterator[Stamp]:
    """Return the stamps in columns of results of `encode_stamp`."""
    for n, column in enumerate(columns):
        if min(column) < 0:  # rare
            columns = (*columns[:n], [number % 2**64 for number in column], *columns[n + 1 :])
    return map(Stamp._make, zip(*columns, strict=True))


def in_parts(items: Sequence[T]) -> Iterator[tuple[str, Sequence[T]]]:
    """Yield pairs of placeholders ``(?, ?, ...)`` and a batch of `items`, each pair for one statement."""
    for at in range(0, len(items), _PARAMETERS):
        part = items[at : at + _PARAMETERS]
        yield f"({', '.join('?' * len(part))})", part


def owner(connection: sqlite3.Connection) -> str:
    """Return the uuid of the store of the catalog, or an empty text if it was not recorded."""
    rows = checked(connection.execute("SELECT uuid FROM store").fetchall(), row_checks.texts)
    return rows[0][0] if rows else ""


def blobs_listed(connection: sqlite3.Connection) -> str:
    """Return the id of the boot during which all blobs were last listed, or an empty text."""
    rows = checked(connection.execute("SELECT blobs_listed FROM store").fetchall(), row_checks.texts)
    return rows[0][0] if rows else ""


def listing(
    connection: sqlite3.Connection, run: str | None = None, *, places: Iterable[CheckpointKey] | None = None
) -> CatalogListing:
    """Return the checkpoints of `run`, of all runs or at `places`, in the order of commits."""
    if places is None:
        return _listing(connection.execute(f"{_LISTED} {_IN_ORDER}", {"run": run}).fetchall())
    query = f"{_LISTED} WHERE run = ? AND directory = ?"
    return _listing([row for key in places for row in connection.execute(query, (key.run, key.directory)).fetchall()])


def inodes(connection: sqlite3.Connection, run: str) -> dict[str, int]:
    """Return the name and the inode number of the directory of each row of a run."""
    query = "SELECT directory, dir_inode FROM checkpoints NOT INDEXED WHERE run = ?"
    return dict(connection.execute(query, (run,)).fetchall())


def places_of_id(connection: sqlite3.Connection, manifest_id: str) -> list[CheckpointKey]:
    """Return the keys of the checkpoints with this full id."""
    query = "SELECT run, step, directory FROM checkpoints NOT INDEXED WHERE manifest_id = ?"
    return _keys(connection.execute(query, (manifest_id,)).fetchall())


def first_by_order(connection: sqlite3.Connection, run: str | None, count: int) -> list[CheckpointKey]:
    """Return the keys of the newest rows of a run, or of all runs, and of the row whose manifest was written last."""
    query = (
        "SELECT run, step, directory, sequence FROM checkpoints {} WHERE :run IS NULL OR run = :run"
        " ORDER BY sequence DESC, created DESC, manifest_id DESC LIMIT :count"
    )
    # The index gives the newest checkpoints without reading all rows.
    first = connection.execute(query.format("INDEXED BY checkpoints_by_order"), {"run": run, "count": count}).fetchall()
    ((*last, written_ns, later),) = connection.execute(
        "SELECT run, step, directory, max(manifest_mtime_ns), total(sequence >= :last) FROM checkpoints NOT INDEXED"
        " WHERE :run IS NULL OR run = :run",
        {"run": run, "last": first[-1][3] if first else 0},
    ).fetchall()
    # If the table and the index disagree, a bit has flipped in one of them. Then the results of both are used, so that
    # no checkpoint is hidden.
    if later != len(first):
        first += connection.execute(query.format("NOT INDEXED"), {"run": run, "count": count}).fetchall()
    rows = [row[:3] for row in first] + ([] if written_ns is None else [tuple(last)])
    return _keys(list(dict.fromkeys(rows)))


def _key_in(row: tuple[Any, ...]) -> CheckpointKey:
    """Return the key in a row of `_INFO_COLUMNS`."""
    return CheckpointKey(row[1], row[2], row[_DIRECTORY])


def _keys(rows: list[tuple[Any, ...]]) -> list[CheckpointKey]:
    return [CheckpointKey(*row) for row in checked(rows, *_PLACE_FORMS)]


def everything(connection: sqlite3.Connection) -> CatalogListing:
    """Return all checkpoints like `listing`, unordered."""
    return _listing(connection.execute(f"{_LISTED} NOT INDEXED").fetchall())


def beyond(connection: sqlite3.Connection, sequence: int) -> CatalogListing:
    """Return the checkpoints with sequence numbers greater than `sequence`, like `listing`."""
    return _listing(connection.execute(f"{_LISTED} WHERE sequence > ?", (sequence,)).fetchall())


def _listing(rows: list[tuple[Any, ...]]) -> CatalogListing:
    right = checked([row for row in rows if row[0]], *_LISTED_FORMS)
    if not right:
        return CatalogListing({}, {}, len(rows))
    _, runs, steps, names, sequences, *stamps = zip(*right, strict=True)  # working on columns takes a third of the time
    places = [*map(CheckpointKey, runs, steps, names)]
    known = dict(zip(places, decode_stamps(*stamps), strict=True))
    return CatalogListing(known, dict(zip(places, sequences, strict=True)), len(rows) - len(right))


def counts(connection: sqlite3.Connection) -> dict[str, int]:
    """Return the number of checkpoints of each run."""
    # With one run, this is ten times as fast as GROUP BY. A plain count(*) must not be used, because SQLite counts no
    # steps for it, and it would never end if the pages form a ring.
    ((first, last, count),) = connection.execute(
        "SELECT (SELECT min(run) FROM checkpoints), (SELECT max(run) FROM checkpoints),"
        " (SELECT count(id) FROM checkpoints)"
    ).fetchall()
    if first == last:
        rows = [(first, count)] if count else []
    else:
        rows = connection.execute("SELECT run, count(*) FROM checkpoints GROUP BY run").fetchall()
    return dict(checked(rows, row_checks.runs, row_checks.sizes))


def chosen(connection: sqlite3.Connection, run: str, *, newest: int, off_every: int) -> CatalogListing:
    """Return the last `newest` checkpoints of `run`, and all whose step is not a multiple of `off_every`.

    The result has the same form as that of `listing`.
    """
    last = f"{_LISTED} WHERE run = ? ORDER BY sequence DESC, created DESC, manifest_id DESC LIMIT ?"
    off = f"{_LISTED} WHERE run = ? AND step % ? <> 0"
    rows = connection.execute(last, (run, newest)).fetchall() + connection.execute(off, (run, off_every)).fetchall()
    return _listing(list(dict.fromkeys(rows)))


def tags(connection: sqlite3.Connection) -> dict[str, CheckpointKey]:
    """Return the tags: name -> key of the first generation."""
    rows = connection.execute("SELECT name, run, step, directory FROM tags").fetchall()
    return {row[0]: CheckpointKey(*row[1:]) for row in checked(rows, row_checks.tags, *_PLACE_FORMS)}


def infos(
    connection: sqlite3.Connection,
    run: str | None,
    *,
    places: Iterable[CheckpointKey] | None = None,
    published: Mapping[CheckpointKey, Stamp | None] | None = None,
    durable: bool = True,
) -> Described:
    """Return the checkpoints of `run`, or of all runs, in the order of commits.

    If `places` is given, the checkpoints at these places are returned instead, unordered. Rows that changed since they
    were written are left out. If `published` is given, rows whose stamps differ from those in `published` are also left
    out.
    """
    connection.text_factory = decode_text
    tagged: dict[CheckpointKey, list[str]] = {}
    for name, target in sorted(tags(connection).items()):
        tagged.setdefault(target, []).append(name)
    columns = f"SELECT {_INFO_COLUMNS}, {STAMP}, {IS_RIGHT} FROM checkpoints"  # noqa: S608
    if places is None:
        rows = connection.execute(f"{columns} {_IN_ORDER}", {"run": run}).fetchall()
    else:
        rows = []
        for key in places:
            rows += connection.execute(
                f"{columns} WHERE run = ? AND directory = ?", (key.run, key.directory)
            ).fetchall()
    right = checked([row for row in rows if row[-1]], *_INFO_FORMS, *(row_checks.integers,) * 4, row_checks.anything)
    wrong_count = len(rows) - len(right)
    if published is not None and right:
        stamps = decode_stamps(*[*zip(*right, strict=True)][-5:-1])
        right = [row for row, stamp in zip(right, stamps, strict=True) if published.get(_key_in(row)) == stamp]
    found = []
    for row, metrics in zip(right, decode_metrics([row[_METRICS] for row in right]), strict=True):
        text = row[_METRICS + 1]
        metadata = {} if text == "{}" else decoded_metadata(row_checks.parsed_metadata(text))
        # Fields are passed by position, in the order of `_INFO_COLUMNS`, followed by `tags` and `durable`.
        key = _key_in(row)
        fields = (*row[:_METRICS], metrics, metadata, tuple(tagged.get(key.any_generation, ())), durable)
        unhealthy, unchanged = row_checks.parsed_health(row[_HEALTH])
        made = CheckpointInfo(*fields, directory=key.directory, unhealthy=unhealthy, unchanged=unchanged)  # type: ignore[misc]
        found.append(made)
    return Described(found, wrong_count)


def count_and_sequence(connection: sqlite3.Connection) -> tuple[int, int]:
    """Return the number of checkpoints, and the greatest sequence number, or 0 without checkpoints."""
    # These are two subqueries, because in a single query, SQLite would not use the index for the maximum.
    query = "SELECT (SELECT count(id) FROM checkpoints), (SELECT max(sequence) FROM checkpoints)"
    ((count, newest),) = connection.execute(query).fetchall()
    checked([(newest,)] if count else [], row_checks.sequences)
    return count, newest or 0


def find_pieces(connection: sqlite3.Connection, digests: Collection[str]) -> tuple[dict[str, PieceLocation], Counted]:
    """Return the locations of the pieces that the catalog has, and the counts for the next sequence number."""
    counted = Counted(*count_and_sequence(connection), time.monotonic())
    wanted = sorted(set(digests))
    found: dict[str, PieceLocation] = {}
    for marks, part in in_parts(wanted):
        query = (
            "SELECT p.digest, b.digest, b.nbytes, p.offset, p.nbytes"  # noqa: S608
            f" FROM pieces p JOIN blobs b ON b.id = p.blob_id WHERE p.digest IN {marks}"
        )
        rows = connection.execute(query, part).fetchall()
        for piece, *where in checked(rows, row_checks.digests, row_checks.digests, *(row_checks.sizes,) * 3):
            location = PieceLocation(*where)
            if location.offset > location.blob_nbytes - location.length:
                raise row_checks.NotOfItsForm(f"wanted a piece inside its blob, found {location}")
            found[piece] = location
        query = f"SELECT digest, nbytes FROM blobs WHERE digest IN {marks}"  # noqa: S608
        for piece, nbytes in checked(connection.execute(query, part).fetchall(), row_checks.digests, row_checks.sizes):
            # Blobs are looked up last, so that a piece's own blob is preferred to a pack, which may be mostly dead.
            found[piece] = PieceLocation(piece, nbytes, 0, nbytes)
    return found, counted


def best_shares(connection: sqlite3.Connection, digests: Collection[str]) -> dict[str, int]:
    """Return the greatest number of bytes of each blob that a single checkpoint uses, or 0 if no checkpoint uses it."""
    wanted = sorted(set(digests))
    best = dict.fromkeys(wanted, 0)
    for marks, part in in_parts(wanted):
        query = (
            "SELECT b.digest, max(u.used_bytes)"  # noqa: S608
            f" FROM blobs b JOIN uses u ON u.blob_id = b.id WHERE b.digest IN {marks}"
            " GROUP BY b.id"
        )
        best.update(checked(connection.execute(query, part).fetchall(), row_checks.digests, row_checks.sizes))
    return best


_READ_COLUMNS = (
    "SELECT b.digest, b.nbytes, coalesce(r.read_ns, 0), coalesce(r.read_to, 0), b.is_pack"
    " FROM blobs b LEFT JOIN readings r ON r.blob_id = b.id"
)


def readings_of_newest(connection: sqlite3.Connection, run: str) -> list[Reading]:
    """Return the last readings of the blobs of the newest checkpoint of `run`.

    If `run` has no checkpoint, the newest checkpoint of all runs is used.
    """
    newest = "ORDER BY sequence DESC, created DESC, manifest_id DESC LIMIT 1"
    rows = (
        connection.execute(f"SELECT id FROM checkpoints WHERE run = ? {newest}", (run,)).fetchall()  # noqa: S608
        or connection.execute(f"SELECT id FROM checkpoints {newest}").fetchall()  # noqa: S608
    )
    if not rows:
        return []
    checked(rows, row_checks.integers)
    query = f"{_READ_COLUMNS} JOIN uses u ON u.blob_id = b.id WHERE u.checkpoint_id = ?"
    return _readings(connection.execute(query, rows[0]).fetchall())


def readings(connection: sqlite3.Connection, digests: Collection[str]) -> list[Reading]:
    """Return the last readings of blobs. Unknown blobs are skipped."""
    found: list[Reading] = []
    for marks, part in in_parts(sorted(digests)):
        found += _readings(connection.execute(f"{_READ_COLUMNS} WHERE b.digest IN {marks}", part).fetchall())
    return found


def _readings(rows: list[tuple[str, int, int, int, int]]) -> list[Reading]:
    from ckstore.model.settings.recheck import Reading

    checked(rows, row_checks.digests, row_checks.sizes, row_checks.integers, row_checks.integers, row_checks.flags)
    return [Reading(digest, nbytes, read_ns, read_to, bool(whole)) for digest, nbytes, read_ns, read_to, whole in rows]


def oldest_reading(
    connection: sqlite3.Connection, place: CheckpointKey | None, *, now_ns: int
) -> tuple[int, int, int | None]:
    """Return the number of blobs of a checkpoint, the number of blobs never read, and the time of the oldest reading.

    Without a `place`, the blobs of all checkpoints are counted. Readings after `now_ns` are ignored.
    """
    used = "SELECT u.blob_id FROM uses u"
    if place is not None:
        used += " JOIN checkpoints c ON c.id = u.checkpoint_id WHERE c.run = ? AND c.step = ? AND c.directory = ?"
    rows = connection.execute(
        f"SELECT count(*), count(r.read_ns), min(r.read_ns) FROM (SELECT DISTINCT * FROM ({used})) AS used"  # noqa: S608
        " LEFT JOIN readings r ON r.blob_id = used.blob_id AND r.read_ns BETWEEN 1 AND ?",
        (*(place or ()), now_ns),
    ).fetchall()
    ((count, read, oldest_ns),) = checked(rows, row_checks.sizes, row_checks.sizes, row_checks.sizes_or_nothing)
    return count, count - read, oldest_ns


def blobs_of(
    connection: sqlite3.Connection, keys: Iterable[CheckpointKey]
) -> dict[CheckpointKey, set[tuple[str, int]]]:
    """Return the digests and the sizes of the blobs that each of these checkpoints uses."""
    query = (
        "SELECT b.digest, b.nbytes FROM checkpoints c JOIN uses u ON u.checkpoint_id = c.id"
        " JOIN blobs b ON b.id = u.blob_id WHERE c.run = ? AND c.step = ? AND c.directory = ?"
    )
    rows = {key: connection.execute(query, key).fetchall() for key in keys}
    return {key: set(checked(found, row_checks.digests, row_checks.sizes)) for key, found in rows.items()}


def unused(connection: sqlite3.Connection) -> list[tuple[str, int]]:
    """Return the digests and the sizes of the blobs that no checkpoint uses."""
    # Only the candidates are examined, so that the time depends on the number of blobs to free.
    rows = connection.execute(
        "SELECT b.digest, b.nbytes FROM candidates c JOIN blobs b ON b.id = c.blob_id"
        " WHERE NOT EXISTS (SELECT 1 FROM uses u WHERE u.blob_id = c.blob_id)"
        " ORDER BY b.id"
    ).fetchall()
    return checked(rows, row_checks.digests, row_checks.sizes)
