"""Another process finishes an act while a public method is at work: before each directory or file that it opens.

Whatever the other one does, the method returns a result, or raises an error of ckstore that names what happened. A
"No such file or directory" of the operating system is a fault: the caller cannot know that a checkpoint was deleted.
If the other act removes nothing, a read returns the same as without it. ``CKSTORE_CRASH=full`` tries every moment, else
one in 41 of a sixth of the methods.
"""

from __future__ import annotations

import itertools
import shutil
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

import pytest

from ckstore import CkstoreWarning, RetentionPolicy, Store
from ckstore.errors import CkstoreError
from ckstore.fs import dirfd_stat, locks
from tests.faults.reading import ACTS, MAY_SAY_LESS, STATE, make
from tests.support.coverage import covered, sample_seed
from tests.support.in_full import in_full
from tests.support.meanwhile import run_with
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

pytestmark = pytest.mark.crash

_ONE_IN = 1 if CRASH_FULL else 41
_PARTS = 12 if CRASH_FULL else 1
_TIMEOUT_S = 14_400.0 if CRASH_FULL else 1_500.0

CHANGES: dict[str, Callable[[Store], object]] = {
    "compact": lambda store: store.compact(keep_newest=1),
    "plan of a compaction": lambda store: store.compact(keep_newest=1, dry_run=True),
    "gc": lambda store: store.gc(),
    "gc now": lambda store: store.gc(now=True),
    "prune": lambda store: store.prune(RetentionPolicy(keep_last=1)),
    "tag": lambda store: store.tag("another", 2),
    "untag": lambda store: store.untag("first"),
    "pin": lambda store: store.pin(2, "another"),
    "unpin": lambda store: store.unpin("kept"),
    "annotate": lambda store: store.annotate(2, {"accuracy": 1.0}),
    "save": lambda store: store.save(STATE, 9),
    "save that replaces": lambda store: store.save({**STATE, "n": 5}, 2, if_exists="replace"),
    "commit": lambda store: store.commit(store.path.parent / "file", 10),
    "delete": lambda store: store.delete(2),
    "touch": lambda store: store.touch(),
    "reindex": lambda store: store.reindex(),
    "rename_run": lambda store: store.rename_run("main", "other"),
    "verify that repairs": lambda store: store.verify(repair=True),
}


def _delete(*steps: int) -> Callable[[Store], None]:
    def delete(store: Store) -> None:
        with suppress(CkstoreError):  # what the first process uses stays
            store.untag("first")
        with suppress(CkstoreError):
            store.unpin("kept")
        for step in steps:
            with suppress(CkstoreError):
                store.delete(step)
        with suppress(CkstoreError):
            store.gc(now=True)

    return delete


def _try(act: Callable[[Store], object], store: Store) -> None:
    with suppress(CkstoreError):
        act(store)


OTHERS: dict[str, Callable[[Store], object]] = {
    "all deleted": _delete(1, 2, 3, 4),
    "two deleted": _delete(2, 4),
    "renamed": partial(_try, CHANGES["rename_run"]),
    "replaced": partial(_try, CHANGES["save that replaces"]),
    "compacted": partial(_try, CHANGES["compact"]),
    "saved": partial(_try, CHANGES["save"]),
}
HARMLESS = {"compacted", "saved"}
ANSWERS_CHANGE = MAY_SAY_LESS | {
    *("load latest", "load latest-valid", "du", "why", "kept_bytes of an open one", "directory of an open one"),
    *("tags", "pins", "open_checkpoint of a path"),
}
"""What a save or a compaction changes in an answer, or whose answer is an object, not data."""
METHODS = {**ACTS, **CHANGES}


def _without_waits(work: Callable[[], object]) -> None:
    """Do work that is refused every lock at once that is taken: the process that has it is stopped meanwhile."""
    lock = locks._lock
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(locks, "_lock", lambda path, kind, _: lock(path, kind, 0.0))
        work()


def _is_of_the_system(error: BaseException) -> bool:
    """Whether an error is one of the operating system that was passed on without a reason."""
    if not isinstance(error, CkstoreError):
        return True
    return type(error) is CkstoreError and isinstance(error.__cause__, FileNotFoundError | NotADirectoryError)


def _wrong_with(name: str, other: str, at: int, path: Path, right: str) -> tuple[list[str], bool]:
    """Do an act, and another one before its `at`-th step. Return the violations, and whether it had `at` steps."""
    store, wrong, there = Store(path), [], False

    def meanwhile() -> None:
        nonlocal there
        there = True
        _without_waits(lambda: OTHERS[other](Store(path)))

    try:
        steps = [(dirfd_stat, "open_descriptor")]
        answer, _ = run_with(lambda: in_full(METHODS[name](store)), meanwhile, at, before=True, steps=steps)
        if name in ACTS and name not in ANSWERS_CHANGE and other in HARMLESS and answer != right:
            wrong.append(f"another answer: {answer[:500]}")
    except Exception as error:
        if _is_of_the_system(error):
            wrong.append(traceback.format_exc())
    finally:
        store.close()
    if there:
        Store(path).close()  # finishes what was refused its locks above
        with Store(path) as again:
            again.reindex()
        try:
            check_store(path)
        except AssertionError:
            wrong.append(traceback.format_exc())
    return [f"{name}, {other} at {at}: {one}" for one in wrong], there


def _copy(prepared: Path, folder: Path) -> None:
    subprocess.run(["cp", "-a", prepared, folder], check=True, timeout=60)  # keeps hardlinks and times


def _alone(name: str, prepared: Path, folder: Path) -> str:
    """Return the answer of an act that no other one meets; in the same folder, since answers hold paths."""
    _copy(prepared, folder)
    with Store(folder / "store") as store:
        right = in_full(METHODS[name](store))
    shutil.rmtree(folder)
    return right


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("origin")
    make(folder / "store")
    return folder


@pytest.mark.slow
@pytest.mark.timeout(_TIMEOUT_S)
@pytest.mark.filterwarnings(f"ignore::{CkstoreWarning.__module__}.{CkstoreWarning.__qualname__}")
@pytest.mark.parametrize("part", range(_PARTS))
def test_no_act_of_another_process_makes_a_method_fail_without_a_reason(
    part: int, prepared: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    seed = sample_seed()
    names = [*METHODS][part::_PARTS] if seed is None else [*METHODS][seed % 6 :: 6]
    wrong, moments = [], 0
    for name, other in itertools.product(names, OTHERS):
        right = _alone(name, prepared, tmp_path / "case") if name in ACTS else ""
        first = 1 if seed is None else 1 + (seed // 6) % _ONE_IN
        for at in itertools.count(first, _ONE_IN):
            _copy(prepared, tmp_path / "case")
            found, there = _wrong_with(name, other, at, tmp_path / "case/store", right)
            shutil.rmtree(tmp_path / "case")
            wrong += found
            moments += there
            if not there:
                break

    counts = {"acts": len(names), "moments": moments}
    line = covered("interleaved acts", f"part {part}", violations=len(wrong), seed=seed, **counts)
    with capfd.disabled():
        print(f"\n{line}", file=sys.stderr, flush=True)
    assert not wrong, "\n".join(wrong[:20])
    assert moments
