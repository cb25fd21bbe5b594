"""The ranks of a process group during one call: what one of them raises all of them raise, and a lost one is named.

Before anything collective is begun each rank does by itself what can fail there (its arguments, the ``state_dict()`` of
its objects), and one round tells all ranks how that went. So no rank waits for one that has given up already.
Who does not come to that round, or is lost later, is found by the marks that each rank leaves in the store of the
process group (the key-value store by which its processes found each other), and by what the kernel says of the
processes of this host.
"""

from __future__ import annotations

import math
import os
import pickle  # to find out whether an error can go to the other ranks; none is read here
import socket
import time
import weakref
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from ckstore.errors import CkstoreError, DoesNotFit, RankFailed, RankMismatch
from ckstore.integrations.dcp.marks import Mark, Marks
from ckstore.integrations.dcp.writer import STAGED
from ckstore.ranks.decide import why
from ckstore.ranks.processes import what_became_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from datetime import timedelta

R = TypeVar("R")

_SEEN_TO_END_S = 10.0
"""How long a process may take to end after it has closed its connections."""
_OWN_SHARE = 0.8
_PREPARING, _READY = "preparing", "ready"


@dataclass
class _Group:
    """What this process knows of a group: host and process of each rank, and how many calls there were."""

    known: list[tuple[str, int]] = field(default_factory=list)
    calls: int = 0


_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()


def is_alone() -> bool:
    """Whether this process is no rank of any group."""
    return not (dist.is_available() and dist.is_initialized())


class Ranks:
    """The ranks of one call.

    Args:
        what: What they do, for messages.
        group: The ranks; None: all.
    """

    def __init__(self, what: str, group: dist.ProcessGroup | None) -> None:
        self.what = what
        self.is_alone = is_alone()
        self._phase = ""
        self._group: Any = group
        if self.is_alone:
            return
        self._key: Any = dist.group.WORLD if group is None else group
        self._mine = _groups.setdefault(self._key, _Group())
        self._mine.calls += 1
        self._marks = Marks(self._key, self._mine.calls)

    @property
    def own_timeout_s(self) -> float:
        """How long a rank waits for its own disk: less than the others wait for it, so that the group survives that."""
        if self.is_alone:
            return math.inf
        try:
            backend = self._key._get_backend(torch.device("cpu"))  # noqa: SLF001 - torch has no other way to ask
            timeout: timedelta = backend.options._timeout  # noqa: SLF001
        except (AttributeError, RuntimeError):  # of a backend without such options
            timeout = dist.default_pg_timeout
        return _OWN_SHARE * timeout.total_seconds()

    def tell(self, phase: str) -> None:
        """Let the others know how far this rank is, should they lose it."""
        if not self.is_alone:
            self._phase = phase
            self._marks.leave(phase)

    def agree(self, work: Callable[[], R]) -> R:
        """Do `work`, and return what it returns if it succeeds on all ranks. It asks no other rank for anything.

        Raises:
            CkstoreError: It failed on some ranks, with what was raised there. A process that is alone raises that
                itself.
        """
        if self.is_alone:
            return work()
        self.tell(_PREPARING)
        raised: Exception | None = None
        result: R
        try:
            result = work()
        except Exception as error:  # noqa: BLE001 - all ranks raise it below
            raised = error
        self.tell(_READY)
        told: list[Any] = [None] * dist.get_world_size(self._group)
        with self.failing_together():
            mine = None if raised is None else sendable(raised)
            dist.all_gather_object(told, (socket.gethostname(), os.getpid(), mine), group=self._group)
        self._mine.known = [(host, pid) for host, pid, _ in told]
        failed = {rank: error for rank, (_, _, error) in enumerate(told) if error is not None}
        if failed:
            raise _of_ranks(self.what, failed) from raised
        return result

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Turn the error of `torch.distributed.checkpoint`, which ``except Exception`` does not catch, into ours.

        So also that of a backend which has lost a rank: whatever a rank raises by itself comes as the former.
        """
        try:
            yield
        except CheckpointException as error:
            raise _of_ranks(self.what, {rank: cause[0] for rank, cause in error.failures.items()}) from None
        except RuntimeError as error:
            if self.is_alone:
                raise
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> RankFailed:
        """Return the error for what a collective raised, which names the lost ranks as far as that is known."""
        marks = self._marks.of_all(dist.get_world_size(self._group))
        deadline_s = time.monotonic() + _SEEN_TO_END_S
        # The connections of a process are closed a moment before the kernel says that it has ended: until then the
        # others, who are on their way, are not to be blamed. Where the time is over they are.
        while not (lost := self._ended(marks)) and "imeout" not in str(error) and "imed out" not in str(error):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(0.05)
        lost = lost or self._behind(marks)
        unseen = "no rank of this host has ended or stands still; see what the others say"
        said = ", ".join(lost.values()) or unseen
        return RankFailed(
            f"{self.what}: the ranks lost one another: {said}: {error}",
            hint="start all ranks again; ckstore log says whether the checkpoint was published before",
            causes={rank: CkstoreError(text) for rank, text in lost.items()},
        )

    def _ended(self, marks: Mapping[int, Mark]) -> dict[int, str]:
        """Return the ranks of this host whose processes have ended or are stopped, and which of both."""
        here = socket.gethostname()
        became = {
            rank: what_became_of({"host": host, "pid": pid}, here) for rank, (host, pid) in self._known(marks).items()
        }
        return {rank: f"{self._name(rank, marks)} {what}" for rank, what in became.items() if what}

    def _behind(self, marks: Mapping[int, Mark]) -> dict[int, str]:
        """Return the ranks that are not as far as this one, and what the others wait for."""
        behind = {}
        for rank, mark in marks.items():
            if mark.calls < self._mine.calls:
                behind[rank] = f"{self._name(rank, marks)} did not come"
            elif mark.calls == self._mine.calls and mark.phase == _PREPARING:
                behind[rank] = f"{self._name(rank, marks)} has not returned from its state_dict()"
            elif mark.calls == self._mine.calls and mark.phase == _READY and self._phase == STAGED:
                behind[rank] = f"{self._name(rank, marks)} has not staged its part"
        return behind

    def _known(self, marks: Mapping[int, Mark]) -> dict[int, tuple[str, int]]:
        """Return host and process of the ranks, as far as they have said so."""
        marked = {rank: (mark.host, mark.pid) for rank, mark in marks.items() if mark.pid}
        return {**marked, **dict(enumerate(self._mine.known))}

    def _name(self, rank: int, marks: Mapping[int, Mark]) -> str:
        known = self._known(marks).get(rank)
        return f"rank {rank}" if known is None else f"rank {rank} ({known[0]}, process {known[1]})"


def sendable(error: Exception) -> Exception:
    """Return an error that can go to the other ranks: it survives pickling there, whatever class it is of."""
    if isinstance(error, CkstoreError):
        with suppress(Exception):  # one whose causes are of other classes
            pickle.dumps(error)
            return error
    return CkstoreError(why(error))


def _but(hint: str, cause: BaseException) -> str:
    """Return what an error says and of which class it is, without a hint that the whole error gives already."""
    said = cause.message if isinstance(cause, CkstoreError) and cause.hint == hint else str(cause)
    return said if type(cause) is CkstoreError else f"{type(cause).__name__}: {said}"


def _of_ranks(what: str, causes: dict[int, BaseException]) -> CkstoreError:
    ours = [cause for cause in causes.values() if isinstance(cause, CkstoreError)]
    if (
        len(ours) == len(causes)
        and len({(type(one), str(one)) for one in ours}) == 1
        and (len(causes) > 1 or isinstance(ours[0], RankMismatch | DoesNotFit))
        and type(ours[0]) is not CkstoreError
    ):
        return ours[0]  # all say the same, or it is about all of them
    hint = ours[0].hint if ours else "the causes are in .causes"
    said = "; ".join(f"rank {rank}: {_but(hint, cause)}" for rank, cause in sorted(causes.items()))
    return RankFailed(f"{what} failed on all ranks, because of {said}", hint=hint, causes=causes)
