"""Count the files of ckstore that an act enters: ``python -m tests.tools.entered [--tree PATH] [--list]``.

Each act is done in a process of its own, first in one store and then, traced, in another: so nothing is imported while
it is traced. A file counts as entered when one of its functions runs, in any thread. A switch is a call that goes on
in another file than the call before it, in the thread of the act.

``--tree`` names another checkout of the project, as of an older commit.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Self

HERE = Path(__file__).parents[2]
Act = Callable[[], object]


def _save(path: Path) -> Act:
    import ckstore

    store = ckstore.Store.init(path)
    store.save(_state(0.0), step=1)
    return lambda: store.save(_state(1.0), step=2)


def _replace(path: Path) -> Act:
    import ckstore

    store = ckstore.Store.init(path)
    store.save(_state(0.0), step=1)
    return lambda: store.save(_state(1.0), step=1, if_exists="replace")


def _compact(path: Path) -> Act:
    import ckstore

    store = ckstore.Store.init(path)
    for step in range(1, 6):
        store.save(_state(float(step)), step=step)
    return lambda: store.compact(keep_newest=1)


def _load(path: Path) -> Act:
    import ckstore

    store = ckstore.Store.init(path)
    store.save(_state(0.0), step=1)
    return lambda: store.load("latest")


def _gc(path: Path) -> Act:
    import ckstore

    store = ckstore.Store.init(path)
    for step in (1, 2):
        store.save(_state(float(step)), step=step)
    store.prune(ckstore.RetentionPolicy(keep_last=1))
    return store.gc


def _commit(path: Path) -> Act:
    import torch
    from safetensors.torch import save_file

    import ckstore

    folder = path.with_name(f"{path.name}-files")
    folder.mkdir()
    save_file({"w": torch.arange(5000.0)}, folder / "model.safetensors")
    torch.save({"w": torch.arange(5000.0)}, folder / "model.pt")
    (folder / "config.json").write_text("{}")
    store = ckstore.Store.init(path)
    return lambda: store.commit(folder, step=1)


def _open(path: Path) -> Act:
    import ckstore

    ckstore.Store.init(path).save(_state(0.0), step=1)
    return lambda: ckstore.Store.open(path)


ACTS = {
    "open": _open,
    "save": _save,
    "replace": _replace,
    "compact": _compact,
    "load": _load,
    "gc": _gc,
    "commit": _commit,
}


def _state(value: float) -> dict[str, object]:
    import torch

    return {"w": torch.full((300_000,), value), "b": torch.arange(10.0) + value, "step": 3, "lr": 0.1}


class Trace:
    """What was entered while it is on.

    Attributes:
        entered: The files, relative to the package, in the order in which they were first entered.
        switch_count: How often a call went to another file than the one before it.
    """

    def __init__(self, package: Path) -> None:
        self.entered: dict[str, None] = {}
        self.switch_count = 0
        self._prefix = f"{package}{os.sep}"
        self._thread = threading.get_ident()
        self._last = ""

    def __enter__(self) -> Self:
        threading.setprofile(self._event)
        sys.setprofile(self._event)
        return self

    def __exit__(self, *_: object) -> None:
        sys.setprofile(None)
        threading.setprofile(None)

    def _event(self, frame: FrameType, event: str, _: object) -> None:
        name = frame.f_code.co_filename
        if event != "call" or not name.startswith(self._prefix):
            return
        name = name.removeprefix(self._prefix)
        self.entered.setdefault(name)
        if threading.get_ident() == self._thread and name != self._last:
            self.switch_count += 1
            self._last = name


def traced(name: str, folder: Path) -> Trace:
    """Return what one act enters, done in this process."""
    import ckstore

    ACTS[name](folder / "first")()
    act = ACTS[name](folder / "traced")
    with Trace(Path(ckstore.__file__).parent) as trace:
        act()
    return trace


def in_process(name: str, tree: Path, *options: str) -> str:
    """Return what a process prints that traces one act of the ckstore in a checkout."""
    path = os.pathsep.join(str(tree / part) for part in ("", "cli", "migrations"))
    done = subprocess.run(
        [sys.executable, __file__, "--act", name, *options],
        env={**os.environ, "PYTHONPATH": path},
        cwd=tree,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return done.stdout


def main() -> None:
    """Print the counts of every act, or of one that is done here."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, default=HERE, help="another checkout of the project")
    parser.add_argument("--list", action="store_true", help="name the files")
    parser.add_argument("--act", choices=ACTS, help="only this one, in this process")
    given = parser.parse_args()
    if given.act is None:
        for name in ACTS:
            print(in_process(name, given.tree.resolve(), *(["--list"] if given.list else [])), end="")
        return
    with tempfile.TemporaryDirectory() as folder:
        found = traced(given.act, Path(folder))
    print(f"{given.act}: {len(found.entered)} files, {found.switch_count} switches")
    for path in found.entered if given.list else ():
        print(f"  {path}")


if __name__ == "__main__":
    main()
