"""Write stores of random histories of calls: ``python -m tests.compat.histories FOLDER SEED COUNT``.

They are ``FOLDER/0/store``, ``FOLDER/1/store`` and so on, each with its ``contents.json``. The last call in many of
them was killed. It works with the ckstore that Python finds, also with that of a draft.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import sys
import traceback
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import numpy as np

from ckstore import CkstoreWarning, Ranks, StepExists, Store
from tests.compat.stores.write_stores import Book, described, files_in, in_own_process, is_draft

MIB = 2**20
_KILLED = 77


class History:
    """A store of a random history of calls, of which the last may be killed. The same seed gives the same history."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.drawn = random.Random(seed)
        self.book = Book(folder)
        self.values = self.drawn.choice([40, 5000, 20_000, 20_000, 300_000])
        self.runs = self.drawn.sample(["main", "b", "c.d-1", "100"], self.drawn.randint(1, 3))
        self.serial = 0
        self.intended = folder / "intended"
        self.by_two_renames = False

    def make(self) -> None:
        """Make the store."""
        drawn, book = self.drawn, self.book
        hash_name = "blake3" if drawn.random() < 0.15 else "xxh3_128"
        with Store.init(book.root, chunk_bytes=MIB, hash=hash_name) as store:
            store.config.undo_by_hand_s = 86_400
            if drawn.random() < 0.5:
                store.config.undo_by_rule_s = 86_400
            if drawn.random() < 0.3:
                if is_draft():
                    Store.init(book.remote, chunk_bytes=MIB, hash=hash_name).close()
                store.remotes.add("cold", str(book.remote))
            if is_draft() and drawn.random() < 0.5:
                _replace_by_two_renames()
                self.by_two_renames = True
            for _ in range(drawn.randint(1, 5)):
                self.save(store)
            for _ in range(drawn.randint(3, 14)):
                self.act(store)
            book.note_compacted(store)
        if drawn.random() < 0.8:
            self.act_and_be_killed()
        book.write()

    def act(self, store: Store) -> None:
        """Do what is drawn."""
        acts = [self.save] * 4 + [self.replace] * 2 + [self.save_rank, self.commit, self.compact, self.collect]
        acts += [self.label, self.label, self.delete]
        if self.book.remote.exists():
            acts += [self.evict, self.evict]
        self.drawn.choice(acts)(store)

    def intend(self, **what: Any) -> None:
        """Note what a call is going to change, if it may be killed."""
        if self.book.killed:
            self.intended.write_text(json.dumps(what))

    def state(self) -> dict[str, Any]:
        """Return a state most of which is equal in all states of the store."""
        self.serial += 1
        big = np.arange(self.values, dtype=np.int32) // 32
        big[:: self.drawn.choice([50, 500])] += self.serial
        return {"big": big, "small": np.full(5, self.serial), "same": np.arange(9), "number": self.serial}

    def free_place(self) -> tuple[int, str]:
        """Return a step and a run that have no checkpoint."""
        while True:
            step, run = self.drawn.randrange(30), self.drawn.choice(self.runs)
            if f"{run}@{step}" not in self.book.listed:
                return step, run

    def save(self, store: Store) -> None:
        """Save a new step."""
        self._save(store, *self.free_place())

    def _save(self, store: Store, step: int, run: str, **options: Any) -> None:
        state = self.state()
        metrics = {"loss": 1 / self.serial} if self.drawn.random() < 0.5 else {}
        tags = [f"t{self.serial}"] if self.drawn.random() < 0.3 else []
        self.intend(name=f"{run}@{step}", content={"values": dict(described(state))}, metrics=metrics, tags=tags)
        self.book.save(store, state, step, run, metrics=metrics, tags=tags, **options)

    def replaceable(self) -> list[str]:
        """Return the names of checkpoints that no tag or pin protects."""
        kept = {*self.book.tags.values(), *self.book.pins}
        return sorted(name for name, id in self.book.listed.items() if id not in kept)

    def replace(self, store: Store) -> None:
        """Save a step again."""
        if not (names := self.replaceable()):
            return
        name = self.drawn.choice(names)
        run, _, step = name.partition("@")
        old = self.book.listed[name]
        self._save(store, int(step), run, if_exists="replace")
        if store.config.undo_by_rule_s:
            self.book.undoable.append(old)

    def save_rank(self, store: Store) -> None:
        """Save as the only rank."""
        state, (step, run) = self.state(), self.free_place()
        content = {"values": dict(described({0: state}))}
        self.intend(name=f"{run}@{step}", content=content)
        info = store.save(state, step, run, ranks=Ranks(0, 1, f"try-{self.serial}"))
        self.book.note(info, content)

    def commit(self, store: Store) -> None:
        """Commit a file."""
        self.serial += 1
        step, run = self.free_place()
        folder = self.book.folder / "files"
        folder.mkdir()
        (folder / "a.txt").write_text(f"file {self.serial}")
        content = {"files": files_in(folder)}
        self.intend(name=f"{run}@{step}", content=content)
        self.book.note(store.commit(folder, step, run), content)
        shutil.rmtree(folder)

    def compact(self, store: Store) -> None:
        """Compact a run."""
        runs = sorted({name.partition("@")[0] for name in self.book.listed})
        self.intend()
        if runs:
            store.compact(run=self.drawn.choice(runs), keep_newest=1)

    def collect(self, store: Store) -> None:
        """Free what is not needed."""
        self.intend()
        store.gc()

    def label(self, store: Store) -> None:
        """Add a tag, a pin or a note."""
        self.serial += 1
        if not self.book.listed:
            return
        name = self.drawn.choice(sorted(self.book.listed))
        id = self.book.listed[name]
        kind = self.drawn.choice(["tag", "pin", "note"])
        if kind == "tag":
            tag = f"t{self.drawn.randint(1, self.serial)}"
            self.intend(tag=tag, id=id)
            store.tag(tag, name)
            self.book.tags[tag] = id
        elif kind == "pin" and id not in self.book.pins:
            self.intend(pin=f"pin {self.serial}", id=id)
            store.pin(name, f"pin {self.serial}")
            self.book.pins[id] = f"pin {self.serial}"
        else:
            self.intend(note=f"note {self.serial}", metrics={f"m{self.serial}": 0.5}, id=id)
            self.book.annotate(store, name, {f"m{self.serial}": 0.5}, f"note {self.serial}")

    def delete(self, store: Store) -> None:
        """Delete a checkpoint that can be restored."""
        if names := self.replaceable():
            name = self.drawn.choice(names)
            self.intend(name=name)
            self.book.delete(store, name)

    def evict(self, store: Store) -> None:
        """Push and evict a checkpoint."""
        gone = self.book.facts.setdefault("remote_only", [])
        names = [name for name, id in sorted(self.book.listed.items()) if id not in gone]
        if not names:
            return
        name = self.drawn.choice(names)
        self.intend(evicted=self.book.listed[name])
        try:
            store.push(name, "cold")
        except StepExists:  # in a draft, a remote has one checkpoint for each step
            return
        if self.drawn.random() < 0.7 and not store.evict(name, "cold").skipped:
            gone.append(self.book.listed[name])

    def act_and_be_killed(self) -> None:
        """Do one more thing in a process that is killed at a random call, and note what it may have changed."""
        at = self.drawn.randint(1, self.drawn.choice([10, 30]))
        act, names = self.drawn.choice([self.act, self.replace]), _CHANGES
        if self.by_two_renames and self.drawn.random() < 0.4:
            # Between the two renames of a replacement. Two that find the name taken come before these.
            at, act, names = 4, self.replace, ("rename",)
        self.book.killed = {"call": at}
        child = os.fork()
        if child == 0:
            status = 1
            try:
                with Store.open(self.book.root) as store:
                    _die_at(at, names)
                    act(store)
                self.book.killed = {}
                self.book.write()
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        _, status = os.waitpid(child, 0)
        code = os.waitstatus_to_exitcode(status)
        if code == 0:  # it ended before that call, and wrote the book
            self.book.read()
        elif code == _KILLED:
            self.book.killed |= json.loads(self.intended.read_bytes()) if self.intended.exists() else {}
        else:
            raise RuntimeError("the last call of a history failed")
        self.intended.unlink(missing_ok=True)
        shutil.rmtree(self.book.folder / "files", ignore_errors=True)


_CHANGES: tuple[str, ...] = (
    "rename",
    "replace",
    "symlink",
    "link",
    "mkdir",
    "unlink",
    "rmdir",
    "write",
    "fsync",
    "fdatasync",
)


def _die_at(at: int, names: tuple[str, ...]) -> None:
    """Let this process die before its call of that number of these functions of `os`."""
    calls = itertools.count(1)

    def wrapped(original: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if next(calls) == at:
                os._exit(_KILLED)
            return original(*args, **kwargs)

        return call

    for name in names:
        setattr(os, name, wrapped(getattr(os, name)))


def _replace_by_two_renames() -> None:
    """Let a draft believe that no filesystem exchanges two names; killed between the renames, it leaves a gap."""
    from ckstore import errors
    from ckstore.fs import links

    def exchange(*_: object) -> None:
        raise errors.UnsafePlace("as on a filesystem that cannot exchange two names")

    vars(links)["exchange"] = exchange


def main(folder: Path, seed: int, count: int) -> None:
    """Write the stores, several at once, each in a process of its own."""
    with ProcessPoolExecutor(mp_context=get_context("fork")) as pool:
        list(pool.map(_write, [folder] * count, range(count), range(seed, seed + count)))


def _write(folder: Path, number: int, seed: int) -> None:
    place = folder / str(number)
    place.mkdir(parents=True)
    in_own_process(History(place, seed).make)


if __name__ == "__main__":
    warnings.simplefilter("ignore", CkstoreWarning)
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
