"""Make an expensive thing once for all workers of a test run.

`pytest-xdist` has groups for this, which the pytest pinned here ignores; a lock file does not care.
"""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], None]) -> Path:
    """Return a directory that `make` filled; the first worker to ask fills it, the others wait.

    Args:
        factory: Its base directory is of this test run.
        name: Of the directory; the same name gives the same directory.
        make: Called with an empty directory. If it fails, the next worker tries again from scratch.
    """
    base = factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base
    done = shared / name / "done"
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if done.is_dir():
            return done.resolve()
        attempt = 0
        while (filled := shared / name / f"try-{attempt}").exists():
            attempt += 1
        filled.mkdir(parents=True)
        make(filled)
        # A link, since an environment of Python does not survive being renamed.
        done.symlink_to(filled.name)
    return done.resolve()
