"""Look at a store as a whole without reading blobs: times, links, names, what is unused, the catalog, small files.

It repairs what needs no data: lost canonical names, and rows of the catalog.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ckstore.errors import CkstoreError
from ckstore.fs import blob_time, dirfd_stat
from ckstore.fs.open_dir import with_open_parents
from ckstore.fs.store_path import StorePath
from ckstore.model.digest import fan_out, is_digest
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES
from ckstore.model.reports.verify_report import Mode, StoreFinding
from ckstore.model.sizes import size_text
from ckstore.objects import trash
from ckstore.objects.heal import restore_names
from ckstore.objects.last_links import LastLink, NameCount
from ckstore.objects.layout import Layout
from ckstore.ops.check.verifier import Verifier
from ckstore.ops.context import Context
from ckstore.ops.index.scan_blobs import list_blobs
from ckstore.ops.refs.listing import infos, order_problem
from ckstore.ops.verify.survey_files import catalog_findings, file_findings

# Each look lists the whole store; saves that run meanwhile seldom touch one inode in all three.
_LOOKS = 3
_CATALOG_TIMEOUT_S = 10.0
Inode = tuple[int, int]


@dataclass(slots=True)
class Names:
    """The names that the store has for its blobs."""

    counted: NameCount = field(default_factory=NameCount)  # how many names each inode has
    # Digest -> status of what is at the canonical name.
    canonical: dict[str, os.stat_result] = field(default_factory=dict)
    # Digest -> a name in a checkpoint for each inode.
    used: dict[str, dict[Inode, StorePath]] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)  # the digest of each of these that has another time than a blob
    too_deep: list[StorePath] = field(default_factory=list)  # directories that were not looked into

    @classmethod
    def of(cls, layout: Layout) -> Names:
        """List every directory that can have names of blobs."""
        made = cls()
        for folder in (layout.blobs, layout.checkpoints, layout.staging, layout.trash, layout.quarantine):
            for path, status in dirfd_stat.walk(folder, made.too_deep):
                if not stat.S_ISREG(status.st_mode):
                    continue
                inode, name = (status.st_dev, status.st_ino), path.name
                # In quarantine a name is DIGEST.INODE, and counts as a link like any other.
                made.counted.add(name.partition(".")[0], path, status)
                if not is_digest(name):
                    continue
                if folder is layout.blobs and path.parts[1:] == (fan_out(name), name):
                    made.canonical[name] = status
                elif folder is layout.checkpoints and inode not in (copies := made.used.setdefault(name, {})):
                    copies[inode] = path
                    if not blob_time.is_stamp(status.st_mtime_ns):
                        made.touched.append(name)
        return made


def survey(context: Context, checker: Verifier, mode: Mode) -> Iterator[StoreFinding]:
    """Return what is to be said about the store; the checkpoints were looked at by `checker` before."""
    # A full verification reads blobs that have a canonical name only: the next save of those bytes would link them.
    names = Names.of(context.layout)
    may_write = not context.readonly and not context.writes_disabled_because
    if mode == "quick":
        yield from _touched(names)
    yield from _links(context.layout, names)
    yield from _lost_names(context.layout, names, checker, may_write=may_write)
    yield from _wrong_names(context.layout, names, checker, mode)
    yield from _unused(context, names, checker, may_write=may_write)
    for path in names.too_deep:
        message = f"{path.inner} is nested deeper than any directory of a store, and was skipped"
        yield StoreFinding("deep", message, path.inner)
    for info in (info for info in infos(context) if info.out_of_order):
        yield StoreFinding("order", context.notices.problems[order_problem(info)], info.name, harmful=True)
    yield from catalog_findings(context, checker, may_write=may_write, thorough=mode == "full")
    yield from file_findings(context)


def _touched(names: Names) -> Iterator[StoreFinding]:
    """Blobs of another time; a wrong size is damage, and reported with its checkpoint."""
    for digest in sorted(names.touched):
        message = f"a program wrote into blob {digest}, or copied it without its modification time"
        yield StoreFinding("touched", f"{message}; a full verification reads it", digest, harmful=True)


def _links(layout: Layout, names: Names) -> Iterator[StoreFinding]:
    """Link counts against names. Others may be saving: only what is still so at a second look counts."""
    blobs = {inode: name for inode, name in names.counted.first.items() if is_digest(name.digest)}
    counts = names.counted.counts
    doubtful = {inode: blobs[inode] for inode, status in _statuses(blobs).items() if status.st_nlink != counts[inode]}
    for inode, link_count, name_count in _counted_again(layout, doubtful):
        digest = doubtful[inode].digest
        if link_count > name_count:
            more = link_count - name_count
            message = f"blob {digest} has {more} name{'' if more == 1 else 's'} outside the store"
            yield StoreFinding("outside", f"{message}; a write there damages the blob", digest)
        else:
            message = f"blob {digest} (inode {inode[1]}) has {name_count} names and a link count of {link_count}"
            yield StoreFinding("links", f"{message}: check the filesystem", digest, harmful=True)


def _counted_again(layout: Layout, names: Mapping[Inode, LastLink]) -> Iterator[tuple[Inode, int, int]]:
    """Yield link count and number of names of the inodes for which they differ and stay so."""
    for _ in range(_LOOKS):
        if not names:
            return
        before, places = _link_counts(names), _places(layout)
        counts = Names.of(layout).counted.counts
        names = {inode: names[inode] for inode, count in before.items() if count != counts[inode]}
        # What a save, a compaction or a delete renamed was listed twice, or not at all.
        if _places(layout) != places:
            continue
        after = _link_counts(names)
        for inode in names:
            # The count stood still while the names were listed, so both numbers are of one moment.
            if after.get(inode) == before[inode]:
                yield inode, before[inode], counts[inode]
        names = {inode: name for inode, name in names.items() if after.get(inode) not in (before[inode], None)}


def _places(layout: Layout) -> object:
    """Return where directories with names of blobs are, and which."""
    return trash.names_in(layout.staging), trash.names_in(layout.trash), layout.stamps()


def _link_counts(names: Mapping[Inode, LastLink]) -> dict[Inode, int]:
    """Return the link counts of those inodes that still have their name."""
    return {
        inode: status.st_nlink for inode, status in _statuses(names).items() if (status.st_dev, status.st_ino) == inode
    }


def _statuses(names: Mapping[Inode, LastLink]) -> dict[Inode, os.stat_result]:
    """Return the statuses of those names that are still there."""
    found: dict[Inode, os.stat_result] = {}
    # No comprehension: what it goes through would stay in the traceback of an error, and a directory open with it.
    for inode, path in with_open_parents((inode, name.path) for inode, name in names.items()):
        if (status := dirfd_stat.find(path)) is not None:
            found[inode] = status
    return found


def _lost_names(layout: Layout, names: Names, checker: Verifier, *, may_write: bool) -> Iterator[StoreFinding]:
    """Canonical names that are lost are given back, unless no copy can be relied on."""
    lost: dict[str, list[StorePath]] = {}
    for digest, paths in sorted(names.used.items()):
        if digest not in names.canonical:
            good = [path for (device, inode), path in paths.items() if (device, inode, digest) not in checker.bad]
            if good:
                lost[digest] = good
    given = _given_names(layout, lost) if may_write else set()
    for digest in lost:
        message = f"blob {digest} had lost its canonical name, which only new saves need"
        yield StoreFinding("name", message, digest, mended=digest in given)


def _given_names(layout: Layout, lost: Mapping[str, list[StorePath]]) -> set[str]:
    """Return the digests that have their canonical name again; a checkpoint is locked once for all that it has."""
    by_checkpoint: defaultdict[StorePath, list[str]] = defaultdict(list)
    for digest, copies in lost.items():
        for copy in copies:
            by_checkpoint[copy.parent.parent].append(digest)
    given: set[str] = set()
    for checkpoint, digests in by_checkpoint.items():
        given |= restore_names(layout, checkpoint, [(digest, None) for digest in digests if digest not in given])
    return given


def _wrong_names(layout: Layout, names: Names, checker: Verifier, mode: Mode) -> Iterator[StoreFinding]:
    """Canonical names that give other bytes than they say, where no checkpoint has that copy."""
    places = ((entry, layout.blob(entry[0])) for entry in sorted(names.canonical.items()))
    for (digest, status), path in with_open_parents(places):
        problem = _wrong_name(path, status, names.used.get(digest, {}), checker, mode)
        if problem:
            yield StoreFinding("name", f"{problem}; no checkpoint uses this copy", digest, harmful=True)


def _wrong_name(
    path: StorePath, status: os.stat_result, used: Mapping[Inode, StorePath], checker: Verifier, mode: Mode
) -> str:
    if (status.st_dev, status.st_ino) in used:
        return ""
    # Anyone who may write to the store can put a sparse file of terabytes there.
    if status.st_size > BLOB_MAX_BYTES:
        return f"{path} has {status.st_size} bytes, more than a blob can have, and was not read"
    if mode == "full":
        return checker.file(path, path.name, status.st_size) or ""
    if used and blob_time.is_stamp(status.st_mtime_ns):  # without a stamp no save relies on it unread
        sizes = {other.st_size for name in used.values() if (other := dirfd_stat.find(name)) is not None}
        if status.st_size not in sizes:
            return f"{path} has {status.st_size} bytes, and the copies in checkpoints have another size"
    return ""


def _unused(context: Context, names: Names, checker: Verifier, *, may_write: bool) -> Iterator[StoreFinding]:
    """Blobs that no checkpoint has. A blob that a damaged one lacks is left out: it may be the only copy."""
    # What was dropped and can be brought back is not gc's yet.
    kept = names.used.keys() | trash.waiting_blobs(context.layout)
    lone = {digest: status for digest, status in names.canonical.items() if digest not in kept}
    sizes = [status.st_size for digest, status in lone.items() if digest not in checker.missing]
    if not sizes:
        return
    listed = False
    if may_write:
        try:
            list_blobs(context, timeout_s=_CATALOG_TIMEOUT_S)
            listed = True
        except CkstoreError:  # gc lists them when the catalog is well again
            listed = False
    subject = "1 blob is" if len(sizes) == 1 else f"{len(sizes)} blobs are"
    what = f"{subject} in no checkpoint, {size_text(sum(sizes))}; ckstore gc frees them"
    yield StoreFinding("unused", what, mended=listed)
