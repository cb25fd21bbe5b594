"""Every error that ckstore raises on purpose, and the exit status of each.

    CkstoreError                 1
    ├── StoreNotFound            4   there is no store at that place
    ├── NoSuchRef                4   no checkpoint, tag or id of that name (also a LookupError)
    │   └── NoSuchFile           4   no file of that name in a checkpoint (also a FileNotFoundError)
    ├── AmbiguousRef             4   the ref fits several checkpoints (also a LookupError)
    ├── BadInput                 2   an argument or a file that cannot be used as given (also a ValueError)
    │   ├── CannotStore          1   a value in the state that the format does not hold
    │   ├── CannotLoad           1   a committed file, or a value in it, that cannot be loaded as a state
    │   └── DoesNotFit           2   a checkpoint and the target that it was to be loaded into differ
    ├── StepExists               1   the run has another checkpoint of that step
    ├── RunInUse                 1   the run has checkpoints of another training
    ├── StateChanged             1   the state was changed while it was being saved
    │   └── NotUnchanged         1   a tensor that was named as unchanged has changed
    ├── SaveFailed               1   a save failed; every earlier checkpoint is intact
    │   ├── InsufficientSpace    6   not enough bytes or inodes
    │   ├── SaveAbandoned        1   a background save was given up, and will not appear
    │   ├── UnknownOutcome       1   the checkpoint is there, but may not survive a power cut
    │   ├── ReadOnlyStore        1   the store was opened read-only, and something was to be written
    │   └── RankError            1   several ranks could not save one checkpoint together
    │       ├── MissingRanks     1   some did not come in time
    │       ├── RankMismatch     1   they do not mean the same checkpoint, or two say that they are one rank
    │       └── RankFailed       1   the save failed at some of them, and so at all
    ├── DamagedBlob              3   bytes on disk are not what their name says
    │   ├── MissingBlob          3   a file with bytes of a checkpoint is not there
    │   ├── NoWholeCheckpoint    3   checkpoints exist where the newest was asked for, and none of them is whole
    │   └── OtherHash            3   a whole checkpoint of a store with another hash algorithm
    ├── CatalogUnavailable       1   the catalog cannot be used, and the act needs it
    │   └── CatalogFull          6   since the disk, or a quota on it, is full (also an InsufficientSpace)
    ├── InUse                    5   a process uses it, or holds a lock; or a save that replaces it has not finished
    │   └── Protected            5   a tag or a pin names the checkpoint that was to be deleted
    ├── LoopFailed               1   a training loop under check raised, died or did not end in time
    ├── NewerFormat              1   written by a newer ckstore
    ├── RemoteError              1   a remote refused or did not answer, or holds something else than its names say
    │   ├── NoSuchRemote         4   the store has no remote of that name, or there is none at that place
    │   ├── RemoteDenied         1   the service refused the credentials, or has none
    │   ├── RemoteFull           6   a quota of the bucket or the account is used up, or the service has no space left
    │   ├── RemoteUnavailable    1   the service could not be reached or failed; the same call may succeed later
    │   ├── RunIsOwned           1   another store mirrors the run to this remote; the checkpoints stay in the store
    │   └── BytesElsewhere       1   bytes of a checkpoint are at a remote alone, and cannot be fetched from here
    └── UnsafePlace              1   the place cannot keep what ckstore promises, or is another user's

A message says what happened, what was wanted and what was found; `hint` says what to do next. All of them survive
pickling, since training code raises them across processes. Exit statuses: docs/reference/exit-statuses.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_REFUSED_SHOWN = 100


class CkstoreWarning(UserWarning):
    """Something that the caller should know went otherwise than asked: ``latest-valid`` passed over a damaged one."""


class CkstoreError(Exception):
    """Base of all errors of ckstore.

    Attributes:
        hint: What to do next, one sentence; empty if there is nothing better than the message. It is advice for Python.
        command_hint: The same for the command line, where `hint` would not help there; empty if it does.
        exit_status: What the command line exits with.
    """

    exit_status: ClassVar[int] = 1

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
        before = "\n" if "\n" in self.message else " "  # the last line of a list stays as it is
        return f"{self.message}{before}({self.hint})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), self.args, self.__dict__)


def _rebuild(cls: type[CkstoreError], args: tuple[Any, ...], state: dict[str, Any]) -> CkstoreError:
    error = cls.__new__(cls, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class StoreNotFound(CkstoreError):
    """There is no store at that place."""

    exit_status = 4


class NoSuchRef(CkstoreError, LookupError):
    """No checkpoint, tag or id of that name."""

    exit_status = 4


class NoSuchFile(NoSuchRef, FileNotFoundError):
    """A checkpoint has no file of that name, or there is no such checkpoint to look for one in."""

    # Of two built-in bases the one that has more to make.
    __new__ = OSError.__new__  # type: ignore[assignment]


class AmbiguousRef(CkstoreError, LookupError):
    """The ref fits several checkpoints; the message lists some."""

    exit_status = 4


class BadInput(CkstoreError, ValueError):
    """An argument, or a file that was read, cannot be used as it is."""

    exit_status = 2


class CannotStore(BadInput):
    """A value in the state that the format does not hold.

    Attributes:
        path: Where it is in the state, ``optimizer.param_groups[0].foo``; of several, the first.
        refused: Path -> why and what to do, of every value that cannot be stored.
    """

    exit_status = 1

    def __init__(self, path: str, why: str, *, hint: str = "") -> None:
        where = f"{path or 'the state itself'}: "
        super().__init__(where + why, hint=hint)
        self.path = path
        self.refused = {path: str(self).removeprefix(where)}

    @classmethod
    def of(cls, found: Sequence[CannotStore]) -> CannotStore:
        """Return one error for all that was found, in the order of the state."""
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
    """A committed file, or a value in it, that cannot be loaded as a state; nothing of it was run.

    Attributes:
        file: Its path in the checkpoint.
        refused: Path in its state -> what is there; empty if the file has none that can be read.
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
    """A checkpoint and the target that it was to be loaded into differ; nothing was loaded.

    Attributes:
        missing: Names in the target that the checkpoint lacks.
        unexpected: Names in the checkpoint that the target lacks.
        mismatched: Names in both -> what was wanted and what was found.
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
    """The run has another checkpoint of that step.

    Attributes:
        id: The id of that checkpoint; empty if it is not known.
    """

    def __init__(self, message: str, *, hint: str = "", id: str = "") -> None:
        super().__init__(message, hint=hint)
        self.id = id


class RunInUse(CkstoreError):
    """The run has checkpoints of another training, which the save would replace or supersede. Nothing was published."""


class StateChanged(CkstoreError):
    """The state was changed while it was being saved; nothing was published."""


class NotUnchanged(StateChanged):
    """A tensor that was named in ``unchanged=`` is not as the checkpoint before has it; nothing was published."""


class SaveFailed(CkstoreError):
    """A save failed. Nothing was published; every earlier checkpoint is intact."""


class InsufficientSpace(SaveFailed):
    """Not enough bytes or inodes on the filesystem of the store; the hint of a save says what would free how much.

    Attributes:
        needed_bytes, needed_inodes: What a save would take beyond what the store has; None if it is not known, as
            when the disk was filled by others meanwhile.
        free_bytes, free_inodes: What was free for it; None if it is not known, or the filesystem counts no inodes.
    """

    exit_status = 6
    needed_bytes: int | None = None
    free_bytes: int | None = None
    needed_inodes: int | None = None
    free_inodes: int | None = None


class SaveAbandoned(SaveFailed):
    """A background save was given up before it was published: its saver was stuck, or it was cancelled.

    It will not appear later, whatever its saver was doing.
    """


class UnknownOutcome(SaveFailed):
    """The checkpoint was published, but may not survive a power cut; open the store again before the next save."""


class ReadOnlyStore(SaveFailed):
    """The store was opened read-only, or this user may not write to it; nothing was saved, named or deleted."""


class RankError(SaveFailed):
    """Several ranks could not save one checkpoint together, or load it. After such a save nothing was published."""


class MissingRanks(RankError):
    """Some ranks did not come in time; the message says which, and what is known of them.

    Attributes:
        missing: Their numbers.
    """

    def __init__(self, message: str, *, hint: str = "", missing: tuple[int, ...] = ()) -> None:
        super().__init__(message, hint=hint)
        self.missing = missing


class RankMismatch(RankError):
    """The ranks do not mean the same checkpoint, or two processes say that they are the same rank."""


class RankFailed(RankError):
    """The save, or the load, failed at some ranks, and so at all of them.

    Attributes:
        causes: Rank -> what went wrong there.
        of_storage: Whether the ranks that failed said that only their storage did, where `causes` are no errors of
            that kind any more.
    """

    of_storage: bool = False

    def __init__(self, message: str, *, hint: str = "", causes: Mapping[int, BaseException] | None = None) -> None:
        super().__init__(message, hint=hint)
        self.causes = dict(causes or {})


class DamagedBlob(CkstoreError):
    """Bytes on disk are not what their name says, or are missing.

    Attributes:
        blob: Digest of the blob; empty for other files, such as a manifest.
        names: The values of the checkpoint that were being read; empty if that is not known.
    """

    exit_status = 3

    def __init__(
        self, message: str, *, hint: str = "", command_hint: str = "", blob: str = "", names: tuple[str, ...] = ()
    ) -> None:
        super().__init__(message, hint=hint, command_hint=command_hint)
        self.blob = blob
        self.names = names


class MissingBlob(DamagedBlob):
    """A file with bytes of a checkpoint is not there; the rest of the checkpoint may be whole."""


class NoWholeCheckpoint(DamagedBlob):
    """Checkpoints exist, but none of them is whole, so there is no newest one to return.

    Not a `NoSuchRef`: a training that takes this for its first start would begin again at step 1.
    """


class OtherHash(DamagedBlob):
    """The manifest is whole, and of a store that hashes with another algorithm; a store takes no such checkpoint."""


CatalogProblem = Literal["missing", "behind", "newer", "damaged", "unreadable"]


class CatalogUnavailable(CkstoreError):
    """The catalog cannot be used now. It is an index: everything but gc goes on without it.

    Attributes:
        why: ``missing``, ``damaged``, ``behind`` (an older ckstore made it): the next opening for writing mends it.
            ``newer``: a newer ckstore made it. ``unreadable``: the filesystem or the permissions refuse it, or the
            disk is full.
    """

    def __init__(self, message: str, *, why: CatalogProblem, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.why: CatalogProblem = why


class CatalogFull(CatalogUnavailable, InsufficientSpace):
    """The catalog cannot be written, since the disk or a quota on it is full; nothing is wrong with it."""

    exit_status = 6

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, why="unreadable", hint=hint)


class InUse(CkstoreError):
    """A process uses what was to be deleted or holds a lock, or a save that replaces it has not finished."""

    exit_status = 5


class Protected(InUse):
    """A tag or a pin names what was to be deleted or replaced."""


class LoopFailed(CkstoreError):
    """A training loop that `ckstore.training.check` runs raised, died or did not end in time.

    Attributes:
        output: The last lines that the process printed.
    """

    def __init__(self, message: str, *, hint: str = "", command_hint: str = "", output: str = "") -> None:
        super().__init__(message, hint=hint, command_hint=command_hint)
        self.output = output


class NewerFormat(CkstoreError):
    """Written by a newer ckstore; it is refused, never guessed."""


class RemoteError(CkstoreError):
    """A remote refused or did not answer, or holds something else than its names say; the store here is unchanged."""


class NoSuchRemote(RemoteError):
    """The store has no remote of that name, or there is none at that place."""

    exit_status = 4


class RemoteDenied(RemoteError):
    """The service refused the credentials, or did not get any; messages never contain them."""


class RemoteFull(RemoteError):
    """A quota of the bucket or the account is used up, or the service has no space left; nothing there was removed."""

    exit_status = 6


class RemoteUnavailable(RemoteError):
    """The service could not be reached, failed, or did not answer in time; the same call may succeed later."""


class RunIsOwned(RemoteError):
    """Another store mirrors the run to this remote."""


class BytesElsewhere(RemoteError):
    """Bytes of a checkpoint are at a remote alone, and cannot be fetched from here; they are not damaged."""


class UnsafePlace(CkstoreError):
    """The place cannot keep what ckstore promises, or the store that was found there is another user's."""
