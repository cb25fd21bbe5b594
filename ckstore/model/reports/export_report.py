"""Reports of exports and checkouts."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ckstore.model.brief import brief
from ckstore.model.names import spelled
from ckstore.model.sizes import size_text
from ckstore.model.words import LINES_SHOWN, counted, headed, in_lines, named, printable, some_of


@brief()
@dataclass(frozen=True, slots=True)
class ExportedFile:
    """One file of an export.

    Attributes:
        name: Name of the file in the directory of the export.
        nbytes: Size of the file.
        tensor_count: Number of tensors in the file (0 for the index and for ``state.json``).
    """

    name: str
    nbytes: int
    tensor_count: int = 0

    def __str__(self) -> str:
        tensors = f"{counted(self.tensor_count, 'tensor')}, " if self.tensor_count else ""
        return printable(f"{self.name}: {tensors}{size_text(self.nbytes)}")


@brief()
@dataclass(frozen=True, slots=True)
class ExportReport:
    """The result of `ckstore.Store.export` or `ckstore.Store.export_safetensors`.

    Attributes:
        name: Full ref of the checkpoint, ``RUN@STEP``.
        checkpoint_id: Id of the checkpoint.
        destination: The directory, or the torch file.
        files: The files that were written, beginning with those that have tensors, in the order of the shards.
        tied: Name of a tensor that is in no file -> name of the tensor in a file that shares its memory.
        state_names: Full paths of the values that are in ``state.json`` because safetensors cannot hold them.
        left_out: Data that is in no file, one sentence each. This can be the versions of modules that torch attaches to
            a state dict, or committed files that are not part of a model.
        unsafe_globals: Classes and functions in a torch file that ``torch.load(weights_only=True)`` rejects. The file
            loads with ``weights_only=False``, or after ``torch.serialization.add_safe_globals``.
    """

    name: str
    checkpoint_id: str
    destination: Path
    files: tuple[ExportedFile, ...]
    tied: Mapping[str, str] = field(default_factory=dict)
    state_names: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    unsafe_globals: tuple[str, ...] = ()

    @property
    def nbytes(self) -> int:
        """Total size of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def tensor_count(self) -> int:
        """Number of tensors in all files, counting tied tensors once."""
        return sum(file.tensor_count for file in self.files)

    def __str__(self) -> str:
        return in_lines(lines(self, self.destination))


def lines(report: ExportReport, destination: Path) -> Iterator[str]:
    """Yield lines on unexpected results and on the written files; `destination` is the path as the user wrote it."""
    if report.tied:
        pairs = [f"{name} is {kept}" for name, kept in report.tied.items()]
        yield printable(f"tied, written once: {some_of(pairs)}")
    if report.state_names:
        names = [named(name) for name in spelled(report.state_names)]
        yield f"in state.json, since safetensors cannot hold it: {some_of(names)}"
    if report.left_out:
        yield printable(f"left out: {some_of(report.left_out)}")
    if report.unsafe_globals:
        has = some_of(report.unsafe_globals)
        yield printable(f"torch.load reads it only with weights_only=False, since it has: {has}")
    what = f"{counted(report.tensor_count, 'tensor')}, {counted(len(report.files), 'file')}, {size_text(report.nbytes)}"
    yield printable(f"exported {report.name} to {destination}: {what}")


@brief()
@dataclass(frozen=True, slots=True)
class ExportDamage:
    """A file of an export that differs from the exported data.

    Attributes:
        file: Name of the file in the directory of the export.
        names: The tensors in the file that differ. Empty if no tensor differs, or if the differing tensors are unknown.
        what: One sentence with the problem and the expected state.
    """

    file: str
    names: tuple[str, ...]
    what: str

    def __str__(self) -> str:
        listed = f"{some_of([named(name) for name in self.names], LINES_SHOWN)}: " if self.names else ""
        return printable(f"{self.file}  {listed}{self.what}")


@brief()
@dataclass(frozen=True, slots=True)
class ExportCheck:
    """The result of `ckstore.Store.verify_export`.

    Attributes:
        destination: The directory or the torch file of the export.
        name: Full ref of the exported checkpoint, ``RUN@STEP``. Empty if the export does not record it.
        checkpoint_id: The id of that checkpoint. Empty if `name` is empty.
        file_count: Number of files with a checksum.
        checked_bytes: Number of bytes that were read.
        damage: The files that differ, are missing, or have lost their checksum.
    """

    destination: Path
    name: str
    checkpoint_id: str
    file_count: int
    checked_bytes: int
    damage: tuple[ExportDamage, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every file matches the exported data."""
        return not self.damage

    def __str__(self) -> str:
        return in_lines([*(headed("damaged", str(one)) for one in self.damage), check_summary(self)])


def check_summary(check: ExportCheck) -> str:
    """Return a sentence on the exported checkpoint, the bytes read, and the number of damaged files."""
    source = f"export of {check.name} ({check.checkpoint_id})" if check.name else "export of an unknown checkpoint"
    found = f"{counted(len(check.damage), 'file')} damaged" if check.damage else "no damage"
    read = f"{counted(check.file_count, 'file')}, {size_text(check.checked_bytes)} read"
    return printable(f"{source}: {read}: {found}")


@brief()
@dataclass(frozen=True, slots=True)
class CheckoutReport:
    """The result of `ckstore.Store.checkout`.

    Attributes:
        destination: The directory to which the files were written.
        paths: The files and symlinks, relative to `destination`.
        nbytes: Total size of the files.
        shared_bytes: The part of `nbytes` that shares blocks or an inode with the store.
        hardlinked: Files that are hardlinks to a blob of the store. They are read-only and must never be written to.
    """

    destination: Path
    paths: tuple[str, ...]
    nbytes: int
    shared_bytes: int = 0
    hardlinked: tuple[str, ...] = ()

    def __str__(self) -> str:
        part = f", {size_text(self.shared_bytes)} of them shared with the store" if self.shared_bytes else ""
        wrote = f"wrote {counted(len(self.paths), 'file')}, {size_text(self.nbytes)}{part}, to {self.destination}"
        if not self.hardlinked:
            return printable(wrote)
        linked = some_of(self.hardlinked, LINES_SHOWN)
        warning = f"hardlinks to the store's own blobs, which you must never write to: {linked}"
        return f"{printable(wrote)}\n{printable(warning)}"
