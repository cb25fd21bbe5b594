"""The directory of published versions.

Each version is a directory. One rename makes it visible, and one rename removes it, because an engine would treat a
version without its index as a version with all weights. The file `VERSION_NAME` in a version names the checkpoint. The
greatest version number is recorded separately, because an engine may still use a version that was removed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from ckstore.errors import BadInput, DamagedBlob, InUse
from ckstore.fs import files, links, locks, new_tree
from ckstore.model.reports.weight_version import WeightVersion

DifferenceForm = Literal["overwrite", "xor"]
"""The forms in which `ckstore.Store.publish` stores differences."""
VERSION_NAME = "ckstore-version.json"
_OWN = ".ckstore"
_GREATEST = "greatest-version"
_FORMAT = "ckstore-weights"
_FORMAT_VERSION = 1
_NUMBERED = re.compile(r"weight_v([0-9]{6,})")
_HIDDEN = re.compile(r"\.(weight_v[0-9]{6,})\.ckstore-")
_RECORD_MOST_BYTES = 2**20


@dataclass(frozen=True, slots=True)
class VersionRecord:
    """The content of the file `VERSION_NAME` in a version."""

    version: int
    run: str
    step: int
    id: str
    content: str  # digest of the names and the stored bytes of the weights, because a restart may select other weights
    added: str  # digest of the names and the bytes of the files to add
    is_full: bool
    reason: str
    dtype: str  # dtype of the floating-point weights; empty if it is the dtype of the checkpoint
    out_of_range: int = 0  # number of values in the weights of the version that this dtype cannot represent

    def rendered(self) -> bytes:
        """Return the content of the file."""
        about = {
            "format": _FORMAT,
            "format_version": _FORMAT_VERSION,
            "version": self.version,
            "run": self.run,
            "step": self.step,
            "id": self.id,
            "content": self.content,
            "added": self.added,
            "is_full": self.is_full,
            "reason": self.reason,
            "dtype": self.dtype,
            "out_of_range": self.out_of_range,
        }
        return (json.dumps(about, indent=2) + "\n").encode("ascii")

    @classmethod
    def parsed(cls, data: bytes, version: int) -> Self:
        """Return the record of a version from the content of its file.

        Raises:
            KeyError, TypeError, ValueError: The file has other content.
        """
        about = json.loads(data)
        found = about["format"], about["format_version"], about["version"]
        if found != (_FORMAT, _FORMAT_VERSION, version):
            raise ValueError(f"it has {found}, wanted {(_FORMAT, _FORMAT_VERSION, version)}")
        return cls(
            version,
            str(about["run"]),
            int(about["step"]),
            str(about["id"]),
            str(about["content"]),
            str(about.get("added", "")),
            about["is_full"] is True,
            str(about["reason"]),
            # Versions of an earlier draft lack these members and `added`.
            str(about.get("dtype", "")),
            int(about.get("out_of_range", 0)),
        )


class VersionDirectory:
    """A directory of versions. Its only publisher keeps it locked until `close`."""

    def __init__(self, path: Path) -> None:
        """Create the directory if it is missing, and lock it.

        Raises:
            InUse: Another process publishes to it.
            BadInput: The directory cannot be created.
        """
        self.path = path
        own = path / _OWN
        try:
            own.mkdir(parents=True, exist_ok=True)
            files.sync_name(own)
            files.sync_name(path)
        except OSError as error:
            reason = os.strerror(error.errno or 0)
            msg = f"{path} cannot be made a directory of weights: {reason}"
            raise BadInput(msg, hint="choose a directory that you may write to") from error
        try:
            self._lock = locks.lock_exclusive(own, timeout_s=0.0)
        except InUse as error:
            raise InUse(
                f"another process publishes weights to {path}: {error.message}",
                hint="stop it, or publish to another directory",
            ) from error
        try:
            for name in {found[1] for one in path.iterdir() if (found := _HIDDEN.match(one.name))}:
                new_tree.remove_dead(path / name)
        except BaseException:
            self._lock.release()
            raise

    def place(self, version: int) -> Path:
        """Return the directory of a version."""
        return self.path / f"weight_v{version:06d}"

    def records(self) -> list[VersionRecord]:
        """Return the records of all versions, the oldest first.

        Raises:
            BadInput: Another program wrote one of them.
            InUse: The directory was removed or replaced, or this process does not hold its lock.
        """
        if self._lock.fd < 0:
            msg = f"this publisher to {self.path} was closed, or is the copy of a forked process"
            raise InUse(msg, hint="call publish again in the process that publishes")
        if not self._lock.names(self.path / _OWN):
            msg = f"{self.path} was removed or replaced since publishing began"
            raise InUse(msg, hint="call publish again")
        return [self._record(version) for version in sorted(self._numbers())]

    def greatest(self) -> int:
        """Return the greatest version number that was ever published to this directory, or 0.

        Raises:
            BadInput: Another program wrote the record.
        """
        path = self.path / _OWN / _GREATEST
        try:
            recorded = int(files.read_file(path, most_bytes=_RECORD_MOST_BYTES))
        except FileNotFoundError:  # the directory is new, or has versions of an earlier draft
            recorded = 0
        except (DamagedBlob, ValueError) as error:
            msg = f"{path} was not written by this version of ckstore ({error})"
            raise BadInput(msg, hint="publish to another directory") from error
        return max([recorded, *self._numbers()])

    def record_greatest(self, version: int) -> None:
        """Record the greatest version number durably. If this process dies earlier, the version's name shows it."""
        path = self.path / _OWN / _GREATEST
        new = path.with_suffix(".new")
        new.unlink(missing_ok=True)
        files.create_file(new, f"{version}\n".encode("ascii"), mode=0o644)
        links.rename(new, path)
        files.sync_directory(path.parent)

    def version_of(self, record: VersionRecord, nbytes: int | None = None) -> WeightVersion:
        """Return a published version. Without `nbytes`, its files are listed to compute their size."""
        path = self.place(record.version)
        if nbytes is None:
            nbytes = sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
        return WeightVersion(
            version=record.version,
            run=record.run,
            step=record.step,
            id=record.id,
            is_full=record.is_full,
            reason=record.reason,
            dtype=record.dtype or None,
            out_of_range=record.out_of_range,
            nbytes=nbytes,
            path=path,
        )

    def prune(self, keep_full: int) -> None:
        """Remove versions older than the newest `keep_full` versions with all weights."""
        full = [record.version for record in self.records() if record.is_full]
        if len(full) <= keep_full:
            return
        # The newest of these versions are removed first. If this process is killed, each remaining version still has
        # all versions that it needs.
        for version in sorted((one for one in self._numbers() if one < full[-keep_full]), reverse=True):
            new_tree.remove_published(self.place(version))

    def _numbers(self) -> Iterator[int]:
        for one in self.path.iterdir():
            if (found := _NUMBERED.fullmatch(one.name)) is not None:
                yield int(found[1])

    def _record(self, version: int) -> VersionRecord:
        path = self.place(version) / VERSION_NAME
        try:
            return VersionRecord.parsed(files.read_file(path, most_bytes=_RECORD_MOST_BYTES), version)
        except (DamagedBlob, OSError, OverflowError, ValueError, KeyError, TypeError) as error:
            msg = f"{path.parent} was not published by this version of ckstore ({path.name}: {error})"
            raise BadInput(msg, hint="publish to a directory of its own, or move this version away") from error

    def close(self) -> None:
        """Unlock the directory, so that another process can publish to it."""
        self._lock.release()
