"""The ranks of a process group during one call. All ranks raise the error of one rank, and lost ranks are named.

Before the first collective, each rank does the part of its work that can fail, such as checking arguments and calling
the ``state_dict()`` of its objects. One round of messages then sends the outcomes to all ranks, so no rank waits for a
failed one. Each rank also writes its progress to the store of the process group. This is the key-value store through
which the processes of the group found each other, and the entries of a rank remain in it after that rank has ended. If
a rank does not arrive at the round or is lost later, ckstore names it from these entries and the process table of this
host.
"""

from __future__ import annotations

import copyreg
import json
import math
import pickle  # checks whether an error can be sent to the other ranks; nothing is unpickled here
import sys
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from functools import partial
from traceback import FrameSummary
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from ckstore.errors import CkstoreError, RankFailed
from ckstore.ranks.meeting import Meeting, failed_on_all, reason_of
from ckstore.ranks.rank_identity import Document, RankIdentity, named

R = TypeVar("R")

_SEEN_TO_END_S = 10.0
"""How many seconds to wait for the end of a process after its connections were closed."""
_ASKED_S = 5.0
"""How many seconds to wait for the store of the group, because the process that serves it may be lost."""
_OWN_SHARE = 0.8
FAILURES = (Exception, CheckpointException)
"""Errors that the work of a rank may raise. `CheckpointException` of torch is not an `Exception`, so it is listed."""


def _frame_without_code(frame: FrameSummary) -> tuple[Callable[..., FrameSummary], tuple[str, int | None, str]]:
    """Return the parts of a frame for `pickle`, without its code, which cannot be pickled."""
    return partial(FrameSummary, lookup_line=False, line=frame.line), (frame.filename, frame.lineno, frame.name)


# torch pickles the frames of an error to send them to the other ranks. Since Python 3.13, a frame has its code object,
# which cannot be pickled. Up to about torch 2.12, the rank with the error therefore raised a TypeError, and the other
# ranks waited until the timeout of the group (https://github.com/pytorch/pytorch/issues/174669).
if sys.version_info >= (3, 13):
    copyreg.pickle(FrameSummary, _frame_without_code)


@dataclass
class _Group:
    """The facts that this process knows about a group: the process of each rank, and the number of calls."""

    known: dict[int, Document] = field(default_factory=dict)
    calls: int = 0


_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()


def is_alone() -> bool:
    """Whether this process is not in a group."""
    return not (dist.is_available() and dist.is_initialized())


def rank_in(group: dist.ProcessGroup | None = None) -> int:
    """Return the rank of this process in `group`, by default among all ranks. Without any group, return 0."""
    return 0 if is_alone() else dist.get_rank(group)


class GroupMeeting(Meeting):
    """The ranks of one call. Without a `group`, these are all ranks. `act` names the operation in messages."""

    UNSAID: ClassVar[Mapping[str, str]] = {
        "rank": "did not arrive",
        "ready": "has not returned from its state_dict()",
        "part": "has not staged its part",
    }

    def __init__(self, act: str, group: dist.ProcessGroup | None) -> None:
        self.act = act
        self.is_alone = is_alone()
        self._store: Any = None
        self._said = "rank"
        self._heard: dict[int, Document] = {}
        self.told: list[str] = []
        self._group: Any = group
        if self.is_alone:
            super().__init__(RankIdentity.here("", 0, 0, world_size=1))
            return
        world: Any = dist.group.WORLD
        self._key = world if group is None else group
        super().__init__(RankIdentity.here("", 0, self._key.rank(), world_size=self._key.size()))
        self._mine = _groups.setdefault(self._key, _Group())
        self._mine.calls += 1
        get_store = getattr(self._key, "get_group_store", None)  # since torch 2.8
        with suppress(RuntimeError):  # a backend without a store
            self._store = None if get_store is None else get_store()

    @property
    def own_timeout_s(self) -> float:
        """The number of seconds that a rank waits for its own disk. It is less than the timeout of the group."""
        if self.is_alone:
            return math.inf
        try:
            backend = self._key._get_backend(torch.device("cpu"))  # noqa: SLF001 - torch has no other way to ask
            timeout: timedelta = backend.options._timeout  # noqa: SLF001
        except (AttributeError, RuntimeError):  # the backend has no such options
            timeout = dist.default_pg_timeout
        return _OWN_SHARE * timeout.total_seconds()

    def say(self, kind: str, **more: object) -> bool:
        """Write the progress of this rank to the store of the group. Other ranks report it if this rank is lost."""
        self._said = kind
        if self._store is not None:
            # Overwrite the earlier entry of this rank, because entries are never deleted from that store.
            said = self.who.document(calls=self._mine.calls, said=kind, **more)
            with suppress(RuntimeError):  # the next collective raises the cause
                self._store.set(_key(self.who.rank), json.dumps(said))
        return True

    def hear(self, kind: str) -> dict[int, Document]:
        """Return the entries, as `_listen` has read them, of the ranks that have made at least this progress."""
        kinds = list(self.UNSAID)
        least = self._mine.calls, kinds.index(kind)
        heard = {rank: said for rank, said in self._heard.items() if said}
        return {rank: said for rank, said in heard.items() if (said["calls"], kinds.index(said["said"])) >= least}

    def _listen(self) -> None:
        """Read the last entry of each rank. If some are not available in time, use none of them."""
        found: dict[int, Document] = {}

        def read() -> None:
            with suppress(RuntimeError, ValueError):  # the process that served the store has ended
                for rank in range(self.who.world_size):
                    # Check first, because `get` waits for a missing key until the timeout of the store.
                    is_there = self._store.check([_key(rank)])
                    found[rank] = json.loads(self._store.get(_key(rank))) if is_there else {}

        if self._store is not None:
            # Use a thread, because a store whose server is stopped never answers.
            reading = threading.Thread(target=read, daemon=True)
            reading.start()
            reading.join(_ASKED_S)
        self._heard = dict(found) if len(found) == self.who.world_size else {}

    def known(self) -> dict[int, Document]:
        """Return the facts about the process of each rank, from this call or an earlier call."""
        return {rank: said for rank, said in self._heard.items() if said} | self._mine.known

    def agree(self, work: Callable[[], R], tell: Callable[[R], str] = lambda _: "") -> R:
        """Run `work`. Return its result if it succeeds on all ranks. Otherwise, raise the errors on all ranks."""
        # `work` must not depend on another rank, which may have failed. Afterwards, `told` contains the result of
        # `tell` from each rank.
        if self.is_alone:
            return work()
        text = ""
        self.say("rank")
        raised: BaseException | None = None
        result: R
        try:
            result = work()
            text = tell(result)
        except FAILURES as error:  # all ranks raise it below
            raised = error
        self.say("ready")  # even after a failure, because this rank still joins the round that informs the others
        told: list[Any] = [None] * self.who.world_size
        with self.failing_together():
            mine = None if raised is None else sendable(raised)
            dist.all_gather_object(told, (self.who.document(), mine, text), group=self._group)
        self._mine.known = {rank: document for rank, (document, _, _) in enumerate(told)}
        self.told = [text for _, _, text in told]
        failed = {rank: error for rank, (_, error, _) in enumerate(told) if error is not None}
        if failed:
            raise failed_on_all(self.act, failed) from raised
        return result

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Convert a `CheckpointException` of torch, or the `RuntimeError` of a backend, to an error of ckstore."""
        # torch raises the error of one rank on all ranks as a `CheckpointException`, which is not an `Exception`. A
        # backend that lost a rank raises a `RuntimeError`.
        try:
            yield
        except CheckpointException as error:
            raise error_of_all(self.act, error) from None
        except RuntimeError as error:
            if self.is_alone:
                raise
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> RankFailed:
        """Return the error for a failed collective. It names the lost ranks if they are known."""
        self._listen()
        deadline_s = time.monotonic() + _SEEN_TO_END_S
        # The kernel closes the connections of a process shortly before it reports the end of that process. Wait for
        # this report instead of blaming ranks that have not arrived yet. After a timeout, do not wait, because the
        # ranks that have not arrived caused it.
        while not (became := self.became()) and "imeout" not in str(error) and "imed out" not in str(error):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(0.05)
        known = self.known()
        lost = {rank: f"{named(rank, known[rank])} {what}" for rank, what in became.items()}
        if not lost and self._heard:  # without the entries of the ranks, blame none of them
            lost = self.behind(self._said)
        said = ", ".join(lost.values()) or "no rank of this host has ended or is stopped, see the errors of other ranks"
        return RankFailed(
            f"{self.act}: the connection between the ranks was lost, {said} ({error})",
            hint="start all ranks again; ckstore log shows whether the checkpoint was published before",
            causes={rank: CkstoreError(text) for rank, text in lost.items()},
        )


def _key(rank: int) -> str:
    return f"ckstore/{rank}"


def error_of_all(act: str, error: CheckpointException) -> CkstoreError:
    """Return the error that all ranks raise for an error of torch, without the stack traces that torch adds."""
    return failed_on_all(act, {rank: cause[0] for rank, cause in error.failures.items()})


def sendable(error: BaseException) -> Exception:
    """Return the error if it can be sent to the other ranks, otherwise a `CkstoreError` with the same reason."""
    if isinstance(error, CkstoreError):
        with suppress(Exception):  # the error has a cause that cannot be pickled
            pickle.dumps(error)
            return error
    return CkstoreError(reason_of(error))
