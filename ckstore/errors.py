"""The errors that ckstore raises deliberately, with their exit statuses.

    CkstoreError                 1
    ├── StoreNotFound            4   no store exists at this path, or another store has replaced the opened store
    ├── NoSuchRef                4   no checkpoint has this step, tag or id (also a LookupError)
    │   └── NoSuchFile           4   the checkpoint has no file of this name (also a FileNotFoundError)
    ├── AmbiguousRef             4   the ref matches several checkpoints (also a LookupError)
    ├── BadInput                 2   an argument or a file is not valid (also a ValueError)
    │   ├── CannotStore          1   the format cannot store a value of the state
    │   ├── CannotLoad           1   a committed file, or a value in it, cannot be loaded as a state
    │   └── DoesNotFit           2   the checkpoint and the target of the load differ
    ├── StepExists               1   the run has another checkpoint with this step
    ├── RunInUse                 1   the run has checkpoints of another training
    ├── StateChanged             1   the state changed during the save
    │   └── NotUnchanged         1   a tensor that `unchanged=` selects has changed
    ├── SaveFailed               1   a save failed, and every earlier checkpoint is intact
    │   ├── InsufficientSpace    6   not enough free bytes or inodes
    │   ├── SaveAbandoned        1   a background save was abandoned, and its checkpoint will not appear
    │   ├── ReadOnlyStore        1   the call would write to a store that is opened read-only
    │   └── RankError            1   several ranks could not save or load one checkpoint together
    │       ├── MissingRanks     1   some ranks did not arrive in time
    │       ├── RankMismatch     1   the ranks disagree about the checkpoint, or two processes claim the same rank
    │       └── RankFailed       1   the call failed on some ranks, so it failed on all of them
    ├── UnknownOutcome           1   the checkpoint may be published, or may not survive a power cut
    ├── DamagedBlob              3   bytes on disk do not match their digest
    │   ├── MissingBlob          3   a file with data of a checkpoint is missing
    │   ├── NoWholeCheckpoint    3   checkpoints exist, but none of them is complete
    │   └── OtherHash            3   the checkpoint belongs to a store with another hash algorithm
    ├── CatalogUnavailable       1   the catalog cannot be used, and the operation needs it
    │   └── CatalogFull          6   the catalog cannot be written to a full disk or quota (also an InsufficientSpace)
    ├── InUse                    5   a process uses the checkpoint or holds a lock, or an unfinished save replaces it
    │   └── Protected            5   a tag or a pin protects the checkpoint from deletion
    ├── LoopFailed               1   a training loop under `check` raised an error, died or did not end in time
    ├── NewerFormat              1   a newer ckstore wrote the data
    ├── RemoteError              1   a remote refused, did not answer, or holds data that does not match its name
    │   ├── NoSuchRemote         4   the store has no remote of this name, or no remote exists at this URL
    │   ├── RemoteDenied         1   the service refused the credentials, or received none
    │   ├── RemoteFull           6   a quota of the bucket or the account is used up, or the service has no space left
    │   ├── RemoteUnavailable    1   the service was unreachable or failed, so the same call may succeed later
    │   ├── RunIsOwned           1   another store mirrors the run to this remote; the local checkpoints remain
    │   └── BytesElsewhere       1   data of a checkpoint is stored only on a remote and cannot be fetched
    ├── MissingExtra             1   a Python package that the call needs is not installed
    └── UnsafePlace              1   the place cannot keep the guarantees of ckstore, or another user owns it

A message describes the failure, with the expected and the actual values. `hint` is the next step. All errors survive
pickling, because training code passes them between processes. docs/reference/exit-statuses.md lists the exit statuses.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_REFUSED_SHOWN = 100


class CkstoreWarning(UserWarning):
    """A call succeeded, but not exactly as requested: for example, ``latest-valid`` skipped a damaged checkpoint."""


class CkstoreError(Exception):
    """Base class of all errors of ckstore.

    Attributes:
        hint: The next step in one sentence, for Python code. It is empty if the message needs no advice.
        command_hint: The next step for the command line. It is empty if `hint` also applies to the command line.
        exit_status: The exit status of the command line.
        of_storage: Whether a save failed because of the storage. The next save may succeed, so a training can continue.
            All other errors are mistakes of the caller, or end the training anyway. An `UnknownOutcome` is not an error
            of the storage, because the checkpoint may exist.
    """

    exit_status: ClassVar[int] = 1
    of_storage: bool = False

    def __init__(self, message: str, *, hint: str = "", command_hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint
        self.command_hint = command_hint

    @property
    def message(self) -> str:
        """The message without the hint."""
        return str(self.args[0])

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        before = "\n" if "\n" in self.message else " "  # after a list, the hint gets its own line
        return f"{self.message}{before}({self.hint})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[CkstoreError], args: tuple[Any, ...], state: dict[str, Any]) -> CkstoreError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


def is_of_storage(error: BaseException) -> bool:
    """Whether a save failed because of the storage and not the caller, so that a training can continue."""
    # An `OSError` later becomes a `SaveFailed`.
    return error.of_storage if isinstance(error, CkstoreError) else isinstance(error, OSError)


def is_damage(error: CkstoreError) -> bool:
    """Whether an error shows that data of a checkpoint is damaged or lost, so that another try would not help."""
    return isinstance(error, DamagedBlob) or (isinstance(error, BytesElsewhere) and error.is_lost)


class StoreNotFound(CkstoreError):
    """No store exists at this path, or another store has replaced the opened store."""

    exit_status = 4


class NoSuchRef(CkstoreError, LookupError):
    """No checkpoint has this step, tag or id."""

    exit_status = 4


class NoSuchFile(NoSuchRef, FileNotFoundError):
    """The checkpoint does not exist, or it has no file of this name."""

    # Use the constructor of OSError, which does more than the constructor of LookupError.
    __new__ = OSError.__new__  # type: ignore[assignment]


class AmbiguousRef(CkstoreError, LookupError):
    """The ref matches several checkpoints; the message lists some of them."""

    exit_status = 4


class BadInput(CkstoreError, ValueError):
    """An argument, or the content of a file, is not valid."""

    exit_status = 2


class CannotStore(BadInput):
    """The format cannot store a value of the state.

    Attributes:
        path: The path of the first such value in the state, such as ``optimizer.param_groups[0].foo``.
        refused: The path of each value that cannot be stored -> the reason and the advice.
    """

    exit_status = 1

    def __init__(self, path: str, why: str, *, hint: str = "") -> None:
        where = f"{path or 'the state itself'}: "
        super().__init__(where + why, hint=hint)
        self.path = path
        self.refused = {path: str(self).removeprefix(where)}

    @classmethod
    def of(cls, found: Sequence[CannotStore]) -> CannotStore:
        """Return one error for all values that cannot be stored, in the order of the state."""
        if len(found) == 1:
            return found[0]
        shown = [f"  {error}" for error in found[:_REFUSED_SHOWN]]
        more = len(found) - len(shown)
        lines = [f"{len(found)} values cannot be stored:", *shown, *([f"  and {more} more"] if more else [])]
        all_of = cls.__new__(cls)
        BadInput.__init__(all_of, "\n".join(lines))
        all_of.path = found[0].path
        all_of.refused = {path: why for error in found for path, why in error.refused.items()}
        return all_of


class CannotLoad(BadInput):
    """A committed file, or a value in it, cannot be loaded as a state.

    No code in the file was run.

    Attributes:
        file: The path of the file in the checkpoint.
        refused: The path of each refused value in the state of the file -> its kind. It is empty if the file has no
            readable state.
    """

    exit_status = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        file: str = "",
        refused: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.file = file
        self.refused = dict(refused or {})


class DoesNotFit(BadInput):
    """The checkpoint and the target of the load differ.

    Nothing was loaded.

    Attributes:
        missing: Names in the target that the checkpoint lacks.
        unexpected: Names in the checkpoint that the target lacks.
        mismatched: Names in both -> the expected and the actual value.
    """

    def __init__(
        self,
        message: str,
        *,
        hint: str = "",
        missing: tuple[str, ...] = (),
        unexpected: tuple[str, ...] = (),
        mismatched: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing
        self.unexpected = unexpected
        self.mismatched = dict(mismatched or {})


class StepExists(CkstoreError):
    """The run has another checkpoint with this step.

    Attributes:
        id: The id of the existing checkpoint, or an empty string if it is unknown.
    """

    def __init__(self, message: str, *, hint: str = "", id: str = "") -> None:
        super().__init__(message, hint=hint)
        self.id = id


class RunInUse(CkstoreError):
    """The run has checkpoints of another training that the save would replace or supersede; nothing was published."""


class StateChanged(CkstoreError):
    """The state changed during the save; nothing was published."""


class NotUnchanged(StateChanged):
    """A tensor that ``unchanged=`` selects differs from the previous checkpoint; nothing was published."""


class SaveFailed(CkstoreError):
    """A save failed; nothing was published, and every earlier checkpoint is intact."""

    of_storage = True


class InsufficientSpace(SaveFailed):
    """The filesystem does not have enough free bytes or inodes, or there is not enough memory.

    If a save raises this error, the hint lists the actions that would free space, with the bytes that each frees.

    Attributes:
        needed_bytes, needed_inodes: The space that the save needs in addition to the data in the store. None if this
            is unknown, for example because other processes filled the disk during the save.
        free_bytes, free_inodes: The space that was available to the save. None if this is unknown, or the filesystem
            does not count inodes.
    """

    exit_status = 6
    needed_bytes: int | None = None
    free_bytes: int | None = None
    needed_inodes: int | None = None
    free_inodes: int | None = None


class SaveAbandoned(SaveFailed):
    """A background save was abandoned before it was published, because its saver hung or the save was cancelled.

    The checkpoint cannot appear later, whatever its saver was doing.
    """


class UnknownOutcome(CkstoreError):
    """It is not known whether the checkpoint was published, or whether it survives a power cut.

    Open the store again before the next save. This is not a `SaveFailed`, because after a `SaveFailed` the checkpoint
    does not exist.
    """


class ReadOnlyStore(SaveFailed):
    """The store was opened read-only, or this user may not write to it; the call changed nothing."""

    of_storage = False


class RankError(SaveFailed):
    """Several ranks could not save or load one checkpoint together; a save that raises this error published nothing."""

    of_storage = False


class MissingRanks(RankError):
    """Some ranks did not arrive in time.

    The message lists them, with the known facts about each.

    Attributes:
        missing: The numbers of the missing ranks.
    """

    def __init__(self, message: str, *, hint: str = "", missing: tuple[int, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


class RankMismatch(RankError):
    """The ranks disagree about the checkpoint, or two processes claim the same rank."""


class RankFailed(RankError):
    """The save or load failed on some ranks, so it failed on all of them.

    Attributes:
        causes: The number of each failed rank -> its error.
        of_storage: Whether only the storage of the failed ranks failed.
    """

    def __init__(self, message: str, *, hint: str = "", causes: Mapping[int, BaseException] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.causes = dict(causes or {})
        self.of_storage = bool(self.causes) and all(map(is_of_storage, self.causes.values()))


class DamagedBlob(CkstoreError):
    """Bytes on disk do not match their digest, or are missing.

    Attributes:
        blob: The digest of the blob. It is empty for other files, such as a manifest.
        names: The values of the checkpoint that were being read. It is empty if this is unknown.
    """

    exit_status = 3

    def __init__(
        self, message: str, *, hint: str = "", command_hint: str = "", blob: str = "", names: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint, command_hint=command_hint)
        self.blob = blob
        self.names = names


class MissingBlob(DamagedBlob):
    """A file with data of a checkpoint is missing; the rest of the checkpoint may be intact."""


class NoWholeCheckpoint(DamagedBlob):
    """Checkpoints exist, but none of them is complete, so no newest checkpoint can be returned.

    This is not a `NoSuchRef`, because a training may treat a `NoSuchRef` as its first start, and begin again at step 1.
    """


class OtherHash(DamagedBlob):
    """The manifest is intact, but its store uses another hash algorithm; a store accepts only its own algorithm."""


CatalogProblem = Literal["missing", "behind", "newer", "damaged", "unreadable"]


class CatalogUnavailable(CkstoreError):
    """The catalog cannot be used at present.

    The catalog is an index that only gc requires.

    Attributes:
        why: ``missing``, ``damaged`` or ``behind`` (an older ckstore wrote it) mean that the next opening for writing
            repairs the catalog. ``newer`` means that a newer ckstore wrote it. ``unreadable`` means that the filesystem
            or the permissions prevent access, or that the disk is full.
    """

    def __init__(self, message: str, *, why: CatalogProblem, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.why: CatalogProblem = why


class CatalogFull(CatalogUnavailable, InsufficientSpace):
    """The catalog cannot be written, because the disk or a quota is full; the catalog itself is intact."""

    exit_status = 6

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, why="unreadable", hint=hint)


class InUse(CkstoreError):
    """A process uses the checkpoint or holds a lock, or an unfinished save replaces the checkpoint."""

    exit_status = 5


class Protected(InUse):
    """A tag or a pin protects the checkpoint from being deleted or replaced."""


class LoopFailed(CkstoreError):
    """A training loop under `ckstore.training.check` raised an error, died or did not end in time.

    Attributes:
        output: The last lines that the process printed.
    """

    def __init__(self, message: str, *, hint: str = "", command_hint: str = "", output: str = "") -> None:
        super().__init__(message, hint=hint, command_hint=command_hint)
        self.output = output


class NewerFormat(CkstoreError):
    """A newer ckstore wrote the data. ckstore refuses it and does not guess its meaning."""


class RemoteError(CkstoreError):
    """A remote refused, did not answer, or holds data that does not match its name; the local store is unchanged."""


class NoSuchRemote(RemoteError):
    """The store has no remote of this name, or no remote exists at this URL."""

    exit_status = 4


class RemoteDenied(RemoteError):
    """The service refused the credentials, or received none; messages never contain credentials."""


class RemoteFull(RemoteError):
    """A quota of the bucket or the account is used up, or the service is full; nothing was deleted on the remote."""

    exit_status = 6
    of_storage = True


class RemoteUnavailable(RemoteError):
    """The service was unreachable, failed or did not answer in time; the same call may succeed later."""

    of_storage = True


class RunIsOwned(RemoteError):
    """Another store mirrors the run to this remote; the checkpoints remain in the local store."""


class BytesElsewhere(RemoteError):
    """Data of a checkpoint is stored only on a remote and cannot be fetched; the data is not damaged.

    Attributes:
        is_lost: Whether every remote that should have the data answered, and lacks it.
    """

    is_lost: bool = False


class MissingExtra(CkstoreError):
    """A Python package that the call needs is not installed, or cannot be loaded; the hint says how to install it."""

    @classmethod
    def of(cls, error: ImportError, need: str, package: str, extra: str) -> MissingExtra:
        """Return the error for a failed import; `need` is the subject of the message and its verb."""
        install = f"pip install 'ckstore[{extra}]'"
        if isinstance(error, ModuleNotFoundError) and (error.name or package).partition(".")[0] == package:
            return cls(f"{need} the package {package}, which is not installed", hint=install)
        # The package is installed. For example, a system library is missing, or there is not enough memory to map it.
        hint = f"install it again for this machine: {install.replace('install', 'install --force-reinstall')}"
        return cls(f"{need} the package {package}, which cannot be loaded: {error}", hint=hint)


class UnsafePlace(CkstoreError):
    """The filesystem or the machine cannot keep the guarantees of ckstore, or another user owns the store."""
