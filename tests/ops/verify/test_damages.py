"""Any file of a store harmed in any way: a full verification finds it and names what is hurt, and all heals.

``CKSTORE_CRASH=full`` does it 2,000 times, else a few dozen times; the counts and the seed are printed.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError, DamagedBlob, NewerFormat, StoreNotFound
from ckstore.model.reports.verify_report import VerifyReport
from tests.support.checkpoint_dirs import checkpoint_dir, step_of_name
from tests.support.coverage import covered, lane_seed
from tests.support.damage import MIB
from tests.support.memory import memory_folder
from tests.support.requirements import CRASH_FULL

_COUNT = 2000 if CRASH_FULL else 16
_FILES = ("blob", "manifest", "annotations", "ref", "pin", "store", "config", "catalog", "memory")
_WAYS = ("flip", "truncate", "extend", "zero", "swap", "delete")
_WEIGHTS = (10, 4, 2, 1, 2, 1, 1, 2, 1)


def states() -> dict[str, dict[str, Any]]:
    """What the store holds: chunks and packs, some shared, some a checkpoint's own."""
    rng = np.random.default_rng(5)
    base = rng.integers(0, 256, MIB + 5000, dtype=np.uint8)
    small = {f"layer{i}": rng.random(40 + i) for i in range(8)}
    return {
        "main@1": {"base": base, "small": small, "step": 1},
        "main@2": {"base": base, "small": {**small, "layer3": rng.random(43)}, "step": 2},
        "other@1": {"base": base, "head": rng.random(3000), "note": "x" * 900},
    }


def same(one: Any, other: Any) -> bool:
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(same(one[k], other[k]) for k in one)
    return bool(np.array_equal(one, other)) if isinstance(one, np.ndarray) else one == other


@pytest.fixture(scope="module")
def template() -> Iterator[Path]:
    """A store that is copied for each case."""
    # In memory where that can be: thousands of stores are made, and nothing here is about durability.
    folder = Path(tempfile.mkdtemp(dir=memory_folder()))
    path = folder / "template"
    store = Store.init(path, chunk_bytes=MIB)
    for ref, state in states().items():
        run, _, step = ref.partition("@")
        store.save(state, run=run, step=int(step), metrics={"loss": 0.5}, tags=[f"tag-{run}-{step}"])
    store.pin("main@1", "the first")
    store.pin("other@1", "the other")
    for ref in ("main@1", "main@2"):
        store.annotate(ref, {"bleu": 27.1}, note="diverges on long inputs")
    config = path / "config.json"
    from ckstore.model.settings.retention import RetentionPolicy

    store.config.retention = RetentionPolicy(keep_last=50)
    assert config.exists()
    assert store.verify().findings == ()
    yield path
    shutil.rmtree(folder)


def copy_store(template: Path, target: Path) -> None:
    """Copy a tree with its hardlinks and times."""
    made: dict[int, str] = {}
    for folder, names, plain in os.walk(template):
        where = target / Path(folder).relative_to(template)
        where.mkdir()
        for name in (*plain, *(n for n in names if os.path.islink(os.path.join(folder, n)))):
            source = os.path.join(folder, name)
            status = os.lstat(source)
            if os.path.islink(source):
                os.symlink(os.readlink(source), where / name)
            elif status.st_ino in made:
                os.link(made[status.st_ino], where / name)
            else:
                made[status.st_ino] = shutil.copy2(source, str(where / name))


@dataclass
class Case:
    """One harm to one copy of the store.

    Attributes:
        hurt: Full refs of the checkpoints whose files were harmed.
        same_content: What was done left the content as it was.
    """

    root: Path
    rng: random.Random
    file: str
    way: str
    what: str = ""
    paths: list[Path] = field(default_factory=list)
    same_content: bool = False

    def candidates(self) -> list[Path]:
        """Return the files of that kind."""
        patterns = {
            "blob": "checkpoints/*/*/blobs/*" if self.rng.random() < 0.6 else "blobs/*/*",
            "manifest": "checkpoints/*/*/manifest.json",
            "annotations": "checkpoints/*/*/annotations.json",
            "ref": "refs/*",
            "pin": "pins/*.json",
            "store": "store.json",
            "config": "config.json",
            "catalog": "catalog.db",
            "memory": "verified.json",
        }
        return sorted(self.root.glob(patterns[self.file]))

    def harm(self) -> bool:
        """Do it; False if that cannot be done to such a file."""
        there = self.candidates()
        path = self.rng.choice(there)
        self.what = f"{self.way} {path.relative_to(self.root)}"
        self.paths = [path]
        if self.way == "delete":
            path.unlink()
        elif self.way == "swap":
            others = [other for other in there if other.name != path.name or self.file == "manifest"]
            others = [other for other in others if other != path and not _same_file(path, other)]
            if not others:
                return False
            other = self.rng.choice(others)
            self.paths.append(other)
            self.what += f" with {other.relative_to(self.root)}"
            between = path.with_name("between")
            for one, another in ((path, between), (other, path), (between, other)):
                os.rename(one, another)
        elif path.is_symlink():
            self._harm_link(path)
        else:
            return self._harm_bytes(path)
        return True

    def _harm_link(self, path: Path) -> None:
        target = bytearray(os.readlink(path).encode())
        if self.way == "truncate":
            del target[self.rng.randrange(1, len(target)) :]
        elif self.way == "extend":
            target += b"/x"
        else:
            target[self.rng.randrange(len(target))] ^= 0x15
        path.unlink()
        os.symlink(bytes(target).replace(b"\0", b"_"), os.fsencode(path))
        # A link to another checkpoint that is there is as good as any.
        self.same_content = path.is_dir()

    def _harm_bytes(self, path: Path) -> bool:
        before, status = path.read_bytes(), path.stat()
        if not before:
            return False
        data = bytearray(before)
        at = self.rng.randrange(len(data))
        if self.way == "flip":
            data[at] ^= 1 << self.rng.randrange(8)
        elif self.way == "truncate":
            del data[at:]
        elif self.way == "extend":
            data += self.rng.randbytes(self.rng.randrange(1, 200))
        else:
            stop = at + self.rng.randrange(1, 5000)
            data[at:stop] = bytes(len(data[at:stop]))
        os.chmod(path, 0o644)
        with path.open("r+b") as file:
            file.write(data)
            file.truncate()
        os.chmod(path, status.st_mode & 0o777)
        if self.rng.random() < 0.5:
            os.utime(path, ns=(status.st_mtime_ns, status.st_mtime_ns))
        self.same_content = data == before
        return True

    def hurt(self) -> set[str]:
        """Return the full refs of the checkpoints that have a harmed file, by inode as well."""
        in_place = self.way in ("flip", "truncate", "extend", "zero")
        inodes = {path.stat().st_ino for path in self.paths if in_place and path.exists()}
        found = set()
        for path in self.root.glob("checkpoints/*/*"):
            mine = [name for name in self.paths if path in name.parents]
            if mine or any(name.stat().st_ino in inodes for name in path.glob("blobs/*")):
                found.add(f"{path.parent.name}@{step_of_name(path.name)}")
        return found


def _same_file(one: Path, other: Path) -> bool:
    return not one.is_symlink() and os.path.samefile(one, other)


def unreadable(store: Store, ref: str) -> set[str] | None:
    """Return the names that cannot be read, found by reading each; None: the checkpoint cannot be opened."""
    found = set()
    try:
        with store.open_checkpoint(ref) as checkpoint:
            for name in checkpoint.keys():  # noqa: SIM118 - it is no dict
                try:
                    checkpoint[name]
                except DamagedBlob:
                    found.add(name)
    except CkstoreError:
        return None
    return found


def check_blob_or_manifest(case: Case, store: Store, report: VerifyReport) -> list[str]:
    """Found, named by tensor and checkpoint; the others load; saving heals."""
    wrong = []
    wanted = states()
    affected = {found.name for found in report.damage if found.affects}
    told = {found.name for found in report.damage}
    hurt = case.hurt()
    canonical_only = case.file == "blob" and all(path.is_relative_to(case.root / "blobs") for path in case.paths)
    if not told <= hurt:
        wrong.append(f"told {told}, harmed {hurt}")
    if not case.same_content and not report.damage and not any(found.kind == "name" for found in report.findings):
        wrong.append("it was not found")
    if not canonical_only and not case.same_content and told != hurt:
        wrong.append(f"told {told} of the harmed {hurt}")
    for ref, state in wanted.items():
        names = {name for found in report.damage if found.name == ref for name in found.names}
        cannot = unreadable(store, ref)
        if cannot is None:
            if ref not in affected:
                wrong.append(f"{ref} cannot be opened and was not told")
        elif names != cannot:
            wrong.append(f"{ref}: told {sorted(names)}, cannot be read {sorted(cannot)}")
        elif ref not in affected and not same(store.load(ref), state):
            wrong.append(f"{ref} loads something else")
    if set(report.whole) != set(wanted) - affected:
        wrong.append(f"whole {report.whole}, damaged {affected}")
    return wrong + heals_by_saving(case, store)


def heals_by_saving(case: Case, store: Store) -> list[str]:
    """The same content saved as other steps heals blobs; a save at the step of a damaged manifest replaces it."""
    wrong = []
    wanted = states()
    for number, state in enumerate(wanted.values()):
        store.save(state, run="again", step=number)
    if case.file == "manifest":
        for ref, state in wanted.items():
            run, _, step = ref.partition("@")
            there = checkpoint_dir(case.root, run, step)
            damaged = unreadable(store, ref) is None
            if damaged and case.way == "swap":  # each says that it is another: no save takes that away
                shutil.rmtree(there)
            if damaged:
                unprotect(store, run, int(step))
                store.save(state, run=run, step=int(step))
    for ref, state in wanted.items():
        try:
            if not same(store.load(ref), state):
                wrong.append(f"after healing {ref} loads something else")
        except CkstoreError as error:
            wrong.append(f"after healing {ref} does not load: {error}")
    report = store.verify(repair=True)  # what only a canonical name says, no save has to touch
    wrong += [f"after healing there is {found.name}: {found.what}" for found in report.damage]
    return wrong


def unprotect(store: Store, run: str, step: int) -> None:
    """Remove the tags and pins of a step, which keep a damaged checkpoint as they keep a whole one."""
    for tag in store.tags():
        if (tag.run, tag.step) == (run, step):
            store.untag(tag.name)
    for pin in store.pins():
        if (pin.run, pin.step) == (run, step):
            store.unpin(pin)


def check_small_file(case: Case, before: list[Any]) -> list[str]:
    """Found if its content changed; checkpoints are not touched by it."""
    wrong = []
    try:
        store = Store.open(case.root)
    except (BadInput, StoreNotFound, NewerFormat, DamagedBlob) as error:
        if case.file != "store":
            wrong.append(f"the store does not open: {error}")
        elif "store" not in str(error):
            wrong.append(f"the error does not name what is damaged: {error}")
        return wrong
    report = store.verify()
    wrong += [f"{found.name}: {found.what}" for found in report.damage]
    subjects = {str(path.relative_to(case.root)) for path in case.paths}
    told = {found.subject for found in report.findings}
    sealed = case.file in ("annotations", "pin", "config", "store", "ref") and case.way not in ("delete", "swap")
    if sealed and not case.same_content and not subjects & told and not _same_json(case):
        wrong.append(f"it was not found; told {told}")
    for ref, state in states().items():
        if not same(store.load(ref), state):
            wrong.append(f"{ref} loads something else")
    if case.file == "catalog" and [info.name for info in store.checkpoints()] != before:
        wrong.append(f"the store lists {[info.name for info in store.checkpoints()]}")
    return wrong


def _same_json(case: Case) -> bool:
    """White space and the like change no content."""
    try:
        now = json.loads(case.paths[0].read_bytes())
    except (ValueError, OSError):
        return False
    return bool(now == case_template(case))


def case_template(case: Case) -> Any:
    relative = case.paths[0].relative_to(case.root)
    return json.loads((case.root.parent / "template" / relative).read_bytes())


def one_case(template: Path, seed: int, kinds: Counter[str]) -> list[str]:
    """Harm one copy of the store; return what is wrong with how that was dealt with."""
    rng = random.Random(seed)
    (file,) = rng.choices(_FILES, _WEIGHTS)
    case = Case(template.parent / f"case-{seed}", rng, file, rng.choice(_WAYS))
    copy_store(template, case.root)
    try:
        before = [info.name for info in Store.open(case.root).checkpoints()]
        if not case.harm():
            return []
        kinds[f"{case.way} {case.file}"] += 1
        try:
            if file in ("blob", "manifest"):
                store = Store.open(case.root)
                wrong = check_blob_or_manifest(case, store, store.verify())
            else:
                wrong = check_small_file(case, before)
        except Exception as error:  # a bug, whatever it is, is told with what led to it
            wrong = [f"{type(error).__name__}: {error}"]
            if not isinstance(error, CkstoreError):
                raise
        return [f"seed {seed}, {case.what}: {what}" for what in wrong]
    finally:
        shutil.rmtree(case.root)


@pytest.mark.crash
def test_any_harm_to_any_file_is_found_and_healed(template: Path, capfd: pytest.CaptureFixture[str]) -> None:
    seed = lane_seed()
    kinds: Counter[str] = Counter()
    wrong: list[str] = []
    number = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that annotations cannot be read is told, and is what was done
        while sum(kinds.values()) < _COUNT:
            wrong += one_case(template, seed + number, kinds)
            number += 1
    counts = {f"{file}_damages": sum(kinds[f"{way} {file}"] for way in _WAYS) for file in _FILES}
    told = covered(
        "damage", "any file, any way", violations=len(wrong), seed=seed, damages=sum(kinds.values()), **counts
    )
    with capfd.disabled():
        print(f"\n{told}", file=sys.stderr, flush=True)

    assert wrong == []
