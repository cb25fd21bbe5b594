"""Random histories of a store where files that were not used for a week are deleted, and users copy and touch files.

``python -m tests.purge.histories FOLDER COUNT [SEED]`` lives COUNT of them in FOLDER, on whose filesystem it lies.
"""

from __future__ import annotations

import os
import random
import shutil
import stat
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from ckstore import CkstoreError, CkstoreWarning, Store
from ckstore.fs import blob_time
from tests.support.stores import check_blobs, check_links, check_names, check_store

_DAY_NS = 86400 * 10**9
_WINDOW_DAYS = 7
# A save renews what is older than a day, and a day of these histories has no hours.
_SAFE_DAYS = _WINDOW_DAYS - 1
_COPIES = {
    "cp -a": ["cp", "-a"],
    "cp -r": ["cp", "-r"],
    "rsync -a": ["rsync", "-a"],
    "rsync -aH": ["rsync", "-aH"],
}
_LONG = 12


class History:
    """A store, what was saved in it, and how many days ago each checkpoint was last used."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.path = folder / "store"
        self.said: list[str] = []
        self._random = random.Random(seed)
        self._saved: dict[int, dict[str, torch.Tensor]] = {}
        self._used_day: dict[int, int] = {}
        self._day = 0
        self._is_unharmed = True  # no program wrote into a blob
        self._state = {"frozen": torch.arange(300_000.0), "w": torch.zeros(1000), "v": torch.zeros(70_000)}
        Store.init(self.path).close()

    def live(self) -> None:
        """Do something, again and again; each purge ends in a look at everything."""
        acts: dict[Callable[[], str], int] = {
            self._save: 6,
            self._age: 6,
            self._purge: 4,
            self._drop: 1,
            self._touch: 1,
            self._touch_by_hand: 1,
            self._copy: 2,
            self._archive: 1,
            self._write_into_one: 1,
        }
        for act in self._random.choices([*acts], [*acts.values()], k=_LONG):
            self.said.append(act())
            self._look()
        with Store.open(self.path) as store:
            store.gc(now=True)
            store.verify(repair=True)
        if not self._is_unharmed:
            return
        if (self.path / "catalog.db").exists():
            check_store(self.path)
        else:  # on a shared filesystem the catalog of a host is elsewhere
            check_links(self.path)
            check_blobs(self.path)
            check_names(self.path)

    def _save(self) -> str:
        changed = self._random.sample(["w", "v", "frozen"], self._random.choice([0, 1, 1, 2]))
        if "frozen" in changed and self._random.random() < 0.7:
            changed.remove("frozen")
        for name in changed:
            self._state[name] = torch.rand(self._state[name].shape)
        step = max(self._saved, default=0) + self._random.choice([0, 1, 1, 1])
        with Store.open(self.path) as store:
            if step in self._saved and changed:
                step += 1
            store.save(self._state, step=step)
        self._saved[step] = dict(self._state)
        self._used_day[step] = self._day
        return f"save {step}, changed {changed}"

    def _age(self) -> str:
        """Let days pass: everything becomes as much older."""
        days = self._random.choice([1, 2, 3, 5, 8])
        self._day += days
        seen: set[int] = set()
        for path, status in self._files():
            if status.st_ino not in seen:
                seen.add(status.st_ino)
                times_ns = status.st_atime_ns - days * _DAY_NS, status.st_mtime_ns - days * _DAY_NS
                os.utime(path, ns=times_ns, follow_symlinks=False)
        return f"{days} days"

    def _purge(self) -> str:
        by = self._random.choice(["-mtime", "-atime"])
        empty = self._random.random() < 0.3
        # As the scripts of centres do, which know nothing of hardlinks.
        found = ["find", str(self.path), "-mindepth", "1", "(", "!", "-type", "d", by, f"+{_WINDOW_DAYS - 1}", ")"]
        subprocess.run([*found, "-delete"], check=True)
        if empty:
            old = ["-type", "d", "-empty", "-mtime", f"+{_WINDOW_DAYS - 1}", "-delete"]
            subprocess.run(["find", str(self.path), "-mindepth", "1", *old], check=True)
        return f"purge {by}{', empty directories' * empty}"

    def _drop(self) -> str:
        if not (self.path / "store.json").exists():
            return "nothing to drop"
        with Store.open(self.path) as store:
            steps = [info.step for info in store.checkpoints()]
            if len(steps) < 2:
                return "nothing to drop"
            store.delete(min(steps), now=self._random.random() < 0.5)
        self._forget(min(steps))
        return f"drop {min(steps)}"

    def _touch(self) -> str:
        if not (self.path / "store.json").exists():
            return "nothing to touch"
        with Store.open(self.path) as store:
            report = store.touch()
            valid = {finding.step for finding in store.checkpoints()}
        assert report.refused == ()
        self._used_day |= dict.fromkeys(valid & self._used_day.keys(), self._day)
        return "ckstore touch"

    def _touch_by_hand(self) -> str:
        subprocess.run(["find", self.path, "-exec", "touch", "-h", "{}", "+"], check=True)
        return "find -exec touch"

    def _copy(self) -> str:
        name = self._random.choice([*_COPIES])
        back = self.path.with_name("back")
        subprocess.run([*_COPIES[name], f"{self.path}{'/' * name.startswith('rsync')}", back], check=True)
        shutil.rmtree(self.path)
        back.rename(self.path)
        return name

    def _archive(self) -> str:
        newer = self._random.random() < 0.3
        archive = self.path.with_name("a.tar")
        subprocess.run(["tar", "-cf", str(archive), "-C", str(self.path.parent), "store"], check=True)
        if newer:  # an increment over an older archive, which has everything: only the times of what is there change
            subprocess.run(["tar", "-xf", archive, "-C", self.path.parent], check=True)
        else:
            shutil.rmtree(self.path)
            subprocess.run(["tar", "-xf", archive, "-C", self.path.parent], check=True)
        archive.unlink()
        return f"tar{', extracted over it' * newer}"

    def _write_into_one(self) -> str:
        """A program writes into a blob: nothing may load those bytes as if they were right."""
        blobs = sorted(path for path in self.path.glob("blobs/*/*") if path.is_file())
        if not blobs:
            return "no blob to write into"
        path = self._random.choice(blobs)
        mode = stat.S_IMODE(path.stat().st_mode)
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.seek(self._random.randrange(max(path.stat().st_size, 1)))
            file.write(b"\xa5\x5a\xa5")
        path.chmod(mode)
        inode, self._is_unharmed = path.stat().st_ino, False
        for other in self.path.glob("checkpoints/*/*/blobs/*"):
            if other.stat().st_ino == inode:
                self._forget(int(other.parent.parent.name.partition(".")[0]), loads=True)
        return f"wrote into {path.name[-6:]}"

    def _forget(self, step: int, *, loads: bool = False) -> None:
        """Ask no more for a checkpoint; with `loads` it may still not load wrong."""
        self._used_day.pop(step, None)
        if not loads:
            self._saved.pop(step)

    def _look(self) -> None:
        """What was used within the window is whole; nothing loads wrong."""
        safe = {step for step, day in self._used_day.items() if self._day - day < _SAFE_DAYS}
        try:
            store = Store.open(self.path)
        except CkstoreError:
            assert not safe, f"the store does not open, and {safe} were used within the window"
            # The purge took what makes it a store, and no save had used it for a week.
            self._saved, self._used_day = {}, {}
            shutil.rmtree(self.path)
            Store.init(self.path).close()
            return
        with store:
            for step, state in self._saved.items():
                try:
                    found = store.load(step)
                except CkstoreError as error:
                    if step in safe:
                        error.add_note(f"{step} was used within the window")
                        raise
                    continue
                assert all(torch.equal(found[name], tensor) for name, tensor in state.items()), f"{step} loads wrong"

    def _files(self) -> Iterator[tuple[Path, os.stat_result]]:
        for folder, _, names in os.walk(self.path):
            for name in names:
                path = Path(folder, name)
                yield path, path.lstat()


def live(folder: Path, seed: int) -> None:
    """Live one history in a new directory below `folder`; an error names what was done."""
    with tempfile.TemporaryDirectory(dir=folder) as place, warnings.catch_warnings():
        warnings.simplefilter("ignore", CkstoreWarning)
        history = History(Path(place), seed)
        try:
            history.live()
        except BaseException as error:
            error.add_note(f"seed {seed}: {'; '.join(history.said)}")
            raise


def main(arguments: list[str]) -> int:
    """Live as many histories as asked; the first that goes wrong ends it."""
    folder, count, first = Path(arguments[0]), int(arguments[1]), int(arguments[2]) if len(arguments) > 2 else 0
    torch.set_num_threads(1)
    for seed in range(first, first + count):
        live(folder, seed)
    kind = subprocess.run(["stat", "-f", "-c", "%T", folder], check=True, capture_output=True, text=True).stdout.strip()
    keeps = "stamps below the second" if _keeps_fractions(folder) else "whole seconds"
    print(f"{count} histories on {kind} ({keeps}), 0 violations")
    return 0


def _keeps_fractions(folder: Path) -> bool:
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        blob_time.stamp(file.fileno())
        return os.fstat(file.fileno()).st_mtime_ns % 10**9 != 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
