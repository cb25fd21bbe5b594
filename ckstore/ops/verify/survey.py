"""Look at a store as a whole without reading blobs: times, links, names, what is unused, the catalog, small files.

What can be set right without data is: canonical names that were lost get back, the catalog is made equal to the
directories.
"""

from __future__ import annotations

import stat
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING

from ckstore.errors import CkstoreError
from ckstore.fs import files, peek
from ckstore.fs.inside import Held
from ckstore.model.digest import fan_out, is_digest
from ckstore.model.manifest.manifest import BLOB_MAX_BYTES
from ckstore.model.reports.verify_report import Mode, StoreFinding
from ckstore.objects.canonical_link import restore_name
from ckstore.objects.last_names import NameCount
from ckstore.objects.layout import Layout
from ckstore.ops.index.scan_blobs import list_blobs
from ckstore.ops.refs.listing import misplaced, order_problem
from ckstore.ops.verify.survey_files import catalog_findings, file_findings

if TYPE_CHECKING:
    import os

    from ckstore.fs.inside import Inside
    from ckstore.ops.check.verifier import Verifier
    from ckstore.ops.context import Context

_LOOKS = 3
_CATALOG_TIMEOUT_S = 10.0
Inode = tuple[int, int]


@dataclass(slots=True)
class Names:
    """The names that the store has for its blobs.

    Attributes:
        counted: How many names each inode has.
        canonical: Digest -> status of what is at the canonical name.
        used: Digest -> a name in a checkpoint for each inode.
        too_deep: Directories that were not looked into.
    """

    counted: NameCount = field(default_factory=NameCount)
    canonical: dict[str, os.stat_result] = field(default_factory=dict)
    used: dict[str, dict[Inode, Inside]] = field(default_factory=dict)
    too_deep: list[Inside] = field(default_factory=list)

    @classmethod
    def of(cls, layout: Layout) -> Names:
        """List every directory that can have names of blobs."""
        made = cls()
        for folder in (layout.blobs, layout.checkpoints, layout.staging, layout.trash, layout.quarantine):
            for path, status in peek.walk(folder, made.too_deep):
                if not stat.S_ISREG(status.st_mode):
                    continue
                inode, name = (status.st_dev, status.st_ino), path.name
                made.counted.add(name.partition(".")[0], path, status)
                if not is_digest(name):
                    continue
                if folder is layout.blobs and path.parts[1:] == (fan_out(name), name):
                    made.canonical[name] = status
                elif folder is layout.checkpoints:
                    made.used.setdefault(name, {}).setdefault(inode, path)
        return made


def survey(context: Context, checker: Verifier, mode: Mode) -> Iterator[StoreFinding]:
    """Return what is to be said about the store; the checkpoints were looked at by `checker` before.

    What is only at a canonical name is read in a full verification: the next save of those bytes would link it.
    """
    names = Names.of(context.layout)
    may_write = not context.readonly and not context.writes_disabled_because
    if mode == "quick":
        yield from _touched(names)
    yield from _links(context.layout, names)
    yield from _lost_names(context.layout, names, checker, may_write=may_write)
    yield from _wrong_names(context.layout, names, checker, mode)
    yield from _unused(context, names, checker, may_write=may_write)
    for path in names.too_deep:
        what = f"{path.inner} is nested deeper than any directory of a store, and was skipped"
        yield StoreFinding("deep", what, path.inner)
    for info in misplaced(context):
        yield StoreFinding("order", context.problems[order_problem(info)], info.name, harmful=True)
    yield from catalog_findings(context, checker, may_write=may_write, thorough=mode == "full")
    yield from file_findings(context)


def _touched(names: Names) -> Iterator[StoreFinding]:
    """Blobs of another time; a wrong size is damage, which is told by checkpoint."""
    for digest, paths in sorted(names.used.items()):
        for path in paths.values():
            status = peek.find(path)
            if status is not None and status.st_mtime_ns != files.BLOB_MTIME_NS:
                what = (
                    f"a program wrote into blob {digest}, or copied it without its modification "
                    "time; a full verification reads it"
                )
                yield StoreFinding("touched", what, digest, harmful=True)


def _links(layout: Layout, names: Names) -> Iterator[StoreFinding]:
    """Link counts against names. Others may be saving: only what is still so at a second look counts."""
    for inode, name in names.counted.first.items():
        digest, status = name.digest, peek.find(name.path)
        if not is_digest(digest) or status is None or status.st_nlink == names.counted.counts[inode]:
            continue
        found = _count_again(layout, name.path, inode)
        if found is None:
            continue
        link_count, name_count = found
        if link_count > name_count:
            more = link_count - name_count
            what = f"blob {digest} has {more} name{'' if more == 1 else 's'} outside the store"
            yield StoreFinding("outside", f"{what}; a write there damages the blob", digest)
        else:
            what = f"blob {digest} (inode {inode[1]}) has {name_count} names and a link count of {link_count}"
            yield StoreFinding("links", f"{what}: check the filesystem", digest, harmful=True)


def _count_again(layout: Layout, path: Inside, inode: Inode) -> tuple[int, int] | None:
    """Return link count and number of names of an inode if they differ and stay; None if not, or if it is gone."""
    for _ in range(_LOOKS):
        before = peek.find(path)
        if before is None or (before.st_dev, before.st_ino) != inode:
            return None
        count = Names.of(layout).counted.counts[inode]
        if count == before.st_nlink:
            return None
        after = peek.find(path)
        if after is not None and after.st_nlink == before.st_nlink:
            return before.st_nlink, count
    return None


def _lost_names(layout: Layout, names: Names, checker: Verifier, *, may_write: bool) -> Iterator[StoreFinding]:
    """Canonical names that are lost are given back, unless no copy can be relied on."""
    for digest, paths in sorted(names.used.items()):
        if digest in names.canonical:
            continue
        good = [path for (device, inode), path in paths.items() if (device, inode, digest) not in checker.bad]
        if good:
            what = f"blob {digest} had lost its canonical name, which only new saves need"
            yield StoreFinding("name", what, digest, mended=may_write and _give_name(layout, digest, good))


def _give_name(layout: Layout, digest: str, names: Iterable[Inside]) -> bool:
    for name in names:
        status = peek.find(name)
        if status is not None and restore_name(layout, name.parent.parent, digest, status.st_size):
            return True
    return False


def _wrong_names(layout: Layout, names: Names, checker: Verifier, mode: Mode) -> Iterator[StoreFinding]:
    """Canonical names that give other bytes than they say, where no checkpoint has that copy."""
    for folder, entries in groupby(sorted(names.canonical.items()), lambda entry: fan_out(entry[0])):
        try:
            held = Held(layout.blobs / folder)  # once, and not for each of what may be 100,000 files
        except FileNotFoundError:
            continue
        with held:
            for digest, status in entries:
                what = _wrong_name(held.inside / digest, status, names.used.get(digest, {}), checker, mode)
                if what:
                    yield StoreFinding("name", f"{what}; no checkpoint uses this copy", digest, harmful=True)


def _wrong_name(
    path: Inside, status: os.stat_result, used: Mapping[Inode, Inside], checker: Verifier, mode: Mode
) -> str:
    if (status.st_dev, status.st_ino) in used:
        return ""
    if status.st_size > BLOB_MAX_BYTES:
        return f"{path} has {status.st_size} bytes, more than a blob can have, and was not read"
    if mode == "full":
        return checker.file(path, path.name, status.st_size) or ""
    if used and status.st_mtime_ns == files.BLOB_MTIME_NS:  # with another time no save relies on it unread
        sizes = {there.st_size for name in used.values() if (there := peek.find(name)) is not None}
        if status.st_size not in sizes:
            return f"{path} has {status.st_size} bytes, and the copies in checkpoints have another size"
    return ""


def _unused(context: Context, names: Names, checker: Verifier, *, may_write: bool) -> Iterator[StoreFinding]:
    """Blobs that no checkpoint has. What a damaged one lacks is none of them: it may be the only copy."""
    lone = {digest: status for digest, status in names.canonical.items() if digest not in names.used}
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
    what = "1 blob is" if len(sizes) == 1 else f"{len(sizes)} blobs are"
    yield StoreFinding("unused", f"{what} in no checkpoint, {sum(sizes)} bytes; gc frees them", mended=listed)
