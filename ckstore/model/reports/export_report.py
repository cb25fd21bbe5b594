"""What an export or a checkout wrote."""

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
    """One file.

    Attributes:
        name: In the directory of the export.
        nbytes: Its size.
        tensor_count: Tensors in it; 0 for the index and for ``state.json``.
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
    """What `ckstore.Store.export` or `ckstore.Store.export_safetensors` wrote.

    Attributes:
        name: Full ref of the checkpoint, ``RUN@STEP``.
        checkpoint_id: Its id.
        destination: The directory, or the torch file.
        files: What is in it: the tensors first, in the order of the shards.
        tied: Name that no file has -> name of the tensor that it shares its memory with.
        state_names: What safetensors cannot hold and is in ``state.json``, by its whole path in the state.
        left_out: What is in no file, a sentence each: the versions of modules that torch keeps beside a state dict, and
            committed files that are no part of a model.
        unsafe_globals: Classes and functions in a torch file that ``torch.load(weights_only=True)`` does not admit: it
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
        """Bytes of all files."""
        return sum(file.nbytes for file in self.files)

    @property
    def tensor_count(self) -> int:
        """Tensors in all files; tied ones count once."""
        return sum(file.tensor_count for file in self.files)

    def __str__(self) -> str:
        return in_lines(lines(self, self.destination))


def lines(report: ExportReport, destination: Path) -> Iterator[str]:
    """Say what is not as one may expect, and what was written; `destination` as the user wrote it."""
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
    """A file of an export that differs from what was exported.

    Attributes:
        file: Its name in the directory of the export.
        names: The tensors in it that differ; empty if none does, or if it is not known which do.
        what: What is wrong with it, and what was wanted, in one sentence.
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
    """What `ckstore.Store.verify_export` found.

    Attributes:
        destination: The directory of the export, or its torch file.
        name: Full ref of the checkpoint that it came from, ``RUN@STEP``; empty if the export does not record it.
        checkpoint_id: The id of that checkpoint; empty if `name` is.
        file_count: Files that have a sum.
        checked_bytes: Bytes that were read.
        damage: The files that differ, are missing, or have lost their sum.
    """

    destination: Path
    name: str
    checkpoint_id: str
    file_count: int
    checked_bytes: int
    damage: tuple[ExportDamage, ...] = ()

    @property
    def ok(self) -> bool:
        """Whether every file is what was exported."""
        return not self.damage

    def __str__(self) -> str:
        return in_lines([*(headed("damaged", str(one)) for one in self.damage), check_summary(self)])


def check_summary(check: ExportCheck) -> str:
    """Say how much was read, which checkpoint it came from, and how much of it differs."""
    source = f"export of {check.name} ({check.checkpoint_id})" if check.name else "export of an unknown checkpoint"
    found = f"{counted(len(check.damage), 'file')} damaged" if check.damage else "no damage"
    read = f"{counted(check.file_count, 'file')}, {size_text(check.checked_bytes)} read"
    return printable(f"{source}: {read}: {found}")


@brief()
@dataclass(frozen=True, slots=True)
class CheckoutReport:
    """What `ckstore.Store.checkout` wrote.

    Attributes:
        destination: Where.
        paths: The files and symlinks, relative to it.
        nbytes: Sizes of the files.
        shared_bytes: How many of them share blocks or an inode with the store.
        hardlinked: Files that are names of a blob of the store; read-only, and never to be written into.
    """

    destination: Path
    paths: tuple[str, ...]
    nbytes: int
    shared_bytes: int = 0
    hardlinked: tuple[str, ...] = ()

    def __str__(self) -> str:
        shared = f", {size_text(self.shared_bytes)} of them shared with the store" if self.shared_bytes else ""
        wrote = f"wrote {counted(len(self.paths), 'file')}, {size_text(self.nbytes)}{shared}, to {self.destination}"
        if not self.hardlinked:
            return printable(wrote)
        linked = some_of(self.hardlinked, LINES_SHOWN)
        warning = f"hardlinks to the store's own blobs, which you must never write to: {linked}"
        return f"{printable(wrote)}\n{printable(warning)}"
