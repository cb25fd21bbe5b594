"""Compare the files of an export with the sums that were written next to them. No store is needed."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import reduce
from operator import truediv
from pathlib import Path

from ckstore.errors import BadInput, DamagedBlob
from ckstore.fs import direct, dirfd_stat, files
from ckstore.fs.dirfd_stat import NotInStore
from ckstore.fs.tree import foreign
from ckstore.model.document import parse_document
from ckstore.model.names import check_path
from ckstore.model.reports.export_report import ExportCheck, ExportDamage
from ckstore.model.reports.progress import Progress
from ckstore.ops.api_calls import api_call
from ckstore.ops.read.export_files import file_parts
from ckstore.ops.read.export_sums import (
    RECORD_FORMAT,
    RECORD_NAME,
    RECORD_VERSION,
    SUMS_NAME,
    FileRegion,
    FileSum,
    beside_file,
)

_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")
_ESCAPED = re.compile(r"\\(.)")
_UNESCAPED = {"\\": "\\", "n": "\n", "r": "\r"}
_SUMS_MOST_BYTES = 2**30
_AGAIN = "export the checkpoint again"


@api_call
def verify_export(path: Path, progress: Progress | None) -> ExportCheck:
    """Compare an export with its sums; see `ckstore.Store.verify_export`."""
    folder, (record_name, sums_name) = path, (RECORD_NAME, SUMS_NAME)
    if not path.is_dir():
        folder, (record_name, sums_name) = path.parent, beside_file(path.name)
    sums = _read_sums(folder / sums_name, path)
    check = _Check(folder, progress)
    record: _Record | None = None
    # The sums file may have been truncated or rewritten by a tool, so a file without a sum must not count as intact.
    unsummed = [record_name] if record_name not in sums and (folder / record_name).exists() else []
    if record_name in sums and check.is_right(record_name, sums.pop(record_name), ()):
        record = _Record(folder / record_name)
        check.total_bytes = check.checked_bytes + record.nbytes
        unsummed += [name for name in record.names if name not in sums]
    for name, wanted in sums.items():
        check.is_right(name, wanted, () if record is None else record.regions(name))
    check.damage += [ExportDamage(name, (), f"it has no sum in {sums_name}") for name in unsummed]
    return ExportCheck(
        destination=path,
        name="" if record is None else record.checkpoint,
        checkpoint_id="" if record is None else record.checkpoint_id,
        file_count=check.file_count,
        checked_bytes=check.checked_bytes,
        damage=tuple(check.damage),
    )


def _read_sums(path: Path, export: Path) -> dict[str, str]:
    """Return the SHA-256 of each file, by its name in the directory of the export."""
    try:
        data = files.read_file(foreign(path), most_bytes=_SUMS_MOST_BYTES)
    except FileNotFoundError as error:
        msg = f"{export} has no sums: {path} does not exist"
        raise BadInput(
            msg,
            hint="export it with sums=True, or give the directory of such an export",
            command_hint="export it with --sums, or give the directory of such an export",
        ) from error
    sums = {}
    lines = data.decode("utf-8", "surrogateescape").removesuffix("\n").split("\n")
    for number, line in enumerate(lines, 1):
        found = _LINE.fullmatch(line)
        if found is None:
            msg = f"line {number} of {path} is not a SHA-256 sum and a file name, as sha256sum writes them"
            raise DamagedBlob(msg, hint=_AGAIN)
        name = found[3]
        if found[1]:
            name = _ESCAPED.sub(lambda escape: _UNESCAPED.get(escape[1], escape[0]), name)
        # The sums file may come from an untrusted source and must not lead to files outside the export.
        check_path(name, f"a name in {path}")
        sums[name] = found[2]
    return sums


class _Record:
    """The record of an export. The caller has compared the file with its sum."""

    def __init__(self, path: Path) -> None:
        data = files.read_file(foreign(path), most_bytes=_SUMS_MOST_BYTES)
        try:
            document = parse_document(data, RECORD_FORMAT, RECORD_VERSION, str(path))
            self.checkpoint = str(document["checkpoint"])
            self.checkpoint_id = str(document["id"])
            self.nbytes = 0
            self._files: dict[str, list[tuple[FileRegion, str]]] = {}
            for name, file in document["files"].items():
                self.nbytes += int(file["nbytes"])
                self._files[name] = [
                    (FileRegion(str(tensor), int(start), int(stop)), str(digest))
                    for tensor, start, stop, digest in file["regions"]
                ]
        except BadInput as error:  # catch this before `ValueError`, which is its base class
            raise DamagedBlob(f"the record of the export is damaged: {error.message}", hint=_AGAIN) from error
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise DamagedBlob(f"{path} is not a record of an export: {error!r}", hint=_AGAIN) from error

    @property
    def names(self) -> Iterable[str]:
        """The names of the files of the export, except those of the record and the sums."""
        return self._files

    def regions(self, name: str) -> tuple[tuple[FileRegion, str], ...]:
        """Return the regions of a file, each with its digest, in the order of the file."""
        return tuple(sorted(self._files.get(name, ()), key=lambda pair: pair[0].start))


class _Check:
    """Compares files with their sums."""

    def __init__(self, folder: Path, progress: Progress | None) -> None:
        self.damage: list[ExportDamage] = []
        self.file_count = 0
        self.checked_bytes = 0
        self.total_bytes = 0  # the total size of the files; 0 until it is known
        self._folder = folder
        self._progress = progress

    def is_right(self, name: str, sha256: str, regions: tuple[tuple[FileRegion, str], ...]) -> bool:
        """Return whether a file matches its sum. If not, record the damage with the names of the differing regions."""
        self.file_count += 1
        found = FileSum([region for region, _ in regions])
        try:
            for at, data in self._parts(name):
                found.add(at, data)
        except DamagedBlob as error:
            self.damage.append(ExportDamage(name, (), error.message))
            return False
        if found.sha256() == sha256:
            return True
        pairs = zip(regions, found.digests(), strict=True)
        names = tuple(dict.fromkeys(region.name for (region, wanted), digest in pairs if digest != wanted))
        where = "" if names or not regions else ", outside its tensors"
        self.damage.append(ExportDamage(name, names, f"its SHA-256 is {found.sha256()}, wanted {sha256}{where}"))
        return False

    def _parts(self, name: str) -> Iterator[tuple[int, memoryview]]:
        try:
            # Open the path one directory at a time: a symlink in the export must not lead to files outside it.
            fd, status = files.open_with_status(reduce(truediv, name.split("/"), foreign(self._folder)))
        except FileNotFoundError as error:
            raise DamagedBlob("it is missing") from error
        except NotInStore as error:
            raise DamagedBlob(f"it cannot be opened: its directory {error.strerror}") from error
        except OSError as error:
            raise DamagedBlob(f"it cannot be opened: {error.strerror}") from error
        try:
            direct.drop_cached(fd)  # this makes the kernel read the bytes from the disk, if possible
            for at, data in file_parts(fd, name, status.st_size):
                yield at, data
                self.checked_bytes += len(data)
                if self._progress is not None:
                    self._progress(self.checked_bytes, max(self.checked_bytes, self.total_bytes))
        finally:
            dirfd_stat.close_quietly(fd)
