"""What the processes of two stores that meet at one remote do, over and over, until they are killed.

Each store has a ledger of what it promised. Whatever is not as it should be is an exception.
"""

from __future__ import annotations

import os
import random
import tempfile
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ckstore import CheckpointInfo, RetentionPolicy, Store
from ckstore.errors import (
    BytesElsewhere,
    CkstoreError,
    InUse,
    MissingBlob,
    NoSuchRef,
    RemoteError,
    RemoteUnavailable,
    RunIsOwned,
    StepExists,
)
from ckstore.remote.mirror.mirror_server import serve
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.saver.server.status_page import StatusPage
from ckstore.store import context_of
from tests.soak import doomed
from tests.soak.doomed import check_promised, check_warnings, token_of
from tests.soak.ledger import Ledger, Place

REMOTE = "far"
FOUGHT, TAKEN = "s", "t"
"""A run that both stores mirror, and one has; and one that they take over from each other."""
NAMES = ("a", "b")
"""The stores; each has a run of its own of the same name."""
_KEPT = {"a": (3, 4), "b": (1, 2)}
"""How many checkpoints of a run each store keeps here and there; a rule applied to the runs of the other one shows."""
_SEVERAL = 3
_PATIENCE_S = 3.0
_REFUSALS = (InUse, NoSuchRef, RemoteUnavailable, RunIsOwned, StepExists)
"""What one process may say when another was faster."""


@dataclass(frozen=True)
class Party:
    """A store at the remote.

    Attributes:
        name: One of `NAMES`.
        folder: Where both stores and their ledgers are.
        remote: Address of the remote.
        endpoint: Of its service; None: it is a directory.
        users: Users of the group that work in the store; empty: the one who started all this.
        is_faulty: Whether the service fails at random.
    """

    name: str
    folder: Path
    remote: str
    endpoint: str | None
    users: tuple[int, ...] = ()
    is_faulty: bool = False

    @property
    def path(self) -> Path:
        """The store."""
        return self.folder / f"store-{self.name}"

    def ledger(self, name: str = "") -> Ledger:
        """Open a ledger: its own, or that of the other one."""
        return Ledger(self.folder / f"ledger-{name or self.name}")

    @property
    def other(self) -> str:
        """The other one."""
        return NAMES[1 - NAMES.index(self.name)]

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs that it saves to."""
        return (self.name, FOUGHT, TAKEN)

    @property
    def keep_there(self) -> int:
        """How many checkpoints of each run its rule keeps at the remote."""
        return _KEPT[self.name][1]

    @property
    def spoilt(self) -> str:
        """The run of a checkpoint that is damaged, if there is one."""
        return f"spoilt-{self.name}"

    @property
    def tag(self) -> str:
        """The tag that its members move."""
        return f"kept-{self.name}"

    def begin(self) -> Store:
        """Make the store, or open it; with its remote, mirror and rules."""
        with Store.open_or_init(self.path, chunk_bytes=2**20) as made:
            if not made.remotes.list():
                made.remotes.add(REMOTE, self.remote, endpoint=self.endpoint)
        store = Store.open_or_init(self.path, mirror=REMOTE)  # a new one lists what is there
        store.config.keep_local = RetentionPolicy(keep_last=_KEPT[self.name][0])
        store.config.keep_remote = RetentionPolicy(keep_last=self.keep_there)
        return store


class Member:
    """One process in the store of a party."""

    def __init__(self, party: Party, store: Store, draw: random.Random, tell: Callable[[], object]) -> None:
        self.party, self.store, self.draw, self.tell = party, store, draw, tell
        self.ledger, self.theirs = party.ledger(), party.ledger(party.other)
        self._savers = {run: doomed.saver(store, self.ledger, run, draw) for run in party.runs}
        self._collect = doomed.collector(store, self.ledger, "", draw)

    def save(self) -> None:
        """Save to the run of this member alone: a new step, or the newest one again."""
        self._savers[self.party.name]()

    def save_common(self) -> None:
        """Save to a run that the other store has as well."""
        self._savers[self.draw.choice((FOUGHT, TAKEN))]()

    def collect(self) -> None:
        """Drop by a rule and by hand, compact, and free."""
        self._collect()

    def mirror(self) -> None:
        """Do what the process that mirrors does until nothing is left, or too little works; note what it has then."""
        context = context_of(self.store)
        before = {place: save[1] for place, save in promised(self.ledger).items()}

        def begin(_: CheckpointInfo) -> None:
            self.tell()

        with StatusPage(str(context.layout.path)) as page:
            serve(context, Mirror(context, begin), page, linger_s=0.0, patience_s=_PATIENCE_S)
        note_mirrored(self.party, self.store, self.ledger, before)

    def work(self) -> None:
        """Do one thing that a person does at the remote, or to checkpoints."""
        acts = (
            self.push,
            self.pull,
            self.take,
            self.take,
            self.evict,
            self.evict,
            self.prune,
            self.clone,
            self.take_over,
        )
        self.draw.choice((*acts, self.undo, self.look, self.verify, self.verify_remote, self.name_one, self.move_tag))()

    def push(self) -> None:
        """Push a part of the run of this member."""
        chosen = self._some(self.store.checkpoints(self.party.name))
        if not chosen:
            return
        here = promised(self.ledger)
        try:
            self.store.push(chosen, REMOTE)
        except BytesElsewhere:
            # A store that was set back to a backup lists evicted ones that its rule removed at the remote since then.
            still = promised(self.ledger)
            places = [(info.run, info.step) for info in chosen if info.elsewhere]
            if not places or all(place in here and still.get(place) == here[place] for place in places):
                raise
        self.ledger.did(pushed=len(chosen))

    def pull(self) -> None:
        """Pull checkpoints that no member had the right to remove from the remote."""
        here = promised(self.ledger)
        infos = [info for info in self.store.checkpoints() if info.elsewhere and (info.run, info.step) in here]
        chosen = self._some(infos)
        if not chosen:
            return
        try:
            self.store.pull(chosen, REMOTE)
        except RemoteError:
            still = promised(self.ledger)
            if all(still.get((info.run, info.step)) == here[info.run, info.step] for info in chosen):
                raise
        self.ledger.did(pulled=len(chosen))

    def take(self) -> None:
        """Pull what the other store saved; from then on it is promised here as well."""
        run = self.party.other
        there = promised(self.theirs)
        places = [place for place in there if place[0] == run and place in self.theirs.read().remote]
        for place in sorted(places)[-_SEVERAL:]:
            name, token = f"{run}@{place[1]}", there[place][1]
            self.ledger.trying(run, place[1], token)
            try:
                self.store.pull(name, REMOTE)
            except RemoteError:  # its store may have dropped it since its ledger was read
                if promised(self.theirs).get(place) == there[place]:
                    raise
                continue
            if token_of(self.store.load(name), name) == token:
                self.ledger.acknowledged(run, place[1], token)
                self.ledger.did(taken=1)

    def evict(self) -> None:
        """Free local bytes of some."""
        chosen = self._some([info for info in self.store.checkpoints() if info.run != self.party.spoilt])
        if chosen:
            self.ledger.did(evicted=len(self.store.evict(chosen, REMOTE).evicted))

    def prune(self) -> None:
        """Remove at the remote what the rule does not keep there, and what nothing names."""
        report = self.store.remotes.prune(REMOTE, grace=0.001)
        self.ledger.did(pruned=1, pruned_blobs=report.removed_count)

    def clone(self) -> None:
        """Make a clone of the remote, as another machine would, and load one of its checkpoints."""
        with tempfile.TemporaryDirectory(dir=self.party.folder) as folder:
            path = Path(folder) / "clone"
            with Store.clone(self.party.remote, path, endpoint=self.party.endpoint) as clone:
                infos = clone.checkpoints()
                if infos:
                    self._load_of(clone, self.draw.choice(infos), Path(folder) / "again")
        self.ledger.did(cloned=1)

    def _load_of(self, clone: Store, info: CheckpointInfo, again: Path) -> None:
        try:
            self._check_known(clone, info)
        except RemoteUnavailable:  # says nothing about the checkpoint
            raise
        except CkstoreError as error:
            # It may have been removed since it was listed: then another clone does not list it.
            with Store.clone(self.party.remote, again, endpoint=self.party.endpoint) as later:
                if info.id in {one.id for one in later.checkpoints(superseded=True)}:
                    raise RuntimeError(f"the remote lists {info.name}, and a clone cannot load it") from error

    def take_over(self) -> None:
        """Take the run over that both take."""
        if self.store.latest(TAKEN) is not None:
            self.store.remotes.take_over(REMOTE, TAKEN)
            self.ledger.did(taken_over=1)

    def undo(self) -> None:
        """Bring back something that is offered."""
        offered = [one for one in self.store.undoable() if not one.problem and one.run in self.party.runs]
        if offered:
            one = self.draw.choice(offered)
            info = self.store.undo(one.id)
            with suppress(NoSuchRef):  # it was dropped again
                self._check_known(self.store, info)
            self.ledger.did(undone=1)

    def look(self) -> None:
        """Look at everything that the store lists, as a page of a monitor does."""
        self.store.metrics()
        self.store.doctor()
        self.store.runs()
        check_warnings(self.store, but=self.party.spoilt)
        self.ledger.did(looked=1)

    def verify(self) -> None:
        """Verify a part of the store: nothing is damaged but what was spoilt."""
        report = self.store.verify(sample=0.2)
        bad = [str(one) for one in report.damage if one.run != self.party.spoilt]
        if bad:
            raise RuntimeError(f"verify finds {bad}")
        for away in report.elsewhere:
            place = away.run, away.step
            if away.missing and place in promised(self.ledger) and self.store.info(away.name).elsewhere:
                raise RuntimeError(f"verify: {away}")
        self.ledger.did(verified=1)

    def verify_remote(self) -> None:
        """Read a part of the remote back: nothing is missing or damaged that no store had the right to remove."""
        report = self.store.remotes.verify(REMOTE, sample=0.2)
        here = {f"{run}@{step}" for run, step in promised(self.ledger) if run == self.party.name}
        bad = [str(one) for one in report.damage if one.word == "damaged" or here & {*one.checkpoints}]
        if bad:
            raise RuntimeError(f"the remote has {bad}")
        self.ledger.did(verified_remote=1)

    def name_one(self) -> None:
        """Pin one for a moment, or end the undo of everything."""
        if self.draw.random() < 0.3:
            self.store.gc(now=True)
            return
        infos = self._some(self.store.checkpoints(self.party.name))
        for info in infos[:1]:
            self.store.unpin(self.store.pin(info, f"looked at by {os.getpid()}"))

    def move_tag(self) -> None:
        """Move the tag of this store to another checkpoint."""
        for info in self._some(self.store.checkpoints(self.party.name))[:1]:
            self.ledger.moving_tag(self.party.tag, info.id)
            self.store.tag(self.party.tag, info)
            self.ledger.moved_tag(self.party.tag)
            self.ledger.did(tagged=1)

    def _check_known(self, store: Store, info: CheckpointInfo) -> None:
        token = token_of(store.load(info), info.name)
        check_known((self.ledger, self.theirs), info, token)

    def _some(self, infos: list[CheckpointInfo]) -> list[CheckpointInfo]:
        return self.draw.sample(infos, min(len(infos), self.draw.randint(1, _SEVERAL)))


def promised(ledger: Ledger) -> dict[Place, tuple[int, int]]:
    """Return what a store must have, with the save that it must have at least."""
    history = ledger.read()
    return {place: history.last_acknowledged(place) for place in history.promised}


def check_known(ledgers: Iterable[Ledger], info: CheckpointInfo, token: int) -> None:
    """Raise if no party has saved that state at that step."""
    if not any(ledger.read().is_known(info.run, info.step, token) for ledger in ledgers):
        raise RuntimeError(f"{info.name} holds {token}, which no member saved there")


def note_mirrored(party: Party, store: Store, ledger: Ledger, before: dict[Place, int]) -> None:
    """Note that the remote has what was promised before it was mirrored, is here still, and is not said to lack there.

    Of the runs that this store has there alone.
    """
    status = store.mirror_status()
    lacking = {(info.run, info.step) for info in status.behind} if status is not None else set()
    still = promised(ledger)
    for place, token in before.items():
        if place in still and place not in lacking and place[0] == party.name:
            ledger.at_remote(*place, token)
    ledger.did(mirrored=1)


ROLES: tuple[tuple[str, Callable[[Member], Callable[[], None]], int], ...] = (
    ("save", lambda member: member.save, 6),
    ("save common", lambda member: member.save_common, 6),
    ("mirror", lambda member: member.mirror, 2),
    ("work", lambda member: member.work, 6),
    ("work", lambda member: member.work, 6),
    ("collect", lambda member: member.collect, 1),
)
"""What the members of each store do, and how often they are killed, compared with others."""


def live(party: Party, role: int, seed: int, tell: Callable[[], object]) -> None:
    """Open the store, look whether what was promised is there, and work until killed; `tell` of each thing done."""
    draw = random.Random(seed)
    become(party, draw)
    name, choose, _ = ROLES[role]
    with Store.open(party.path) as store:
        member = Member(party, store, draw, tell)
        check_warnings(store, but=party.spoilt)
        looked_at = draw.choice((*party.runs, party.other))
        unanswered = (RemoteUnavailable,) if party.is_faulty else ()
        count = check_promised(store, member.ledger, draw, looked_at, gone=GONE, unanswered=unanswered)
        member.ledger.did(starts=1, checked_at_start=count)
        act = choose(member)
        while True:
            try:
                act()
            except _REFUSALS as error:
                # Nothing may keep a save from being made, but for a checkpoint of its step that came back meanwhile.
                if name.startswith("save") and not isinstance(error, StepExists):
                    raise
                member.ledger.did(**{f"refused_{type(error).__name__}": 1})
            tell()


GONE = (NoSuchRef, MissingBlob, RemoteError)
"""What a load says of a checkpoint that was dropped, or went at the remote, while it was read."""


def become(party: Party, draw: random.Random) -> None:
    """Go on as one of the users of a store, if it has several."""
    if party.users:
        uid = draw.choice(party.users)
        os.setgroups([os.stat(party.path).st_gid])
        os.setgid(uid)
        os.setuid(uid)
        os.umask(0o077)
        os.environ["HOME"] = str(party.folder / f"home-{uid}")
