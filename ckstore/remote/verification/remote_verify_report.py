"""The report of a verification of a remote."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from ckstore.model.brief import brief
from ckstore.model.reports.verify_report import Mode, minute
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, headed, in_lines, printable, some_of


@brief()
@dataclass(frozen=True, slots=True)
class RemoteDamage:
    """An object that is missing on a remote, or that has other bytes than its name or its checkpoint requires.

    Attributes:
        word: Whether the object is ``missing`` or ``damaged``.
        key: The key of the object on the remote.
        what: One sentence with the problem and the expected state.
        checkpoints: The checkpoints that need the object, as ``RUN@STEP``.
        do: How to repair the object.
    """

    word: Literal["missing", "damaged"]
    key: str
    what: str
    checkpoints: tuple[str, ...]
    do: str

    def __str__(self) -> str:
        return printable(f"{self.what} (needed by {some_of(self.checkpoints)}). To repair it, {self.do}")


@brief()
@dataclass(frozen=True, slots=True)
class RemoteVerifyReport:
    """The result of `ckstore.Store.remotes.verify`.

    Attributes:
        remote: The name of the remote.
        as_of: Time of the listing of the remote, in the format of `CheckpointInfo.created`.
        checkpoint_count: Number of checkpoints whose manifests were read.
        blob_count, blob_bytes: Number and size of the objects in ``blobs/`` that these checkpoints need.
        read_count, checked_bytes: Number and size of the blobs that were read back and compared with their digests.
        damage: The missing and damaged objects.
        sample: The fraction of the blobs that was chosen to be read, from 0 to 1.
        mode: ``full``, ``quick``, or ``sampled``, which is also the mode of a call with a budget.
        in_time: False if the budget ended before all chosen blobs were read.
    """

    remote: str
    as_of: str
    checkpoint_count: int
    blob_count: int
    blob_bytes: int
    read_count: int
    checked_bytes: int
    damage: tuple[RemoteDamage, ...] = ()
    sample: float = 1.0
    mode: Mode = "full"
    in_time: bool = True

    @property
    def ok(self) -> bool:
        """Whether none of the checked objects is missing or damaged."""
        return not self.damage

    def __str__(self) -> str:
        return in_lines((headed(one.word, str(one)) for one in self.damage), summary(self))


def summary(report: RemoteVerifyReport) -> Iterator[str]:
    """Yield a line about the checkpoints and blobs of the remote, and a line about the read blobs and their damage."""
    listed = f"{counted(report.checkpoint_count, 'checkpoint')} at {report.remote} as of {minute(report.as_of)}"
    yield printable(f"{listed}, with {counted(report.blob_count, 'blob')} of {size_text(report.blob_bytes)}")
    read = "no blob was read" if report.mode == "quick" else f"{size_text(report.checked_bytes)} read back"
    if report.mode == "sampled":
        read += f" ({report.read_count} of {report.blob_count} blobs{'' if report.in_time else ', then time was up'})"
    objects = counted(len(report.damage), "missing or damaged object")
    yield f"{read}: {objects if report.damage else 'no damage'}"
