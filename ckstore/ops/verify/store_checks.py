"""Check a store as a whole: times, links, names, unused blobs, the catalog, small files.

This module reads blobs only in a full verification, and only blobs without a link in a checkpoint. It immediately makes
the repairs that need no data: it restores lost canonical names and rows of the catalog.
"""

from __future__ import annotations

import os
import stat
from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ckstore.errors import CkstoreError
from ckstore.fs import blob_time, dirfd_stat
from ckstore.fs.dirfd_stat import StorePath, with_open_parents
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

# The maximum number of passes. Each pass lists the whole store. A save rarely changes the links of one inode during all
# three passes.
_LOOKS = 3
_CATALOG_TIMEOUT_S = 10.0
Inode = tuple[int, int]


@dataclass(slots=True)
class Names:
    """The links to blobs in the store."""

    counted: NameCount = field(default_factory=NameCount)  # how many links each inode has
    # Digest -> status of the file at the canonical name.
    canonical: dict[str, os.stat_result] = field(default_factory=dict)
    # Digest -> for each inode, a link in a checkpoint.
    used: dict[str, dict[Inode, StorePath]] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)  # digests of files whose time is not the fixed time of blobs
    too_deep: list[StorePath] = field(default_factory=list)  # directories that were skipped as too deeply nested

    @classmethod
    def of(cls, layout: Layout) -> Names:
        """List every directory that can have links to blobs."""
        made = cls()
        for folder in (layout.blobs, layout.checkpoints, layout.staging, layout.trash, layout.quarantine):
            for path, status in dirfd_stat.walk(folder, made.too_deep):
                if not stat.S_ISREG(status.st_mode):
                    continue
                inode, name = (status.st_dev, status.st_ino), path.name
                # A link in quarantine is named DIGEST.INODE, and also counts.
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
    """Yield findings about the store. `checker` must have checked the checkpoints before."""
    # A full verification also reads blobs that have only a canonical name, since a save of these bytes would reuse
    # them.
    names = Names.of(context.layout)
    may_write = not context.readonly and not context.writes_disabled_because
    # A quick verification reads no blobs, so it reports blobs with a changed time. A wrong size is damage, and is
    # reported with the checkpoint.
    for digest in sorted(names.touched) if mode == "quick" else ():
        message = f"a program wrote to blob {digest}, or copied it without its modification time"
        yield StoreFinding("touched", f"{message}; a full verification reads it", digest, harmful=True)
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


def _links(layout: Layout, names: Names) -> Iterator[StoreFinding]:
    """Yield wrong link counts. Saves may be running, so a difference counts only if a second pass confirms it."""
    blobs = {inode: name for inode, name in names.counted.first.items() if is_digest(name.digest)}
    counts = names.counted.counts
    doubtful = {inode: blobs[inode] for inode, status in _statuses(blobs).items() if status.st_nlink != counts[inode]}
    for inode, link_count, name_count in _counted_again(layout, doubtful):
        digest = doubtful[inode].digest
        if link_count > name_count:
            more = link_count - name_count
            message = f"blob {digest} has {more} link{'' if more == 1 else 's'} outside the store"
            yield StoreFinding("outside", f"{message}; a write to it damages the blob", digest)
        else:
            message = f"blob {digest} (inode {inode[1]}) has {name_count} names and a link count of {link_count}"
            yield StoreFinding("links", f"{message}: check the filesystem", digest, harmful=True)


def _counted_again(layout: Layout, names: Mapping[Inode, LastLink]) -> Iterator[tuple[Inode, int, int]]:
    """Yield the inodes whose link count differs from the number of names in several passes, with both numbers."""
    for _ in range(_LOOKS):
        if not names:
            return
        before, places = _link_counts(names), _places(layout)
        counts = Names.of(layout).counted.counts
        names = {inode: names[inode] for inode, count in before.items() if count != counts[inode]}
        # If a save, a compaction or a delete renamed a directory, its names may be listed twice or not at all.
        if _places(layout) != places:
            continue
        after = _link_counts(names)
        for inode in names:
            # If the link count did not change while the names were listed, both numbers can be compared.
            if after.get(inode) == before[inode]:
                yield inode, before[inode], counts[inode]
        names = {inode: name for inode, name in names.items() if after.get(inode) not in (before[inode], None)}


def _places(layout: Layout) -> object:
    """Return the directories that can have links to blobs."""
    return trash.names_in(layout.staging), trash.names_in(layout.trash), layout.stamps()


def _link_counts(names: Mapping[Inode, LastLink]) -> dict[Inode, int]:
    """Return the link counts of the inodes whose name still exists."""
    return {
        inode: status.st_nlink for inode, status in _statuses(names).items() if (status.st_dev, status.st_ino) == inode
    }


def _statuses(names: Mapping[Inode, LastLink]) -> dict[Inode, os.stat_result]:
    """Return the statuses of the names that still exist."""
    found: dict[Inode, os.stat_result] = {}
    # Use a loop and not a comprehension, whose iterator would remain in the traceback of an error and keep a directory
    # open.
    for inode, path in with_open_parents((inode, name.path) for inode, name in names.items()):
        if (status := dirfd_stat.find(path)) is not None:
            found[inode] = status
    return found


def _lost_names(layout: Layout, names: Names, checker: Verifier, *, may_write: bool) -> Iterator[StoreFinding]:
    """Restore lost canonical names of blobs with a good copy, and yield a finding for each."""
    lost: dict[str, list[StorePath]] = {}
    for digest, paths in sorted(names.used.items()):
        if digest not in names.canonical:
            good = [path for (st_dev, inode), path in paths.items() if (st_dev, inode, digest) not in checker.bad]
            if good:
                lost[digest] = good
    given = _given_names(layout, lost) if may_write else set()
    for digest in lost:
        message = f"blob {digest} had lost its canonical name, which only new saves need"
        yield StoreFinding("name", message, digest, mended=digest in given)


def _given_names(layout: Layout, lost: Mapping[str, list[StorePath]]) -> set[str]:
    """Restore canonical names, and return the digests of the restored names.

    Each checkpoint is locked once for all its blobs.
    """
    by_checkpoint: defaultdict[StorePath, list[str]] = defaultdict(list)
    for digest, copies in lost.items():
        for copy in copies:
            by_checkpoint[copy.parent.parent].append(digest)
    given: set[str] = set()
    for checkpoint, digests in by_checkpoint.items():
        given |= restore_names(layout, checkpoint, [(digest, None) for digest in digests if digest not in given])
    return given


def _wrong_names(layout: Layout, names: Names, checker: Verifier, mode: Mode) -> Iterator[StoreFinding]:
    """Yield a finding for each canonical name whose file is damaged and is in no checkpoint."""
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
    # Do not read a huge file: anyone with write access to the store can create a sparse file of terabytes.
    if status.st_size > BLOB_MAX_BYTES:
        return f"{path} has {status.st_size} bytes, more than a blob can have, and was not read"
    if mode == "full":
        return checker.file(path, path.name, status.st_size) or ""
    # If the time is not the fixed time of blobs, a save reads the file before reusing it.
    if used and blob_time.is_stamp(status.st_mtime_ns):
        sizes = {other.st_size for name in used.values() if (other := dirfd_stat.find(name)) is not None}
        if status.st_size not in sizes:
            return f"{path} has {status.st_size} bytes, but the copies in checkpoints have another size"
    return ""


def _unused(context: Context, names: Names, checker: Verifier, *, may_write: bool) -> Iterator[StoreFinding]:
    """Yield a finding about blobs that are in no checkpoint, except blobs that a damaged checkpoint needs."""
    # Blobs of dropped checkpoints that can still be restored must not be freed by gc, so they do not count as unused.
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
        except CkstoreError:  # gc lists these blobs when the catalog works again
            listed = False
    subject = "1 blob is" if len(sizes) == 1 else f"{len(sizes)} blobs are"
    what = f"{subject} in no checkpoint, {size_text(sum(sizes))}; ckstore gc frees them"
    yield StoreFinding("unused", what, mended=listed)
