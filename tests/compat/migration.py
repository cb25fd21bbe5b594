"""Kill the conversion of random stores of a draft at every step.

``python -m tests.compat.migration --count 200 --old FOLDER``, where FOLDER has the sources of the draft, such as a
worktree of commit 35f3e85f. It writes stores of random histories, many of which end with a killed call
(`tests.compat.histories`). Then, for each of them and each call with which the first opening changes the store (of the
calls that SQLite makes for the catalog, each tenth by default):

1. a process opens a copy of the store, or runs `Store.migrate`, and is killed before that call;
2. a reader that knows only the format pages, and a read-only opening, find every acknowledged checkpoint;
3. at some of the calls, the next opening is killed as well;
4. the next opening completes the conversion, and every id, tag, pin, note, metric and byte is compared, and everything
   that was dropped and can be restored is restored.

Several processes work on the stores. They check in the same process, and fork only what is killed.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
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
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ckstore import Store
from ckstore.fs import holders
from tests.compat.archives import (
    Unpacked,
    check_by_the_library,
    check_by_the_pages,
    check_checkpoint,
    check_damage,
    check_equal,
    check_load,
    set_remote_address,
)
from tests.faults import shim
from tests.faults.harness import split
from tests.faults.shim import Family, Fault, Preloaded
from tests.format import reader
from tests.support.draft_stores import draft_names, is_converted
from tests.support.memory import memory_folder
from tests.support.own_processes import own_processes
from tests.support.stores import check_store

_ROOT = Path(__file__).parents[2]
_DIED = -signal.SIGKILL
_SECOND_EVERY = 5
_CHANGES = Family.MUTATING & ~Family.SYNC  # a kill before an fsync leaves the same store as one before the next call

WAYS: dict[str, Callable[[Path], object]] = {
    "open": Store.open,
    "migrate": lambda root: Store.open(root, recover=False).migrate(),
}


def settled(made: Unpacked) -> tuple[Unpacked, set[str]]:
    """Return what the store must contain for ever, and the names of checkpoints that only the conversion lists.

    A call that was killed did what it was to do, or did not, or did a part of it. What it did is read from the store of
    the draft, by the format pages.
    """
    contents: dict[str, Any] = json.loads(json.dumps(made.contents))
    killed = contents["killed"]
    seen = reader.Store(made.root, made.remote_blob)
    by_id = {one.id: one for one in seen.by_id().values()}
    of_steps = {f"{run}@{step}": one for (run, step), one in seen.of_steps().items() if one.is_complete()}
    hidden: set[str] = set()
    if "name" in killed:
        _settle_checkpoint(made, contents, of_steps, hidden)
    if "tag" in killed and (killed["tag"] not in contents["tags"] or _is_at(seen, killed["tag"], killed["id"])):
        contents["tags"] |= {tag: killed["id"] for tag in seen.tags() if tag == killed["tag"]}
    if "pin" in killed:
        pins = [json.loads(path.read_bytes()) for path in made.root.glob("pins/[!.]*.json")]
        contents["pins"] |= {pin["id"]: pin["reason"] for pin in pins if pin["reason"] == killed["pin"]}
    if "note" in killed:
        annotations = by_id[killed["id"]].directory / "annotations.json"
        if annotations.exists() and killed["note"] in annotations.read_text():
            contents["notes"].setdefault(killed["id"], []).append(killed["note"])
            contents["saved"][killed["id"]]["metrics"] |= killed["metrics"]
    # The reader finds no checkpoint in staging/, and the conversion publishes it as it is.
    moved = [reader.Checkpoint(path.parent, made.remote_blob) for path in made.root.glob("staging/*.old/manifest.json")]
    by_id |= {one.id: one for one in moved if one.id in {contents["listed"][name] for name in hidden}}
    contents["facts"]["remote_only"] = [id for id, one in by_id.items() if one.is_remote_only()]
    contents["facts"]["compacted"] = [id for id, one in by_id.items() if one.encoding]
    return replace(made, contents=contents), hidden


def _settle_checkpoint(
    made: Unpacked, contents: dict[str, Any], of_steps: dict[str, reader.Checkpoint], hidden: set[str]
) -> None:
    killed, listed = contents["killed"], contents["listed"]
    name, before = killed["name"], listed.get(killed["name"])
    found = of_steps.get(name)
    if found is not None and found.id != before:
        run, _, step = name.partition("@")
        wanted = {"run": run, "step": int(step), "metrics": killed.get("metrics", {}), **killed["content"]}
        check_checkpoint(found, wanted)
        contents["saved"][found.id], listed[name] = wanted, found.id
        tags = {path.name for path in (made.root / "refs").iterdir()}
        contents["tags"] |= {tag: found.id for tag in killed.get("tags", ()) if tag in tags}
    elif found is None and before is not None:
        if "content" in killed:
            hidden.add(name)  # it died between the two renames of a replacement
        else:
            del listed[name]
    if before is not None and before != listed.get(name) and before in _waiting(made.root):
        contents["undoable"].append(before)


def _is_at(seen: reader.Store, tag: str, id: str) -> bool:
    found = seen.tagged(tag)
    return found is not None and found.id == id


def _waiting(root: Path) -> set[str]:
    """Return the ids of the dropped checkpoints that can be restored."""
    return {reader.Checkpoint(path).id for path in root.glob("trash/*.undo-*") if (path / "manifest.json").exists()}


@dataclass
class Tally:
    """The figures of a run.

    Attributes:
        stores: The stores.
        checkpoints: Acknowledged checkpoints in them, with those that were dropped and can be restored.
        interrupted: Stores of which the last call was killed.
        gaps: Stores of which that was between the two renames of a replacement.
        kills, second_kills: Processes that were killed at their first opening, and at the one after it.
        losses: What was lost, or was different.
    """

    stores: int = 0
    checkpoints: int = 0
    interrupted: int = 0
    gaps: int = 0
    kills: Counter[str] = field(default_factory=Counter)
    second_kills: int = 0
    losses: list[str] = field(default_factory=list)

    def add(self, other: Tally) -> None:
        """Add the figures of other stores."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)

    def __str__(self) -> str:
        kills = ", ".join(f"{count} of {way}" for way, count in sorted(self.kills.items()))
        return (
            f"{self.stores} stores with {self.checkpoints} checkpoints ({self.interrupted} with a killed call, "
            f"{self.gaps} in the middle of a replacement), {sum(self.kills.values())} kills ({kills}), "
            f"{self.second_kills} of the opening after it, {len(self.losses)} losses"
        )


class Migration:
    """Kills the conversions of the stores in `folder`."""

    def __init__(self, folder: Path, stride: int, catalog_stride: int) -> None:
        self._folder, self._stride, self._catalog_stride = folder, stride, catalog_stride
        self._shim = Preloaded()
        self._shim.skip_syncs()  # what a killed process leaves does not depend on them
        # Both results depend on the given bytes only, and would take most of the time of this reader.
        self._of_bytes = lru_cache(None)(reader.tile), lru_cache(None)(reader.unframe)
        vars(reader).update(tile=self._of_bytes[0], unframe=self._of_bytes[1])
        vars(holders)["_pids"] = lambda: own_processes(os.getpid())  # no other process uses these stores

    def all(self, count: int, job_count: int) -> Iterator[Tally]:
        """Kill the conversions of all stores, in several processes; yield the figures of each store."""
        with ProcessPoolExecutor(job_count, get_context("fork"), _inherited.append, (self,)) as pool:
            yield from pool.map(_one, range(count))

    @property
    def _copied(self) -> Path:
        return self._folder / f"copy-{os.getpid()}"

    def warm_up(self, count: int) -> None:
        """Convert the first stores, to import what each process would import otherwise."""
        for number in range(count):
            made, hidden = settled(_copy(self._folder / str(number), self._copied))
            _check_readers(made, hidden)
            WAYS["migrate"](made.root)
            _check_converted(made)
        gc.collect()
        gc.freeze()

    def one(self, number: int) -> Tally:
        """Kill the conversion of the store with this number at its calls."""
        original, tally = self._folder / str(number), Tally(stores=1)
        way = "migrate" if number % 4 == 3 else "open"
        # The first process that opens a catalog discards what others left in its shared memory.
        own, of_catalog = split([call for call in self._calls(original, way) if " catalog.db-shm" not in call])
        chosen = own[number % self._stride :: self._stride]
        chosen += of_catalog[number % self._catalog_stride :: self._catalog_stride]
        made, hidden = settled(_copy(original, self._copied))
        tally.checkpoints = len(made.contents["listed"]) + len(made.contents["undoable"])
        tally.interrupted, tally.gaps = int(bool(made.contents["killed"])), int(bool(hidden))
        for function in self._of_bytes:
            function.cache_clear()
        for position, at in enumerate(sorted(chosen)):
            second = position % _SECOND_EVERY == 0
            if problem := self._case(original, made, hidden, way, at, second=second, tally=tally):
                tally.losses.append(f"store {number}, {way} killed at call {at}:\n{problem}")
        calls = f"{len(own)} calls and {len(of_catalog)} of SQLite"
        print(f"store {number}: {way}, {calls}; {tally}", flush=True)
        return tally

    def _calls(self, original: Path, way: str) -> list[str]:
        """Return the calls with which a conversion changes the store, numbered from 1."""
        copy, log = _copy(original, self._copied), self._copied / "counted"

        def work() -> None:
            self._shim.arm(Fault("count", 0, families=_CHANGES), copy.root, log)
            WAYS[way](copy.root)
            self._shim.disarm()

        status, problem = _in_child(work)
        if status:
            raise RuntimeError(f"the conversion fails without a kill: {problem}")
        return log.read_text().splitlines()

    def _case(
        self, original: Path, made: Unpacked, hidden: set[str], way: str, at: int, *, second: bool, tally: Tally
    ) -> str:
        root = _copy(original, self._copied).root
        status, problem = self._killed(WAYS[way], root, at)
        tally.kills[way] += status == _DIED
        if status not in (0, _DIED):
            return f"the first opening: {problem}"
        if problem := _problem(_check_readers, made, hidden):
            return f"after the kill: {problem}"
        if second:
            status, problem = self._killed(Store.open, root, 1 + (at * 7) % 97)
            tally.second_kills += status == _DIED
            if status not in (0, _DIED):
                return f"the second opening: {problem}"
            if problem := _problem(_check_readers, made, hidden):
                return f"after the second kill: {problem}"
        problem = _problem(_check_converted, made)
        return problem and f"at the next opening: {problem}"

    def _killed(self, way: Callable[[Path], object], root: Path, at: int) -> tuple[int, str]:
        def work() -> None:
            self._shim.arm(Fault("kill-before", at, families=_CHANGES), root, Path(os.devnull))
            way(root)

        return _in_child(work)


_inherited: list[Migration] = []


def _one(number: int) -> Tally:
    return _inherited[0].one(number)


def _check_readers(made: Unpacked, hidden: set[str]) -> None:
    """Everything that is listed is read, by the pages and by a process that may not write."""
    now = made
    if hidden:  # the conversion may or may not have published them
        found = {f"{run}@{step}" for run, step in reader.Store(made.root).of_steps()}
        listed = {name: id for name, id in made.contents["listed"].items() if name not in hidden - found}
        missing = {made.contents["listed"][name] for name in hidden - found}
        facts = {fact: [id for id in ids if id not in missing] for fact, ids in made.contents["facts"].items()}
        now = replace(made, contents={**made.contents, "listed": listed, "facts": facts})
    check_by_the_pages(now)
    with Store.open(made.root, readonly=True) as store:
        check_by_the_library(store, now)
        check_damage(store, now)


def _check_converted(made: Unpacked) -> None:
    """The next opening completes the conversion without a loss; what was dropped is restored."""
    with Store.open(made.root) as store:
        check_equal((draft_names(made.root), is_converted(made.root)), ([], True), "converted")
        check_by_the_library(store, made)
        check_by_the_pages(made)
        for id in made.contents["undoable"]:
            check_load(store, store.undo(id), made.contents["saved"][id])
        store.gc()
        check_damage(store, made)
        report = store.migrate()
        check_equal((report.renamed_count, report.tag_count, report.left), (0, 0, ()), "migrated again")
    check_store(made.root)


def _problem(check: Callable[..., object], *args: object) -> str:
    """Return the traceback of a check that fails."""
    try:
        check(*args)
    except Exception:
        return traceback.format_exc()
    return ""


def _in_child(work: Callable[[], object]) -> tuple[int, str]:
    """Do something in a forked process; return its status, negative if a signal ended it, and its traceback."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            os.close(read)
            work()
            status = 0
        except BaseException:
            os.write(write, traceback.format_exc().encode()[-60_000:])
        finally:
            os._exit(status)
    os.close(write)
    with open(read, "rb") as pipe:
        said = pipe.read().decode()
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), said


def _copy(original: Path, target: Path) -> Unpacked:
    """Copy a store and its remote with hardlinks, symlinks and times."""
    shutil.rmtree(target, ignore_errors=True)
    subprocess.run(["cp", "-a", original, target], check=True)
    made = Unpacked.of(target)
    if made.remote is not None:
        set_remote_address(made)
    return made


def write_stores(old: Path, folder: Path, seed: int, count: int) -> None:
    """Write stores of random histories with the sources of the draft."""
    with tempfile.TemporaryDirectory() as sources:  # without the tests of the draft, which would hide these
        for package in ("ckstore", "cli/ckstore_cli", "migrations/ckstore_migrations"):
            Path(sources, Path(package).name).symlink_to(old / package)
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("LD_PRELOAD", "FAULT_"))}
        environment = {**kept, "PYTHONPATH": f"{sources}{os.pathsep}{_ROOT}"}
        command = [sys.executable, "-W", "ignore", "-m", "tests.compat.histories", str(folder), str(seed), str(count)]
        subprocess.run(command, env=environment, cwd=sources, check=True)


def main(words: list[str]) -> int:
    """Run, print the figures, and return 1 if anything was lost."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200, help="how many stores (default: 200)")
    of_stores = parser.add_mutually_exclusive_group(required=True)
    of_stores.add_argument("--old", type=Path, help="a folder with the sources of the draft")
    of_stores.add_argument("--stores", type=Path, help="a folder with unpacked stores, 0, 1 and so on")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the first store")
    parser.add_argument("--stride", type=int, default=1, help="kill at every so many calls of ckstore (default: 1)")
    parser.add_argument("--catalog-stride", type=int, default=10, help="the same for calls of SQLite (default: 10)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="how many processes (default: one per core)")
    given = parser.parse_args(words)
    if "FAULT_ROOT" not in os.environ:  # once more, with the library that kills in the process
        preloaded = shim.environment(Fault("count", 0), Path("/nonexistent"))
        command = [sys.executable, "-m", "tests.compat.migration", *words, "--seed", str(given.seed)]
        return subprocess.run(command, env={**os.environ, **preloaded}, check=False, cwd=_ROOT).returncode
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="ckstore-migration-", dir=memory_folder()) as name:
        folder = Path(name).resolve()
        os.environ["HOME"] = os.environ["XDG_CACHE_HOME"] = str(folder / "home")
        print(f"seed {given.seed}", flush=True)
        if given.old:
            write_stores(given.old.resolve(), folder, given.seed, given.count)
        else:
            for number in range(given.count):
                _copy(given.stores / str(number), folder / str(number))
        migration, tally = Migration(folder, given.stride, given.catalog_stride), Tally()
        migration.warm_up(min(given.count, 8))
        for found in migration.all(given.count, given.jobs):
            tally.add(found)
        print(*tally.losses[:20], sep="\n\n")
        took = f"{time.monotonic() - began:.0f} s, {sum(os.times()[:4]):.0f} s of processor time"
        print(f"seed {given.seed}, {took}: {tally}")
    return 1 if tally.losses else 0


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    sys.exit(main(sys.argv[1:]))
