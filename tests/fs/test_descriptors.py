"""A handler of a signal that raises while something is opened leaves no descriptor open."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

from tests.faults.shim import built

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 240.0

PROGRAM = """
import gc, json, os, signal, sys
from itertools import count
from pathlib import Path
from ckstore.catalog.upkeep import create_or_migrate
from ckstore.errors import InUse
from ckstore.fs import direct, files, holders, links, locks, dirfd_stat
from ckstore.fs.dirfd_stat import OpenDir
from ckstore.fs.dirfd_stat import StorePath
from ckstore.fs.host.mounts import mount_id
from tests.faults.shim import Family, Fault, Preloaded

folder = Path(sys.argv[1])
(folder / "file").write_bytes(bytes(10))
deep = StorePath(str(folder)) / "a" / "b"
deep.path.mkdir(parents=True)
(deep / "file").path.write_bytes(bytes(10))


class Raised(Exception):
    pass


def handler(*_):
    raise Raised


def use(manager):
    with manager:
        pass


def locked(lock):
    with lock:
        pass


WAYS = {
    "opened": lambda: use(files.opened(folder / "file", os.O_RDONLY)),
    "opened to read": lambda: use(files.opened_to_read(folder / "file")),
    "opened regular": lambda: use(files.opened_regular(folder / "file")),
    "no regular file": lambda: files.read_file(folder, most_bytes=9),
    "read": lambda: files.read_file(folder / "file", most_bytes=99),
    "uncached": lambda: use(direct.opened_uncached(folder / "file")),
    "sync": lambda: files.sync_directory(folder),
    "shared": lambda: locked(locks.lock_shared(folder)),
    "exclusive": lambda: locked(locks.lock_exclusive(folder, timeout_s=0.0)),
    "lease": lambda: holders.holding_of(folder / "file"),
    "mount": lambda: mount_id(folder),
    "held": lambda: use(OpenDir(deep)),
    "in a store, opened": lambda: use(files.opened(deep / "file", os.O_RDONLY)),
    "in a store, read": lambda: files.read_file(deep / "file", most_bytes=99),
    "in a store, sync": lambda: files.sync_directory(deep),
    "in a store, shared": lambda: locked(locks.lock_shared(deep)),
    "in a store, renamed": lambda: links.rename(deep / "file", deep / "file"),
    "in a store, made": lambda: links.make_directory(deep / "new"),
    "in a store, looked at": lambda: (
        dirfd_stat.names(deep), dirfd_stat.listed(deep),
        dirfd_stat.status(deep / "file"), dirfd_stat.found_in(deep, ["file"]),
        dirfd_stat.symlink_texts(deep), list(dirfd_stat.walk(deep.parent)),
    ),
    "in a store, no directory": lambda: files.sync_directory(deep / "file" / "more"),
    "catalog": lambda: create_or_migrate(folder / "catalog.db", "", timeout_s=1.0),
}
signal.signal(signal.SIGUSR1, handler)
shim = Preloaded()
EVERY = sum(Family)
found = {}
for name, way in WAYS.items():
    before, left, raised, hits = os.listdir("/proc/self/fd"), [], 0, 0
    for at in count(1):
        shim.arm(Fault("signal", at, families=EVERY), folder, Path(sys.argv[2]))
        try:
            way()
        except Raised:
            raised += 1
        except Exception:
            pass
        shim.disarm()
        gc.collect()
        if not shim.hits:
            break
        hits += 1
        for opened in set(os.listdir("/proc/self/fd")) - set(before):
            try:
                where = os.readlink(f"/proc/self/fd/{opened}")
            except OSError:  # the one that listed
                continue
            if where.startswith(str(folder)):
                left.append((at, where))
        before = os.listdir("/proc/self/fd")
    found[name] = {"left": left, "raised": raised, "hits": hits}
print(json.dumps(found))
"""


def test_a_handler_that_raises_at_any_call_leaves_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()

    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "folder"), str(tmp_path / "calls")],
        env={"LD_PRELOAD": str(built()), "PYTHONPATH": f"{_ROOT}:{_ROOT}/migrations"},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert len(found) == 21
    assert {way: one["left"] for way, one in found.items() if one["left"]} == {}
    assert [way for way, one in found.items() if not one["hits"] >= one["raised"] > 0] == []


def test_one_function_opens_descriptors() -> None:
    uses = {
        str(path.relative_to(_ROOT / "ckstore")): [
            node
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Attribute) and ast.unparse(node) == "os.open"
        ]
        for path in (_ROOT / "ckstore").rglob("*.py")
    }

    # `open_descriptor`, and the walk, which opens one directory after another in C code as well
    assert {name: len(found) for name, found in uses.items() if found} == {"fs/dirfd_stat.py": 2}
