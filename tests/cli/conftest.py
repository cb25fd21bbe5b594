"""Real stores, and ways to run the command line: in this process, in one of its own, on a terminal."""

from __future__ import annotations

import errno
import fcntl
import os
import pty
import shutil
import struct
import subprocess
import sys
import termios
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from ckstore import Store
from ckstore_cli.app import app

TIMEOUT_S = 300.0  # a busy machine takes long to import torch several times
ROOT = Path(__file__).resolve().parents[2]

Run = Callable[..., Result]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run ``ckstore ARGS`` in this process; the result has exit_code, stdout and stderr."""

    def invoke(*args: object, env: Mapping[str, str] | None = None) -> Result:
        return CliRunner().invoke(app, [str(arg) for arg in args], env=env)

    return invoke


def process(
    *args: object, env: Mapping[str, str] | None = None, cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run ``ckstore ARGS`` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "ckstore_cli", *map(str, args)],
        check=False,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        env={**environment(), **(env or {})},
        cwd=cwd,
    )


def environment() -> dict[str, str]:
    """Return the environment of a process that can import ckstore without being installed."""
    roots = [str(ROOT), str(ROOT / "cli"), str(ROOT / "migrations")]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(roots), "TERM": "xterm"}


def on_terminal(*args: object, columns: int = 80, env: Mapping[str, str] | None = None) -> tuple[int, str]:
    """Run ``ckstore ARGS`` with a terminal of that width; return exit status and what it showed."""
    ours, theirs = pty.openpty()
    try:
        fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
        child = subprocess.Popen(
            [sys.executable, "-m", "ckstore_cli", *map(str, args)],
            stdin=theirs,
            stdout=theirs,
            stderr=theirs,
            env={**environment(), **(env or {})},
        )
    finally:
        os.close(theirs)
    shown = b""
    try:
        while chunk := _read(ours):
            shown += chunk
        return child.wait(TIMEOUT_S), shown.decode().replace("\r\n", "\n")
    finally:
        child.kill()
        child.wait()
        os.close(ours)


def _read(fd: int) -> bytes:
    try:
        return os.read(fd, 65536)
    except OSError as error:
        if error.errno == errno.EIO:  # the other side is closed
            return b""
        raise


@pytest.fixture
def saved(saved_once: Path) -> Iterator[Path]:
    """A store with three checkpoints of `main` and two of `sweep-7`, which a test only reads: else it fails."""
    before = _kept_in(saved_once)
    yield saved_once
    assert _kept_in(saved_once) == before, "other tests read this store: take `own_saved` to change it"


@pytest.fixture
def own_saved(saved_once: Path, tmp_path: Path) -> Path:
    """As `saved`, to be changed."""
    return shutil.copytree(saved_once, tmp_path / "own" / ".ckstore", symlinks=True)


_KEPT = ("checkpoints", "refs", "pins", "remotes", "trash", "store.json", "config.json")


def _kept_in(store: Path) -> dict[str, int]:
    """Return the names that a reader leaves as they are, and when the files were changed."""
    found = (path for name in _KEPT for path in (store / name, *(store / name).rglob("*")) if path.exists())
    # Of directories the names are enough: an opening may touch one.
    return {str(path): 0 if path.is_dir() else path.stat().st_ctime_ns for path in found}


@pytest.fixture(scope="session")
def saved_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Make the store of `saved`.

    The third of `main` was saved after going back to step 150, so the order is not that of steps.
    """
    path = tmp_path_factory.mktemp("saved") / ".ckstore"
    rng = np.random.default_rng(0)
    state: dict[str, object] = {
        "layers": [{"weight": rng.standard_normal((64, 256), dtype="f4"), "a.b": np.arange(3, dtype="<i4")}],
        "blob": b"\0" * 5000,
        "lr": 0.1,
    }
    with Store.init(path) as store:
        first = store.save(state, step=100, metrics={"loss": 3.25, "nan": float("nan")})
        store.save(
            state,
            step=200,
            parent=first,
            metrics={"loss": 2.5},
            tags=["best", "prod"],
            message="after the warmup\nsecond line",
            metadata={"host": "a", "seed": 2**60},
        )
        store.save({"x": np.zeros(10)}, step=7, run="sweep-7", message="\x1b[2Jgone\udcff")
        store.save({"lr": 0.1}, step=8, run="sweep-7")
        store.save(state, step=150)
    return path
