"""The rendezvous of ranks without a process group: one directory in ``staging/`` for each attempt.

An attempt is the joint work of all ranks to save one checkpoint. The directory has small documents: ``rank-R.json`` for
each rank that has joined, ``part-R.json`` for each staged part (which has a separate staging directory),
``failed-R.json`` for each rank that failed, and finally ``outcome.json``. Each rank holds a shared lock on the
directory, so that the directory is not swept.

One rank at a time decides, with an exclusive lock on the subdirectory ``join/``. It publishes if all parts are staged,
or aborts. If the deciding rank dies, it loses the lock, and another rank decides. Before a rank renames a staging
directory to publish it, the rank names this directory in ``publishing-R.json``. If a rank makes no progress while it
has the lock, another rank first writes ``fence-R.json``, which keeps ranks from beginning to publish. It then moves
the named directory away, so that the checkpoint cannot appear after a failure was reported.

Once the rendezvous has the outcome, its directory is moved to trash, so that the next attempt begins with an empty
directory. If other hosts may be using the store, the next attempt or gc moves it. No clocks are compared. Source:
docs/protocol.md, "Ranks".
"""

from __future__ import annotations

import contextlib
import json
import time
import uuid
from collections.abc import Mapping
from typing import Any, ClassVar, Self

from ckstore.errors import BadInput, DamagedBlob, InUse, RankFailed, RankMismatch, SaveFailed
from ckstore.fs import dirfd_stat, files, links, locks
from ckstore.fs.dirfd_stat import StorePath
from ckstore.interpreter import end_overdue_pauses
from ckstore.model.digest import ALGORITHMS
from ckstore.model.document import parse_object
from ckstore.model.manifest.manifest import MANIFEST_MAX_BYTES
from ckstore.objects import trash
from ckstore.objects.layout import Layout
from ckstore.ranks.meeting import Meeting
from ckstore.ranks.rank_identity import Document, RankIdentity, named

OUTCOME = "outcome.json"
_JOIN = "join"
_TRIES = 100
_MOST_BYTES = 2**20
_WHY_MOST_CHARS = 2**16
"""The maximum length of a reason.

In ASCII JSON, a character takes up to 12 bytes, so a document with such a reason has less than `_MOST_BYTES`.
"""
_POLL_FIRST_S, _POLL_MOST_S = 0.005, 0.2


def attempt_digest(attempt: str) -> str:
    """Return the digest of the name of an attempt. It is a part of the name of the directory of the attempt."""
    return ALGORITHMS["xxh3_128"].digest(attempt.encode("utf-8", "surrogatepass")).partition("-")[2][:16]


class FileRendezvous(Meeting):
    """The rendezvous of one attempt, as a context manager."""

    UNSAID: ClassVar[Mapping[str, str]] = {"rank": "did not arrive", "part": "began and is not done"}

    def __init__(self, layout: Layout, who: RankIdentity, path: StorePath, lock: locks.DirectoryLock) -> None:
        super().__init__(who)
        self.layout = layout
        self._path = path
        self._lock = lock

    @classmethod
    def enter(cls, layout: Layout, who: RankIdentity) -> FileRendezvous:
        """Join the rendezvous of an attempt. The first rank creates it."""
        name = f"{who.name}.{attempt_digest(who.attempt)}.{who.world_size}"
        path = layout.staging / name
        for _ in range(_TRIES):
            # Until the directory is locked, it can be swept, like any staging directory without a lock.
            links.make_directory(path)
            try:
                lock = locks.lock_shared(path)
            except FileNotFoundError:  # another process swept the directory, or moved it because it has an outcome
                continue
            meeting = cls(layout, who, path, lock)
            try:
                # The directory of an attempt that has ended may remain if the deciding rank died before moving it, or
                # if other hosts may be using the store.
                if meeting.outcome() is not None:
                    meeting.remove()
                    lock.release()
                    continue
                # Create the subdirectory before this rank writes any document, so that a rank that finds a document
                # also finds the subdirectory to lock.
                links.make_directory(lock.inside / _JOIN)
                meeting._sign_in()
            except BaseException:
                lock.release()
                raise
            return meeting
        msg = f"{path} was made and removed by other processes {_TRIES} times"
        raise SaveFailed(msg)

    def _sign_in(self) -> None:
        if self.say("rank"):
            return
        # The first process that writes its document keeps the number. A link never overwrites a document, so each
        # number has only one document.
        other = self.read(f"rank-{self.who.rank}.json") or {}
        msg = (
            f"another process is rank {self.who.rank} of {self.who.world_size} in the save of "
            f"{self.who.name}: process {other.get('pid')} on {other.get('host')}"
        )
        raise RankMismatch(msg, hint="give each process a rank= of its own, and each try another attempt=")

    def say(self, kind: str, **more: object) -> bool:
        """Write the document of this rank: ``rank``, ``part``, ``failed``, ``publishing`` or ``fence``."""
        return self._put(f"{kind}-{self.who.rank}.json", self.who.document(**more))

    def hear(self, kind: str) -> dict[int, Document]:
        """Return the documents of one kind, by rank."""
        return documents_in(self._lock.inside, kind)

    def say_part(self, staging: str) -> None:
        """Record that the part of this rank is staged."""
        self.say("part", staging=staging)

    def say_failed(self, reason: str, *, of_storage: bool = False) -> None:
        """Record that this rank could not stage its part, or could not publish, so that the others abort."""
        self.say("failed", why=reason[:_WHY_MOST_CHARS], of_storage=of_storage)

    def say_publishing(self, staging: str) -> None:
        """Record the staging directory that this rank may publish with its next rename."""
        self.say("publishing", staging=staging)
        # Like `fence`, this method first writes, and then reads. Therefore either this rank sees the fence, or the
        # other ranks see the directory that they must move away.
        if self.hear("fence"):
            msg = f"the other ranks gave up on {self.who}, which made no progress when it should have published"
            raise RankFailed(msg)

    def take_back_publishing(self) -> None:
        """Remove the record of `say_publishing` after publishing has failed.

        No rename may follow before the next call of `say_publishing`.
        """
        # The staging directory is now in trash. If the record remained, the other ranks would not find this directory,
        # and would conclude that the checkpoint was published and then lost.
        with contextlib.suppress(FileNotFoundError):
            links.unlink(self._lock.inside / f"publishing-{self.who.rank}.json")

    def fence(self) -> dict[int, Document]:
        """Keep ranks from beginning to publish.

        Return the documents of ranks that announced before that they would publish, and may still do so.
        """
        self.say("fence")
        return self.hear("publishing")

    def say_outcome(self, outcome: Document) -> None:
        """Record the outcome, and move the rendezvous away. Only the holder of the lock of `deciding` calls this."""
        self._put(OUTCOME, outcome)
        # Ranks that have joined can still read the outcome through their descriptors. A rank that joins later begins
        # another attempt. If other hosts may be using the store, the directory remains until the next attempt or gc,
        # because the descriptors of other hosts may become invalid when the directory is moved.
        if self.layout.view.sees_changes:
            self.remove()

    def outcome(self) -> dict[str, Any] | None:
        """Return the recorded outcome, or None if the attempt has not ended."""
        return self.read(OUTCOME)

    def is_over(self) -> bool:
        """Whether the directory was moved away without an outcome, for example by a process that swept ``staging/``."""
        return not self._lock.names(self._path) and self.outcome() is None

    def deciding(self) -> locks.DirectoryLock | None:
        """Return the lock that keeps other ranks from deciding, or None if another rank holds it."""
        return locks.try_exclusive(self._lock.inside / _JOIN)

    def read(self, name: str) -> dict[str, Any] | None:
        """Return a document, or None if it does not exist."""
        return _read(self._lock.inside / name, MANIFEST_MAX_BYTES if name == OUTCOME else _MOST_BYTES)

    def _put(self, name: str, document: Document) -> bool:
        """Create a document atomically. Return False if it already exists."""
        fresh = self._lock.inside / f".{uuid.uuid4().hex}"
        files.create_file(fresh, json.dumps(document).encode("ascii"), mode=0o444)
        try:
            # Use a link: a rename would replace an existing document, but the first outcome must remain.
            links.link(fresh, self._lock.inside / name)
        except FileExistsError:
            return False
        finally:
            links.unlink(fresh)
        return True

    def remove(self) -> None:
        """Move the rendezvous to trash, so that the next attempt creates a new one. This process can still read it."""
        with contextlib.suppress(FileNotFoundError):  # another rank was faster
            trash.move_to_trash(self.layout, self._path, self._lock)

    def leave(self) -> None:
        """Release the lock.

        If the directory was not moved to trash with an outcome, the last rank moves it, unless the store is shared.
        """
        self._lock.release()
        if not self.layout.view.sees_locks:
            return
        with contextlib.suppress(OSError, InUse):  # the next opener sweeps it
            lock = locks.try_exclusive(self._path)
            if lock is not None:
                with lock:
                    trash.move_to_trash(self.layout, self._path, lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.leave()


def documents_in(path: StorePath, kind: str) -> dict[int, Document]:
    """Return the documents of one kind in a directory, by rank."""
    found: dict[int, Document] = {}
    for name in dirfd_stat.names(path):
        word, _, rest = name.partition("-")
        number = rest.removesuffix(".json")
        if word == kind and number.isdecimal() and (document := _read(path / name)) is not None:
            found[int(number)] = document
    return found


def mismatched_ranks(layout: Layout, who: RankIdentity) -> list[str]:
    """Return texts for a message about ranks of the same attempt that have another run, step or number of ranks."""
    said = []
    for name in dirfd_stat.names(layout.staging):
        left, _, world_size = name.rpartition(".")
        key, _, digest = left.rpartition(".")
        if digest != attempt_digest(who.attempt) or (key, world_size) == (who.name, str(who.world_size)):
            continue
        with contextlib.suppress(OSError, DamagedBlob):  # the directory was just removed, or a power cut damaged it
            for rank, document in documents_in(layout.staging / name, "rank").items():
                said.append(f"{named(rank, document)} saves {key} with {world_size} ranks")
    return said


def _read(path: StorePath, most_bytes: int = _MOST_BYTES) -> dict[str, Any] | None:
    try:
        data = files.read_file(path, most_bytes=most_bytes)
    except FileNotFoundError:
        return None
    try:
        return parse_object(data, where=str(path))
    except BadInput as error:
        raise DamagedBlob(error.message) from error


class Backoff:
    """Pauses that become longer each time."""

    def __init__(self) -> None:
        self._pause_s = _POLL_FIRST_S

    def wait(self) -> None:
        """Sleep for the next pause."""
        end_overdue_pauses(self._pause_s)
        time.sleep(self._pause_s)
        self._pause_s = min(2 * self._pause_s, _POLL_MOST_S)
