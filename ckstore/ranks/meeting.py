"""The interface of a rendezvous of the ranks of one save, with the documents that the ranks exchange.

There are two kinds of rendezvous: files in the store (`ranks/file_rendezvous`), and a process group
(`integrations/dcp/group`). A rank writes its progress as documents of several kinds. In both kinds of rendezvous, a
rank writes the document ``rank`` when it has joined, and ``part`` when it has staged its part of the checkpoint.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from typing import ClassVar

from ckstore.errors import CkstoreError, DoesNotFit, RankFailed, RankMismatch
from ckstore.ranks.rank_identity import Document, RankIdentity, named, what_became_of

_MEANT = ("run", "step", "store", "hash", "chunk_bytes")
"""The members that describe the checkpoint and its store. They must be equal on all ranks."""
_MEANT_APART = ("run", "step", "hash", "chunk_bytes", "remote")
"""These members must be equal for ranks with separate stores. A rank omits members that it does not know yet."""


class Meeting(ABC):
    """The rendezvous of one save or load, which this process has joined as a rank."""

    UNSAID: ClassVar[Mapping[str, str]]
    """Kind of document -> the text about a rank that has not written one. A rank writes the kinds in this order."""

    def __init__(self, who: RankIdentity) -> None:
        self.who = who  # this process

    @abstractmethod
    def say(self, kind: str, **more: object) -> bool:
        """Send a document to all ranks, and return whether it was accepted.

        In a rendezvous with files, the first document of each kind and rank remains. If it exists, the method returns
        False and changes nothing. In a process group, the document replaces the previous one of this rank.
        """

    @abstractmethod
    def hear(self, kind: str) -> dict[int, Document]:
        """Return the documents of one kind, by rank."""

    def known(self) -> dict[int, Document]:
        """Return the documents that identify the processes of the ranks, by rank."""
        return self.hear("rank")

    def became(self) -> dict[int, str]:
        """Return the ranks of this host whose processes have ended or are stopped, with a text about each."""
        found = {rank: what_became_of(document, self.who.host) for rank, document in self.known().items()}
        return {rank: what for rank, what in found.items() if what}

    def behind(self, until: str) -> dict[int, str]:
        """Return the ranks that have not yet written the document `until`, with a text on the progress of each."""
        found: dict[int, str] = {}
        known = self.known()
        for kind, unsaid in self.UNSAID.items():
            heard = self.hear(kind)
            for rank in range(self.who.world_size):
                if rank not in heard:
                    found.setdefault(rank, f"{named(rank, known.get(rank, {}))} {unsaid}")
            if kind == until:
                break
        return found


def reason_of(error: BaseException) -> str:
    """Return the text of an error for the other ranks, with its type if it is not an error of ckstore."""
    if isinstance(error, CkstoreError):
        return str(error)
    return f"{type(error).__name__}: {error}".removesuffix(": ")


def failed_on_all(act: str, causes: Mapping[int, BaseException]) -> CkstoreError:
    """Return the error that all ranks raise if some ranks have failed.

    `act` names the failed operation in the message. `causes` has the error of each failed rank.
    """
    ours = [cause for cause in causes.values() if isinstance(cause, CkstoreError)]
    if (
        len(ours) == len(causes)
        and len({(type(one), str(one)) for one in ours}) == 1
        and (len(causes) > 1 or isinstance(ours[0], RankMismatch | DoesNotFit))
        and type(ours[0]) is not CkstoreError
    ):
        return ours[0]  # all errors are the same, or the error is about all ranks
    hint = ours[0].hint if ours else "the causes are in .causes"
    said = []
    for rank, cause in sorted(causes.items()):
        # If the combined error has the same hint, the hint is not repeated.
        text = cause.message if isinstance(cause, CkstoreError) and cause.hint == hint else str(cause)
        said.append(f"rank {rank}: {text if type(cause) is CkstoreError else f'{type(cause).__name__}: {text}'}")
    return RankFailed(f"{act} failed on all ranks, because of {'; '.join(said)}", hint=hint, causes=causes)


def check_agreement(said: Iterable[Document]) -> bool:
    """Check that all ranks save the same checkpoint, and return whether their stores differ.

    Raises:
        RankMismatch: The ranks do not save the same checkpoint, or their stores differ and not all of them have a
            mirror. The message names the differing ranks.
    """
    # Ranks with different stores can save one checkpoint together if each of these stores has a mirror.
    said = [*said]
    are_apart = len({one["store"] for one in said}) > 1 and all(one["mirrored"] for one in said)
    names = _MEANT_APART if are_apart else _MEANT
    groups: dict[tuple[object, ...], list[Document]] = {}
    for one in said:
        groups.setdefault(tuple(one.get(name) for name in names), []).append(one)
    if len(groups) <= 1:
        return are_apart
    most, *others = sorted(groups.values(), key=lambda group: (-len(group), group[0]["rank"]))
    differing = [f"{named(one['rank'], one)} has {_differs(one, most[0], names)}" for group in others for one in group]
    wanted = f"rank {', '.join(str(one['rank']) for one in most)} has {_differs(most[0], others[0][0], names)}"
    msg = f"the ranks disagree about the checkpoint: {'; '.join([*differing, wanted])}. Nothing was published"
    hint = "take run and step from one source, never from a clock"
    if "store" in names and any(one["store"] != most[0]["store"] for group in others for one in group):
        hint = "give all ranks the same store, or each node's store the same mirror: mirror='s3://BUCKET/PREFIX'"
    raise RankMismatch(msg, hint=hint)


def _differs(one: Document, other: Document, names: Sequence[str]) -> str:
    return ", ".join(f"{name} {one.get(name)!r}" for name in names if one.get(name) != other.get(name))
