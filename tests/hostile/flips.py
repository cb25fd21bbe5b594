"""A store in which one bit is flipped, as a disk or a memory does it: times stay. What must hold of it then."""

from __future__ import annotations

import os
import random
import sqlite3
import stat
import warnings
from collections.abc import Callable, Mapping
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ckstore import Best, CkstoreError, RetentionPolicy, Store
from ckstore.fs import locks
from ckstore.model.checkpoint.mark import Mark, MarkEntry
from ckstore.objects.documents import marks
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.plans import plan_of

StoreKind = Literal["small", "chunked", "compacted"]
POLICY = RetentionPolicy(keep_last=1, keep_best=Best("loss", n=1))
STEPS = 6
_LOSSES = (9.0, 5.0, 7.0, 8.0, 6.0, 9.5)
TAGGED = 0
_ANNOTATED = 3
"""The best by a metric that was added later."""


def state(step: int, kind: StoreKind) -> dict[str, Any]:
    """Return a state of which most is the same in each step."""
    fixed, moving = np.random.default_rng(0), np.random.default_rng(step + 1)
    head = moving.random(300)
    if kind == "compacted":  # of which few elements differ
        head = np.where(moving.random(4000) < 0.02, 0.5, fixed.normal(size=4000)).astype("<f4")
    return {
        "frozen": {
            "big": fixed.integers(0, 256, 2**20 + 9 if kind == "chunked" else 999, dtype=np.uint8),
            "bias": fixed.random(200),
        },
        "head": head,
        "text": f"step {step}",
        "step": step,
    }


def same(one: Any, other: Any) -> bool:
    """Whether two states are equal, in every bit that they keep."""
    if isinstance(one, dict):
        return isinstance(other, dict) and list(one) == list(other) and all(same(one[k], other[k]) for k in one)
    if isinstance(one, np.ndarray):
        return isinstance(other, np.ndarray) and one.dtype == other.dtype and one.tobytes() == other.tobytes()
    return type(one) is type(other) and bool(one == other)


@dataclass(frozen=True)
class Flip:
    """One bit of a file, or of the text of a symlink.

    Attributes:
        file: Below the store.
        at: The byte.
        bit: From 0.
    """

    file: str
    at: int
    bit: int

    @property
    def kind(self) -> str:
        """What kind of file it is, for counts."""
        parts = Path(self.file).parts
        name = parts[-1]
        if "blobs" in parts:
            return "blobs"
        return {
            "manifest.json": "manifests",
            "plain.json": "plain_manifests",
            "annotations.json": "annotations",
            "damaged.json": "marks",
            "store.json": "settings",
            "config.json": "settings",
            "verified.json": "settings",
            "catalog.db": "catalog",
            "catalog.db-wal": "catalog",
        }.get(name, parts[0])


@dataclass
class Template:
    """A store that can be made again and again, with all its hardlinks.

    Attributes:
        files: First name of each file -> its bytes, and all its names; symlinks -> their text.
    """

    directories: list[tuple[str, int]] = field(default_factory=list)
    files: dict[str, tuple[bytes, int, int, list[str]]] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, root: Path) -> Template:
        """Read a store."""
        made = cls()
        names: dict[int, str] = {}
        for folder, below, found in os.walk(root):
            relative = os.path.relpath(folder, root)
            made.directories.append((relative, stat.S_IMODE(os.stat(folder).st_mode)))
            for name in sorted([*found, *(n for n in below if os.path.islink(f"{folder}/{n}"))]):
                path = Path(folder, name)
                key = os.path.normpath(f"{relative}/{name}")
                status = path.lstat()
                if stat.S_ISLNK(status.st_mode):
                    made.links[key] = os.readlink(path)
                elif status.st_ino in names:
                    made.files[names[status.st_ino]][3].append(key)
                elif not key.startswith("reserve/"):
                    names[status.st_ino] = key
                    made.files[key] = (path.read_bytes(), status.st_mode, status.st_mtime_ns, [key])
        return made

    def make(self, root: Path) -> None:
        """Write it to a new directory."""
        for name, mode in self.directories:
            os.makedirs(root / name, exist_ok=True)
            os.chmod(root / name, mode)
        for name, (data, mode, mtime_ns, names) in self.files.items():
            path = root / name
            path.write_bytes(data)
            os.chmod(path, stat.S_IMODE(mode))
            os.utime(path, ns=(mtime_ns, mtime_ns))
            for other in names[1:]:
                os.link(path, root / other)
        for name, target in self.links.items():
            os.symlink(target, root / name)


def build(root: Path, kind: StoreKind) -> None:
    """Make the store: steps with metrics, one of which was added later, a tag, a pin, a mark, settings.

    `kind`: with a chunk of its own in the state, and a share of 1, so that each save reads all of it again; or with
    older steps in encoded form; else the state is so small that the share that a store has from the start is all of it.
    """
    with Store.init(root, chunk_bytes=2**20) as store:
        for step in range(STEPS):
            store.save(state(step, kind), step=step, metrics={"loss": _LOSSES[step]}, message=f"at {step}")
        store.annotate(_ANNOTATED, metrics={"loss": 0.5}, note="after the evaluation")
        if kind == "compacted":  # also what is tagged and pinned later
            report = store.compact(keep_newest=1)
            if len(report.compacted) != STEPS - 1 or report.skipped:
                raise RuntimeError(str(report))
        store.tag("good", TAGGED)
        store.pin(2, "for the paper")
        store.config.make_room = RetentionPolicy(keep_last=5)
        if kind == "chunked":
            store.config.recheck_share = 1
        store.verify(sample=0.5)
        with locks.lock_shared(checkpoint_dir(store.path, "main", 4)) as lock:
            marks.write_mark(lock, Mark("2026-11-22T10:00:00.000000Z", (MarkEntry("", (), "found damaged"),)))


def leave_wal(root: Path) -> None:
    """Leave the rows of a further checkpoint in ``catalog.db-wal``, as a process does that was killed there."""
    database = root / "catalog.db"
    with closing(sqlite3.connect(database, isolation_level=None)) as reader:
        reader.execute("BEGIN")
        reader.execute("SELECT count(*) FROM checkpoints").fetchall()  # what it sees must not be overwritten
        with Store.open(root) as store:
            store.save({"extra": np.arange(10)}, run="other", step=0)
        kept = {name: Path(f"{database}{name}").read_bytes() for name in ("", "-wal")}
    for name, data in kept.items():
        Path(f"{database}{name}").write_bytes(data)


def draw_flips(template: Template, draw: random.Random, each: int, *, all_up_to: int = 0) -> list[Flip]:
    """Return single bits: of each file, and text of a symlink, `each`, or all if they are no more than `all_up_to`."""
    sizes = {name: len(data) for name, (data, *_) in template.files.items()}
    sizes.update((name, len(os.fsencode(text))) for name, text in template.links.items())
    flips = []
    for name, nbytes in sorted(sizes.items()):
        bits = range(8 * nbytes)
        chosen = bits if len(bits) <= max(each, all_up_to) else sorted(draw.sample(bits, each))
        flips += [Flip(name, bit // 8, bit % 8) for bit in chosen]
    return flips


def flip(root: Path, of: Flip) -> bool:
    """Flip the bit; False if the place does not exist, or no symlink can have that text."""
    path = root / of.file
    if path.is_symlink():
        text = bytearray(os.fsencode(os.readlink(path)))
        text[of.at] ^= 1 << of.bit
        if 0 in text:
            return False
        os.unlink(path)
        os.symlink(bytes(text), os.fsencode(path))
        return True
    status = path.stat()
    if of.at >= status.st_size:
        return False
    os.chmod(path, 0o644)
    with path.open("r+b") as file:
        file.seek(of.at)
        (byte,) = file.read(1)
        file.seek(of.at)
        file.write(bytes([byte ^ 1 << of.bit]))
    os.chmod(path, stat.S_IMODE(status.st_mode))
    os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
    return True


@dataclass(frozen=True)
class Facts:
    """What a store says, and what the policy drops of it; compared with those of an untouched twin.

    Attributes:
        listed: What each checkpoint is.
        planned: What the policy would drop before two further saves.
        dropped: What it dropped after them.
    """

    listed: Mapping[int, Any]
    planned: frozenset[int]
    dropped: frozenset[int]


def look(root: Path, kind: StoreKind) -> tuple[Facts, list[str]]:
    """Load, list, plan, save, drop and load again, as a trainer that goes on does; return facts, and broken promises.

    What is refused with an error of ckstore breaks none; any other error does.
    """
    broken: list[str] = []
    acts = _Acts(root, kind, broken)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store = acts.tried("open", lambda: Store.open(root))
        if store is None:
            return Facts({}, frozenset(), frozenset()), broken
        with store:
            facts = acts.all(store)
    return facts, broken


def compared(facts: Facts, twin: Facts, of: Flip) -> list[str]:
    """Return what a store with a flipped bit says and drops that its untouched twin does not."""
    broken = []
    for step, info in facts.listed.items():
        known = twin.listed.get(step)
        said = [info, known]
        if of.kind == "annotations" and known is not None:  # they are left aside where they cannot be read
            said = [replace(one, metrics={}, notes=()) for one in said]
        if of.kind == "refs" and known is not None and not info.tags:  # so is a tag
            said = [replace(one, tags=()) for one in said]
        if of.kind in ("blobs", "plain_manifests", "marks") and known is not None:  # one that was found out is marked
            said = [replace(one, damaged=False) for one in said]
        if said[0] != said[1]:
            broken.append(f"listed other facts of step {step}")
    for what in ("planned", "dropped"):
        lost = getattr(facts, what) - getattr(twin, what)
        if lost:
            broken.append(f"{what} {sorted(lost)}, which the twin keeps")
    return broken


class _Acts:
    def __init__(self, root: Path, kind: StoreKind, broken: list[str]) -> None:
        self._root = root
        self._kind = kind
        self._broken = broken

    def tried(self, what: str, act: Callable[[], Any]) -> Any:
        """Return what `act` gives; None if ckstore refuses."""
        try:
            return act()
        except CkstoreError:
            return None
        except Exception as error:
            self._broken.append(f"{what} gave {type(error).__name__}: {error}")
            return None

    def all(self, store: Store) -> Facts:
        whole = {step for step in range(STEPS) if self._loads(store, step)}
        listed = {info.step: info for info in self.tried("log", lambda: store.checkpoints("main")) or ()}
        for ref in ("main@latest", "main@latest-valid"):
            self._ref_loads(store, ref)
        self._ref_loads(store, "main@good", TAGGED)
        plan = self.tried("plan", lambda: plan_of(store, POLICY, run="main"))
        planned = frozenset(entry.info.step for entry in plan.dropped) if plan is not None else frozenset()
        for step in (STEPS, STEPS + 1):  # the state of the newest, then another one
            content = STEPS - 1 if step == STEPS else step
            info = self.tried("save", partial(store.save, self._state(content), step=step, metrics={"loss": 9.9}))
            if info is not None and not self._loads(store, step, content):
                self._broken.append(f"step {step} was acknowledged and cannot be loaded")
        plan = self.tried("plan", lambda: plan_of(store, POLICY, run="main"))
        report = None if plan is None else self.tried("prune", lambda: store.prune(POLICY, run="main"))
        dropped = frozenset(info.step for info in report.dropped) if report is not None else frozenset()
        if self._kind == "compacted":  # what is wrong must not be spread, or encoded as if it were right
            self.tried("compact", partial(store.compact, keep_newest=1))
        self.tried("gc", store.gc)
        for step in sorted(whole - dropped):
            if not self._loads(store, step):
                self._broken.append(f"step {step} could be loaded before, and was not dropped")
        return Facts(listed, planned, dropped)

    def _state(self, content: int) -> dict[str, Any]:
        return state(content, self._kind)

    def _loads(self, store: Store, step: int, content: int | None = None) -> bool:
        loaded = self.tried(f"load {step}", lambda: store.load(f"main@{step}"))
        if loaded is None:
            return False
        if not same(loaded, self._state(step if content is None else content)):
            self._broken.append(f"step {step} was loaded with other bytes")
        return True

    def _ref_loads(self, store: Store, ref: str, step: int | None = None) -> None:
        loaded = self.tried(f"load {ref}", lambda: store.load(ref))
        if loaded is not None and not same(loaded, self._state(loaded["step"] if step is None else step)):
            self._broken.append(f"{ref} was loaded with other bytes")
