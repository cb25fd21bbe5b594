"""The ranks of a process group during one call: what one of them raises all of them raise, and a lost one is named.

Before anything collective is begun each rank does by itself what can fail there (its arguments, the ``state_dict()`` of
its objects), and one round tells all ranks how that went. So no rank waits for one that has given up already.
Who does not come to that round, or is lost later, is found by what each rank leaves in the store of the process group
(the key-value store by which its processes found each other, which outlives a rank), and by what the kernel says of the
processes of this host.
"""

from __future__ import annotations

import json
import math
import pickle  # to find out whether an error can go to the other ranks; none is read here
import threading
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, ClassVar, TypeVar

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException

from ckstore.errors import CkstoreError, RankFailed
from ckstore.ranks.meeting import Meeting, failed_on_all, reason_of
from ckstore.ranks.rank_identity import Document, RankIdentity, named

R = TypeVar("R")

_SEEN_TO_END_S = 10.0
"""How long a process may take to end after it has closed its connections."""
_ASKED_S = 5.0
"""How long the store of the group is asked: the process that serves it may be the one that was lost."""
_OWN_SHARE = 0.8
FAILURES = (Exception, CheckpointException)
"""Errors of the work of a rank. `CheckpointException` of torch is not an `Exception`, so it is listed separately."""


@dataclass
class _Group:
    """What this process knows of a group: what each rank has said of its process, and how many calls there were."""

    known: dict[int, Document] = field(default_factory=dict)
    calls: int = 0


_groups: weakref.WeakKeyDictionary[Any, _Group] = weakref.WeakKeyDictionary()


def is_alone() -> bool:
    """Whether this process is no rank of any group."""
    return not (dist.is_available() and dist.is_initialized())


class GroupMeeting(Meeting):
    """The ranks of one call; without a `group`, all. `act`: what they do, for messages."""

    UNSAID: ClassVar[Mapping[str, str]] = {
        "rank": "did not come",
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
        with suppress(RuntimeError):  # a backend without one
            self._store = None if get_store is None else get_store()

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

    def say(self, kind: str, **more: object) -> bool:
        """Leave it in the store of the group, should the others lose this rank."""
        self._said = kind
        if self._store is not None:
            # Under one key, in the place of what it said before: nothing ever empties that store.
            said = self.who.document(calls=self._mine.calls, said=kind, **more)
            with suppress(RuntimeError):  # the collective that follows says what is wrong
                self._store.set(_key(self.who.rank), json.dumps(said))
        return True

    def hear(self, kind: str) -> dict[int, Document]:
        """Return what is known of the ranks that are as far as this, as `_listen` has read it."""
        kinds = list(self.UNSAID)
        least = self._mine.calls, kinds.index(kind)
        heard = {rank: said for rank, said in self._heard.items() if said}
        return {rank: said for rank, said in heard.items() if (said["calls"], kinds.index(said["said"])) >= least}

    def _listen(self) -> None:
        """Read what all ranks said last; nothing if that cannot be had in time."""
        found: dict[int, Document] = {}

        def read() -> None:
            with suppress(RuntimeError, ValueError):  # the store is gone with the process that served it
                for rank in range(self.who.world_size):
                    # Asked first: to get a key that is not there waits for it, until the deadline of the store.
                    is_there = self._store.check([_key(rank)])
                    found[rank] = json.loads(self._store.get(_key(rank))) if is_there else {}

        if self._store is not None:
            # In a thread: a store whose server stands still never answers.
            reading = threading.Thread(target=read, daemon=True)
            reading.start()
            reading.join(_ASKED_S)
        self._heard = dict(found) if len(found) == self.who.world_size else {}

    def known(self) -> dict[int, Document]:
        """Return what the ranks have said of their processes, in this call or an earlier one."""
        return {rank: said for rank, said in self._heard.items() if said} | self._mine.known

    def agree(self, work: Callable[[], R], tell: Callable[[R], str] = lambda _: "") -> R:
        """Do `work`, and return what it returns if it succeeds on all ranks; else raise what failed, on all of them."""
        # It asks no other rank for anything: that one may have given up. What `tell` makes of it is in `told`
        # afterwards, of all ranks.
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
        self.say("ready")  # also after a failure: it is on its way to the round that tells the others
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
        """Turn the error of `torch.distributed.checkpoint`, which ``except Exception`` does not catch, into ours."""
        # So also that of a backend which has lost a rank: whatever a rank raises by itself comes as the former.
        try:
            yield
        except CheckpointException as error:
            raise failed_on_all(self.act, causes_of(error)) from None
        except RuntimeError as error:
            if self.is_alone:
                raise
            raise self._lost(error) from error

    def _lost(self, error: RuntimeError) -> RankFailed:
        """Return the error for what a collective raised, which names the lost ranks as far as that is known."""
        self._listen()
        deadline_s = time.monotonic() + _SEEN_TO_END_S
        # The connections of a process are closed a moment before the kernel says that it has ended: until then the
        # others, who are on their way, are not to be blamed. Where the time is over they are.
        while not (became := self.became()) and "imeout" not in str(error) and "imed out" not in str(error):
            if time.monotonic() >= deadline_s:
                break
            time.sleep(0.05)
        known = self.known()
        lost = {rank: f"{named(rank, known[rank])} {what}" for rank, what in became.items()}
        if not lost and self._heard:  # where it is not known what the ranks said, no rank is blamed
            lost = self.behind(self._said)
        said = ", ".join(lost.values()) or "no rank of this host has ended or stands still; see what the others say"
        return RankFailed(
            f"{self.act}: the ranks lost one another: {said}: {error}",
            hint="start all ranks again; ckstore log says whether the checkpoint was published before",
            causes={rank: CkstoreError(text) for rank, text in lost.items()},
        )


def _key(rank: int) -> str:
    return f"ckstore/{rank}"


def causes_of(error: CheckpointException) -> dict[int, BaseException]:
    """Return the error of each rank that failed, without the stacks that torch keeps."""
    return {rank: cause[0] for rank, cause in error.failures.items()}


def sendable(error: BaseException) -> Exception:
    """Return an error that can go to the other ranks: it survives pickling there, whatever class it is of."""
    if isinstance(error, CkstoreError):
        with suppress(Exception):  # one whose causes are of other classes
            pickle.dumps(error)
            return error
    return CkstoreError(reason_of(error))
