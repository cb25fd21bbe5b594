"""Two stores meet at one remote: rounds of a crowd that is killed at random, and of a look at all that was promised.

``python -m tests.soak.meeting SECONDS [--seed N] [--service | --faults | --users] [--without RULE] [--folder DIR]``
prints one line of JSON after each round. With ``--faults`` the remote is a service, and some of the requests of the
crowd fail, are answered late, or are done twice.
``--without`` first takes a rule out of a copy of the sources (``claims``, ``ownership``, ``sequence``, ``separate
duties``), and says how long it took until something was lost.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import importlib
import json
import os
import pkgutil
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import ckstore
from ckstore import Store, Tag
from ckstore.errors import CkstoreError
from ckstore.ops.free import gc_plan, retain
from ckstore.ops.read import load
from ckstore.ops.refs import labels, latest_valid
from ckstore.ops.save import commit, save
from ckstore.ops.verify import verify
from ckstore.remote import remotes
from ckstore.remote.documents.claims import claims_at
from ckstore.remote.documents.run_owner import read_owner
from ckstore.remote.mirror import mirror_process as starting
from ckstore.remote.mirror import mirror_step
from ckstore.remote.mirror.mirror_step import Mirror
from ckstore.remote.pruning.keep_remote import KeepRemote
from ckstore.remote.push_plan import place_of
from ckstore.remote.remote_opener import named_remote
from ckstore.saver import helper_start
from ckstore.store import context_of
from tests.mutants.runner import MUTANTS, copied
from tests.soak.doomed import check_promised, check_warnings, state_of, token_of
from tests.soak.ledger import Ledger, Place
from tests.soak.nursery import Nursery, Slot
from tests.soak.parties import (
    GONE,
    NAMES,
    REMOTE,
    ROLES,
    TAKEN,
    Party,
    check_known,
    live,
    note_mirrored,
    promised,
)
from tests.support.look import directory_of
from tests.support.s3_proxy import Fault, faulty_proxy
from tests.support.s3_server import KEY, SECRET, s3_service
from tests.support.stores import check_blobs, check_links, check_names, check_store
from tests.support.users import FIRST_UID, GROUP

_IMPORTED = (commit, gc_plan, latest_valid, load, retain, save, labels, verify)
RULES = {
    "claims": ("evict-unclaimed",),
    "ownership": ("owned-run-taken", "foreign-run-judged"),
    "sequence": ("least-number-ignored", "abandoned-timeline-wins"),
    "separate duties": ("mirror-stops-at-one",),
}
"""What is taken out by `--without`: mutants."""
_ROUND_S = 20.0
_HANGS_S = 1200.0
_REPEATED_S = 0.5
_FAULT_SHARE = 0.02
_FAULTS: tuple[Fault, ...] = ("500", "503", "drop", "lose", "cut", "truncate", "delay", "repeat")
"""No bits are flipped: a listing has no digest, and TLS protects those of a real service."""
_OFFERS = 3
_MIRROR_ROUNDS = 3
_HEAVY = ("ckstore.integrations", "ckstore.tensors", "ckstore.training")
_OWN_BYTES = 100_000


def scale_times() -> None:
    """Have rules and prunes at the remote act at once, and start no process of their own."""
    for module, name, value in (
        (helper_start, "start", lambda *_: None),
        (starting, "wake", lambda *_, **__: None),
        (mirror_step, "_PRUNE_PAUSE_S", 0.0),
        (mirror_step, "GRACE_S", 0.0),
        (remotes, "LEAST_GRACE_S", 0.0),
    ):
        setattr(module, name, value)
    warnings.simplefilter("ignore")


def import_all() -> None:
    """Import every module that a process could need later."""
    for module in pkgutil.walk_packages(ckstore.__path__, "ckstore."):
        if not module.name.startswith(_HEAVY):
            importlib.import_module(module.name)


@dataclass
class Meeting:
    """Two parties.

    Attributes:
        seed: Of all that is drawn between the rounds.
        users: Members of a group that work in the second store; empty: the one who started this.
        faults: While this file exists, the service fails at random; None: it never does.
        wrong: What was lost, or is not true.
        rounds, kills, acts: How many.
    """

    folder: Path
    remote: str
    endpoint: str | None
    seed: int
    users: tuple[int, ...] = ()
    faults: Path | None = None
    wrong: list[str] = field(default_factory=list)
    rounds: int = 0
    kills: int = 0
    acts: int = 0

    def __post_init__(self) -> None:
        self.draw = random.Random(self.seed)
        if self.users:
            _share(self.folder, self.users)
        users = {NAMES[-1]: self.users}
        self.parties = {
            name: Party(
                name, self.folder, self.remote, self.endpoint, users.get(name, ()), is_faulty=self.faults is not None
            )
            for name in NAMES
        }
        self.ledgers = {name: party.ledger() for name, party in self.parties.items()}
        slots = [
            Slot(f"{role} of {name}", partial(live, party, number), weight)
            for name, party in self.parties.items()
            for number, (role, _, weight) in enumerate(ROLES)
        ]
        said = self.folder / "said"
        self.nursery = Nursery(slots, said, self.draw.randrange(2**32), self._read)

    def run(self, seconds: float, *, until_wrong: bool = True) -> None:
        """Meet for so long, and for one round at least."""
        self.inside("begin", self.begin)
        deadline = time.monotonic() + seconds
        while not self.wrong:
            self.inside("spoil", partial(self.spoil, self.draw.randrange(2**32)))
            left_s = deadline - time.monotonic()
            with self.faulty():
                self.nursery.run(min(_ROUND_S, max(1.0, left_s / 2)))
            self.kills, self.acts = self.nursery.kills, self.nursery.acts
            self.wrong += self.nursery.violations
            if not self.wrong:
                self.inside("settle", partial(self.settle, self.draw.randrange(2**32)))
            self.rounds += 1
            print(json.dumps({"rounds": self.rounds, "kills": self.kills, "acts": self.acts, **self.did()}), flush=True)
            if time.monotonic() >= deadline:
                return

    @contextmanager
    def faulty(self) -> Iterator[None]:
        """Have the service fail at random."""
        if self.faults is None:
            yield
            return
        self.faults.touch()
        try:
            yield
        finally:
            self.faults.unlink()
            time.sleep(_REPEATED_S)  # requests that the service is to get once more

    def did(self) -> Counter[str]:
        """Return how often what was done."""
        return sum((ledger.read().did for ledger in self.ledgers.values()), Counter())

    def _read(self) -> None:
        for ledger in self.ledgers.values():
            ledger.read()

    def inside(self, name: str, act: Callable[[], object]) -> None:
        """Do it in a process of its own, since one that has used a service must not be forked; note what it raises."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                os.close(reading)
                faulthandler.dump_traceback_later(_HANGS_S, exit=True)
                said = b""
                act()
            except BaseException:
                said = traceback.format_exc().encode()
            with open(writing, "wb") as file:
                file.write(said)
            os._exit(0)
        os.close(writing)
        with open(reading, "rb") as file:
            told = file.read().decode()
        status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
        if told or status:
            self.wrong.append(f"{name} ({status}): {told}")

    # What is done between the rounds

    def begin(self) -> None:
        """Make both stores."""
        for name, party in self.parties.items():
            party.begin().close()
            self.ledgers[name].rules(party.keep_there, party.runs)

    def spoil(self, seed: int) -> None:
        """Have a checkpoint of one store be damaged, so that it can't be pushed; it is newer than what waits."""
        draw = random.Random(seed)
        for party in self.parties.values():
            if draw.random() < 0.5:
                with Store.open(party.path) as store:
                    # No other checkpoint has these bytes, nor will: else a save would heal them.
                    info = store.save({"own": draw.randbytes(_OWN_BYTES)}, run=party.spoilt)
                    for blob in (directory_of(store, info.id) / "blobs").iterdir():
                        _flip(blob)

    def settle(self, seed: int) -> None:
        """Look at everything, now that no process is at work; then let a node be lost, or a store be restored."""
        draw = random.Random(seed)
        for party in self.parties.values():
            self._settle_one(party, draw)
        self._check_remote()
        for party in self.parties.values():
            self._check_order(party, draw)
        for party in self.parties.values():
            chance = draw.random()
            backup = self.folder / f"backup-{party.name}"
            if chance < 0.2:
                self._lose(party)
            elif chance < 0.4 and backup.exists():
                self._restore(party, backup)
            elif chance < 0.6:
                self._back_up(party, backup)

    def _settle_one(self, party: Party, draw: random.Random) -> None:
        ledger = self.ledgers[party.name]
        with Store.open(party.path) as store:
            check_warnings(store, but=party.spoilt)
            ledger.did(checked=check_promised(store, ledger, gone=GONE))
            self._check_listed(store, party)
            self._check_undo(store, party, draw)
            self._mirror_all(party, store)
            self._check_listed(store, party)
            ledger.did(checked=check_promised(store, ledger, gone=GONE))
            for info in store.checkpoints(party.spoilt, superseded=True):
                store.delete(info)
            _expect(store.verify(quick=True).damage == (), "a spoilt checkpoint is deleted, and its damage stays")
            if draw.random() < 0.7:
                return
            report = store.gc(now=True)
            left = (report.held, report.linked_outside, report.trash_left)
            _expect(left == ((), (), ()), f"gc leaves {left}")
            # As a clone of the remote it lists what others have removed there since.
            away = {(one.run, one.directory): bool(one.missing) for one in store.verify(quick=True).elsewhere}
            for info in store.checkpoints(superseded=True):
                is_lost = away.get((info.run, directory_of(store, info.id).name))
                if is_lost:
                    for tag in info.tags:
                        store.untag(tag)
                        ledger.untagged(tag)
                    store.delete(info)
                elif is_lost is not None:
                    store.pull(info.id, REMOTE)
            store.gc(now=True)
        if party.users:  # each has a catalog of its own
            check_links(party.path)
            check_blobs(party.path)
            check_names(party.path)
        else:
            check_store(party.path)

    def _check_listed(self, store: Store, party: Party) -> None:
        """Look whether what the store lists is what it has, and whether what it says of that is true."""
        listed = store.checkpoints(superseded=True)
        # A compaction that was killed leaves the directory that it replaced, for gc.
        on_disk = {(path.parent.name, *path.name.split(".")[:2]) for path in party.path.glob("checkpoints/*/*")}
        known = {(info.run, *directory_of(store, info.id).name.split(".")[:2]) for info in listed}
        _expect(on_disk >= known, f"no directory: {known - on_disk}")
        _expect(on_disk <= known, f"not listed: {on_disk - known}")
        report = store.verify()
        damaged = {(one.run, one.step) for one in report.damage}
        spoilt = {(info.run, info.step) for info in listed if info.run == party.spoilt}
        _expect(damaged <= spoilt, f"verify finds {[*map(str, report.damage)]}, spoilt is {spoilt}")
        harmful = [str(one) for one in report.findings if one.harmful and not one.mended]
        _expect(not harmful or bool(spoilt), f"verify finds {harmful}")
        lost = {(one.run, one.step) for one in report.elsewhere if one.missing}
        places = promised(self.ledgers[party.name])
        _expect(lost.isdisjoint(places), f"verify says that {lost & places.keys()} is lost")
        for info in listed:
            if info.run == party.spoilt:
                continue
            try:
                # One that another store removed from the remote may load until a prune deletes its blobs there.
                check_known(self.ledgers.values(), info, token_of(store.load(info), info.name))
            except CkstoreError as error:
                _expect((info.run, info.step) in lost, f"verify says nothing of {info.name}: {error!r}")

    def _check_undo(self, store: Store, party: Party, draw: random.Random) -> None:
        offered = [one for one in store.undoable() if not one.problem and one.run != party.spoilt]
        for one in draw.sample(offered, min(len(offered), _OFFERS)):
            info = store.undo(one.id)
            check_known(self.ledgers.values(), info, token_of(store.load(info), info.name))

    def _mirror_all(self, party: Party, store: Store) -> None:
        """Mirror to the end: all but what is damaged, or of another store's run, is pushed, and both rules hold."""
        ledger = self.ledgers[party.name]
        before = {place: save[1] for place, save in promised(ledger).items()}
        context = context_of(store)
        mirror = Mirror(context)
        said = ""
        # Once more: when the rule has removed a checkpoint, an older one of its step can be meant.
        for _ in range(_MIRROR_ROUNDS):
            mirror.try_again()
            try:
                while mirror.step():
                    pass
                mirror.tidy()
            except CkstoreError as error:
                said = str(error)
        remote = named_remote(context, REMOTE)
        status = store.mirror_status()
        _expect(status is not None, "the mirror is gone")
        assert status is not None
        owned = {run: _owns(store, run) for run in {info.run for info in status.behind}}
        lacking = [info.name for info in status.behind if owned[info.run] and info.run != party.spoilt]
        _expect(not lacking, f"the mirror of {party.name} lacks {lacking}: {said or mirror.problem}")
        plan = KeepRemote(context, remote, store.config.keep_remote).plan()  # type: ignore[arg-type]
        # What can be brought back here stays there until it cannot.
        claimed = {claim.place for claim in claims_at(remote.objects)}
        left = [entry.info.name for entry in plan.dropped if place_of(entry.info) not in claimed]
        _expect(not left, f"{party.name}: keep_remote left {left}: {said or mirror.problem}")
        lost = {f"{run}@{step}" for run, step in promised(ledger)} & {*status.missing}
        _expect(not lost, f"the mirror lacks {lost}")
        note_mirrored(party, store, ledger, before)

    def _check_remote(self) -> None:
        """Look at a clone of the remote, as a new node would: it has what the mirrors said that it has."""
        with self._cloned() as clone:
            for name, ledger in self.ledgers.items():
                history = ledger.read()
                for place, since in history.remote.items():
                    if history.is_beyond(place, since[0]):
                        continue
                    try:
                        token = token_of(clone.load(f"{place[0]}@{place[1]}"), str(place))
                    except CkstoreError as error:
                        raise RuntimeError(f"{place} was mirrored by {name}, and the remote lacks it") from error
                    allowed = history.tokens(place, since=since)
                    _expect(token in allowed, f"the remote has {token} at {place}, wanted one of {allowed}")
                    ledger.did(checked_there=1)
            there = {tag.name: tag for tag in clone.tags()}
            told = clone.remotes.verify("")
            _expect(told.ok, f"the remote is damaged: {told}")
            for party in self.parties.values():
                self._check_tag(party, there.get(party.tag))

    def _check_tag(self, party: Party, there: Tag | None) -> None:
        """Look whether the remote has the tag of a store where the store has it."""
        history = self.ledgers[party.name].read()
        if party.tag not in history.moved:  # perhaps before the store was set back
            return
        with Store.open(party.path) as store:
            (here,) = (tag for tag in store.tags() if tag.name == party.tag)
            status = store.mirror_status()
            # Set back to a backup, it can have tagged an evicted checkpoint that its rule had removed there since then,
            # and the other store can have taken the run over from the one that was lost.
            if (status is not None and f"{here.run}@{here.step}" in status.missing) or not _owns(store, here.run):
                return
        _expect(here.id in history.tags[party.tag], f"{here}, to which no process moved it")
        _expect(there is not None and there.id == here.id, f"{here}, and at the remote {there}")
        self.ledgers[party.name].did(checked_tags=1)

    @contextmanager
    def _cloned(self) -> Iterator[Store]:
        with (
            tempfile.TemporaryDirectory(dir=self.folder) as folder,
            Store.clone(self.remote, Path(folder) / "clone", endpoint=self.endpoint) as clone,
        ):
            yield clone

    def _check_order(self, party: Party, draw: random.Random) -> None:
        """Save to each run that the store mirrors; that is the newest one, wherever it is asked for."""
        ledger = self.ledgers[party.name]
        tokens: dict[str, int] = {}
        with Store.open(party.path) as store:
            if draw.random() < 0.5:
                store.remotes.take_over(REMOTE, TAKEN)
            for run in party.runs:
                if _owns(store, run):
                    for _ in range(draw.randint(1, party.keep_there)):
                        tokens[run] = _save(store, ledger, run, draw)
            self._mirror_all(party, store)
            for run, token in tokens.items():
                newest = store.latest(run)
                found = None if newest is None else token_of(store.load(newest), newest.name)
                _expect(found == token, f"{party.name} saved {token} last, and {newest} of {run} is the newest")
        with self._cloned() as clone:
            for run, token in tokens.items():
                newest = clone.latest(run)
                found = None if newest is None else token_of(clone.load(newest), newest.name)
                _expect(
                    found == token, f"{party.name} mirrored {token} last, and {newest} of {run} is the newest there"
                )

    def _lose(self, party: Party) -> None:
        """Lose the node with the store; a new one goes on with what the remote has."""
        ledger = self.ledgers[party.name]
        history = ledger.read()
        with Store.open(party.path) as store:
            uuid = store.settings.uuid
        _empty(party.path)
        there = {
            place: save[1]
            for place, save in history.remote.items()
            if place[0] == party.name and not history.is_beyond(place, save[0])
        }
        ledger.begins_again(there)
        with party.begin() as store:
            if uuid in {claims.store for claims in store.remotes.claims(REMOTE)}:
                store.remotes.release(REMOTE, uuid)
            ledger.did(lost_nodes=1, checked=check_promised(store, ledger, gone=GONE))

    def _back_up(self, party: Party, backup: Path) -> None:
        shutil.rmtree(backup, ignore_errors=True)
        with Store.open(party.path) as store:
            here = {(info.run, info.step) for info in store.checkpoints() if not info.elsewhere}
        backup.mkdir()
        kept = {place: save[1] for place, save in promised(self.ledgers[party.name]).items() if place in here}
        (backup / "promised").write_text(json.dumps([[*place, token] for place, token in kept.items()]))
        subprocess.run(["cp", "-a", party.path, backup / "store"], check=True)

    def _restore(self, party: Party, backup: Path) -> None:
        """Put a backup in the place of a store."""
        ledger = self.ledgers[party.name]
        _empty(party.path)
        subprocess.run(["cp", "-a", f"{backup}/store/.", party.path], check=True)
        kept: dict[Place, int] = {
            (run, step): token for run, step, token in json.loads((backup / "promised").read_text())
        }
        ledger.begins_again(kept)
        with party.begin() as store:
            ledger.did(restored=1, checked=check_promised(store, ledger, gone=GONE))


def _share(folder: Path, users: tuple[int, ...]) -> None:
    """Let the users of a group reach the second store, the remote and the ledgers."""
    folder.chmod(0o2777)
    for shared in (folder / f"store-{NAMES[-1]}", folder / "remote"):
        shared.mkdir()
        os.chown(shared, users[0], GROUP)
        shared.chmod(0o2770)
    for uid in users:
        home = folder / f"home-{uid}"
        home.mkdir(mode=0o700)
        os.chown(home, uid, uid)
    for name in NAMES:
        (folder / f"ledger-{name}").touch()
        (folder / f"ledger-{name}").chmod(0o666)


def _empty(path: Path) -> None:
    """Remove everything in a store; the directory of a group stays as it was made."""
    for entry in path.iterdir():
        shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()


def _flip(blob: Path) -> None:
    times = blob.stat()
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        byte = file.read(1)
        file.seek(0)
        file.write(bytes([byte[0] ^ 1]))
    os.utime(blob, ns=(times.st_atime_ns, times.st_mtime_ns))
    blob.chmod(0o444)


def _save(store: Store, ledger: Ledger, run: str, draw: random.Random) -> int:
    token = draw.getrandbits(50)
    step = 1 + max((info.step for info in store.checkpoints(run)), default=-1)
    ledger.trying(run, step, token)
    store.save(state_of(token), step=step, run=run)
    ledger.acknowledged(run, step, token)
    return token


def _owns(store: Store, run: str) -> bool:
    """Whether no other store mirrors a run."""
    found = read_owner(named_remote(context_of(store), REMOTE).objects, run)
    return found is None or found[0].store == store.settings.uuid


def _expect(condition: object, message: str) -> None:
    if not condition:
        raise RuntimeError(message)


@contextmanager
def service(folder: Path, *, by_url: bool, faults: Path | None, seed: int) -> Iterator[tuple[str, str | None]]:
    """Give the address of a remote, and the endpoint of its service, which is a process of its own.

    While the file `faults` exists, some requests fail in the ways that `_FAULTS` lists.
    """
    if not by_url:
        yield str(folder / "remote"), None
        return
    os.environ.update(AWS_ACCESS_KEY_ID=KEY, AWS_SECRET_ACCESS_KEY=SECRET)
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            with s3_service() as running, faulty_proxy(running.port) as proxy:
                proxy.fault = partial(_fault, faults, random.Random(seed))
                target = running.target("run", 0 if faults is None else proxy.port)
                os.write(writing, json.dumps([target.address, target.endpoint]).encode())
                while os.getppid() != 1:
                    time.sleep(1)
        finally:
            os._exit(1)
    address, endpoint = json.loads(os.read(reading, 4096))
    try:
        yield address, endpoint
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def _fault(faults: Path | None, draw: random.Random, line: str) -> Fault:
    is_drawn = draw.random() < _FAULT_SHARE
    return draw.choice(_FAULTS) if is_drawn and line and faults is not None and faults.exists() else ""


def meet(folder: Path, seconds: float, seed: int, *, by_url: bool, users: bool, is_faulty: bool = False) -> Meeting:
    """Have two stores meet in an empty directory; with `users` several of a group are at work in one of them."""
    scale_times()
    if users:  # they cannot read where Python is
        import_all()
    gc.freeze()
    faults = folder / "faults" if is_faulty else None
    with service(folder, by_url=by_url or is_faulty, faults=faults, seed=seed) as (remote, endpoint):
        meeting = Meeting(folder, remote, endpoint, seed, (FIRST_UID, FIRST_UID + 1) if users else (), faults)
        meeting.run(seconds)
    return meeting


def without(rule: str, arguments: list[str]) -> int:
    """Meet with a rule taken out of a copy of the sources; return whether nothing was noticed."""
    begun_s = time.monotonic()
    with copied([MUTANTS[name] for name in RULES[rule]]) as (copy, environment):
        done = subprocess.run(
            [sys.executable, "-m", "tests.soak.meeting", *arguments],
            cwd=copy,
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    took_s = time.monotonic() - begun_s
    *_, last = done.stdout.splitlines() or [""]
    print(last[-3000:])
    noticed = bool(json.loads(last)["violations"]) if last.startswith("{") else False
    print(f"without {rule}: {'noticed' if noticed else 'NOT noticed'} after {took_s:.0f} s")
    return 0 if noticed else 1


def main() -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("seconds", type=float)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--service", action="store_true", help="a service of object storage, not a directory")
    parser.add_argument("--faults", action="store_true", help="a service that fails at random while the crowd works")
    parser.add_argument("--users", action="store_true", help="one store is that of a group of two; needs root")
    parser.add_argument("--folder", type=Path, help="an empty directory, kept if something is wrong")
    parser.add_argument("--without", choices=sorted(RULES))
    given = parser.parse_args()
    if given.without:
        words = [str(given.seconds), "--seed", str(given.seed)]
        words += [f"--{name}" for name in ("service", "faults", "users") if getattr(given, name)]
        return without(given.without, words)
    folder = given.folder or Path(tempfile.mkdtemp(prefix="ckstore-meeting-"))
    folder.mkdir(parents=True, exist_ok=True)
    meeting = meet(folder, given.seconds, given.seed, by_url=given.service, users=given.users, is_faulty=given.faults)
    said: dict[str, Any] = {"rounds": meeting.rounds, "kills": meeting.kills, "acts": meeting.acts}
    print(json.dumps({**said, **meeting.did(), "violations": meeting.wrong}), flush=True)
    if not given.folder and not meeting.wrong:
        shutil.rmtree(folder)
    return 1 if meeting.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
