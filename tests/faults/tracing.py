"""Record the acts of the store with strace, and look at each with the law.

``python -m tests.faults.tracing FOLDER`` is what runs under strace: it forks for each case, as the fork
server of `server` does, so that a case costs a fraction of a second.
"""

from __future__ import annotations

import importlib
import json
import os
import stat
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ckstore.errors import CkstoreError
from tests.faults.acts import ACTS
from tests.faults.changed import change_module
from tests.faults.journal import Fact, Journal, Place
from tests.faults.laws import Laws
from tests.faults.replay import Replay
from tests.faults.scenarios import Scenario, unseen
from tests.faults.straced import Moment, mark, moments, record
from tests.faults.weakfs import NotUnderstoodError, Tree
from tests.support.checkpoint_dirs import checkpoint_dir, checkpoint_dirs

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 1500.0
_WRONG = 70


@dataclass(frozen=True)
class Request:
    """A case: an act, of whose fsyncs one may fail, or which runs with other sources than there are.

    Attributes:
        changed: A file of the package ``ckstore``, and its whole text instead.
    """

    act: str
    failing_sync: int = 0
    changed: tuple[str, str] | None = None


@dataclass(frozen=True)
class Traced:
    """What a case did.

    Attributes:
        syncs: How many fsyncs the act made or tried.
        calls: How many system calls were looked at.
        broken: The laws that it broke, and where.
    """

    request: Request
    syncs: int
    calls: int
    broken: tuple[str, ...]


class _Marking(Journal):
    """A journal that tells the trace what was acknowledged."""

    has_failed = False

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._store = unseen(path.parent / "store")
        self._before: dict[Place | Fact, list[Path]] = {}

    def begin(self, place: Place | Fact, state: str | None) -> None:
        super().begin(place, state)
        if isinstance(place[1], int):
            self._before[place] = checkpoint_dirs(self._store, place[0], place[1])

    def store_made(self) -> None:
        super().store_made()
        mark(durable=["store/store.json"])

    def done(self, place: Place | Fact, state: str | None) -> None:
        super().done(place, state)
        if isinstance(place[1], str):  # a tag, a pin or a note: their own laws look at them
            return
        if state is not None:
            mark(durable=[self._name(checkpoint_dir(self._store, *place))])
        elif not self.has_failed:  # an act that is tried again finds it gone, and is told nothing
            mark(gone=[self._name(path) for path in self._before[place]])

    def _name(self, path: Path) -> str:
        return f"store/{path.relative_to(self._store)}"


class _Syncs:
    """Counts the fsyncs of Python in this process; one of them fails with EIO, without being made."""

    def __init__(self, failing: int) -> None:
        self.count = 0
        self._failing = failing
        self._real = os.fsync
        os.fsync = self  # type: ignore[assignment] # the seam: the library calls it by that name

    def __call__(self, fd: int) -> None:
        self.count += 1
        if self.count == self._failing:
            mark(failed_sync=fd)
            raise OSError(5, "the fsync that fails")
        self._real(fd)


def _prepare(scenario: Scenario, folder: Path) -> None:
    mark(phase="prepare", folder=str(folder))
    scenario.prepare(folder / "store", Journal(folder / "journal"))
    mark(end="prepare")


def _act(scenario: Scenario, folder: Path, failing_sync: int, changed: tuple[str, str] | None) -> None:
    if changed is not None:
        change_module(*changed)
    syncs = _Syncs(failing_sync)
    mark(phase="act", folder=str(folder))
    with _Marking(folder / "journal") as journal:
        store = None
        for attempt in range(3):
            try:
                store = store or scenario.open(folder / "store", journal)
                scenario.act(store, journal)
                break
            except CkstoreError as error:
                if not failing_sync or attempt == 2:
                    raise
                journal.failed(unknown=True)
                journal.has_failed = True
                if store is not None and "open the store again" in f"{error}{error.hint}":
                    store.close()
                    store = None
        if store is not None:
            store.close()
        if scenario.act.__qualname__.startswith("_writing"):
            mark(durable=["place/out"])
    mark(end="act", syncs=syncs.count)


def _forked(work: Callable[[], None], modules: Path | None = None, *, may_fail: bool = False) -> None:
    pid = os.fork()
    if pid == 0:
        status = _WRONG
        try:
            work()
            if modules is not None:
                modules.write_text("\n".join(sys.modules))
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(status)
    if os.waitpid(pid, 0)[1] != 0 and not may_fail:
        raise RuntimeError("a case failed without any fault; its error is above")


def _tree(folder: Path) -> dict[str, tuple[str, int]]:
    found = {}
    for above, directories, names in os.walk(folder):
        for name in (*directories, *names):
            path = os.path.join(above, name)
            status = os.lstat(path)
            kind = "directory" if stat.S_ISDIR(status.st_mode) else "file"
            kind = "symlink" if stat.S_ISLNK(status.st_mode) else kind
            found[os.path.relpath(path, folder)] = kind, status.st_ino
    return found


def _warm_up(folder: Path) -> None:
    """Import what the acts import, so that their forks need not."""
    for name in ("first_save", "commit", "gc", "pin"):
        loaded = folder / f"modules-{name}"
        case = folder / name
        case.mkdir()
        _forked(partial(_act_unmarked, ACTS[name], case), loaded)
        for module in sorted(set(loaded.read_text().split()) - sys.modules.keys()):
            importlib.import_module(module)


def _act_unmarked(scenario: Scenario, folder: Path) -> None:
    with Journal(folder / "journal") as journal:
        scenario.prepare(folder / "store", journal)
        with scenario.open(folder / "store", journal) as store:
            scenario.act(store, journal)


def main() -> None:
    """Run the cases, and keep beside each what it left."""
    folder = Path(sys.argv[1])
    _warm_up(folder)
    for number, (act, failing_sync, changed) in enumerate(json.loads((folder / "requests").read_text())):
        case = folder / f"case-{number}"
        case.mkdir()
        _forked(partial(_prepare, ACTS[act], case))
        _forked(partial(_act, ACTS[act], case, failing_sync, changed), may_fail=changed is not None)
        (folder / f"left-{number}").write_text(json.dumps(_tree(case)))


# ---------------------------------------------------------------------------------- on the side of the tests


def trace(folder: Path, requests: list[Request]) -> list[Traced]:
    """Run the cases in the empty directory `folder`, and look at each by the law.

    Raises:
        RuntimeError: An act fails without any fault, or the trace does not tell what was left on disk.
    """
    paths = [str(_ROOT), str(_ROOT / "cli"), str(_ROOT / "migrations"), *filter(None, sys.path)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(paths)}
    (folder / "requests").write_text(json.dumps([[r.act, r.failing_sync, r.changed] for r in requests]))
    log = folder / "trace"
    record(["-m", "tests.faults.tracing", str(folder)], log, environment, timeout_s=_TIMEOUT_S)
    phases = _phases(log)
    return [
        _judge(request, phases[2 * number : 2 * number + 2], json.loads((folder / f"left-{number}").read_text()))
        for number, request in enumerate(requests)
    ]


@dataclass
class _Phase:
    name: Literal["prepare", "act"]
    folder: str
    moments: list[Moment]
    syncs: int = 0
    ended: bool = False


def _phases(log: Path) -> list[_Phase]:
    """Return the parts of the trace that are looked at, in order."""
    found: list[_Phase] = []
    current: _Phase | None = None
    with log.open(encoding="latin-1") as lines:
        for moment in moments(line.rstrip("\n") for line in lines):
            said = moment.mark or {}
            if "phase" in said:
                current = _Phase(said["phase"], said["folder"], [])
                found.append(current)
            elif "end" in said and current is not None:
                current.syncs, current.ended = said.get("syncs", 0), True
                current = None
            elif current is not None:
                current.moments.append(moment)
    return found


def _judge(request: Request, phases: list[_Phase], left: dict[str, list[Any]]) -> Traced:
    broken: list[str] = []
    for strangers in (False, True):
        tree = Tree(phases[0].folder)
        laws = Laws(tree, strangers=strangers)
        replay = Replay(tree, laws)
        for phase in phases:
            replay.begin_process(phase.name)
            try:
                replay.run(phase.moments)
            except NotUnderstoodError as error:
                raise RuntimeError(f"{request}, {phase.name}: {error}") from error
        if phases[1].ended:
            _check_left(request, tree, left)
        broken += [line if not strangers else f"{line}, after strangers" for line in laws.broken if line not in broken]
    return Traced(request, phases[1].syncs, len(phases[1].moments), tuple(broken))


def _check_left(request: Request, tree: Tree, left: dict[str, list[Any]]) -> None:
    """The replay must have seen everything: it ends with the names and links that are on disk."""
    replayed = tree.listing()
    if {path: kind for path, (kind, _) in replayed.items()} != {path: kind for path, (kind, _) in left.items()}:
        differing = sorted(replayed.keys() ^ left.keys())
        raise RuntimeError(f"{request}: the trace does not tell of {differing[:5]}")
    inodes: dict[int, set[int]] = {}
    for path, (_, number) in replayed.items():
        inodes.setdefault(number, set()).add(left[path][1])
    if any(len(found) != 1 for found in inodes.values()):
        raise RuntimeError(f"{request}: the trace takes two files for one")


if __name__ == "__main__":
    main()
