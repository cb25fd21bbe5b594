"""Who keeps gc, delete and settings out by a lock: the error names the process, also one that may only read."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckstore import InUse, Store
from ckstore.fs import lock_holders
from tests.support.checkpoint_dirs import checkpoint_dir

_HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDONLY)
fcntl.flock(fd, getattr(fcntl, sys.argv[2]))
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def holding(path: Path, how: str = "LOCK_SH") -> Iterator[subprocess.Popen[str]]:
    """Let another process have a lock on a directory."""
    command = [sys.executable, "-S", "-c", _HOLD, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        assert process.stdin is not None
        process.stdin.close()


@pytest.mark.parametrize(
    "how, says", [("LOCK_SH", "a process that is not a gc has locked trash/"), ("LOCK_EX", "another gc is")]
)
def test_a_gc_that_is_kept_out_names_the_process(
    store: Store, monkeypatch: pytest.MonkeyPatch, how: str, says: str
) -> None:
    monkeypatch.setattr("ckstore.ops.free.gc._START_TIMEOUT_S", 0.05)
    store.save({"w": np.arange(10)}, step=1)
    with holding(store.path / "trash", how) as process:
        with pytest.raises(InUse, match=rf"{says}.*: PID {process.pid} \(.*\) of uid \d+ \(") as raised:
            store.gc()
        assert ("ask its user" in raised.value.hint) == (how == "LOCK_SH")
    assert store.gc().freed_count == 0


def test_a_delete_names_the_process_that_reads_the_checkpoint(store: Store) -> None:
    store.save({"w": np.arange(10)}, step=1)
    store.save({"w": np.arange(11)}, step=2)
    with (
        holding(checkpoint_dir(store.path, "main", 1)) as process,
        pytest.raises(InUse, match=rf"main@1 is open for reading: PID {process.pid} \("),
    ):
        store.delete(1)
    store.delete(1)


def test_a_setting_names_the_process_that_has_the_store_locked(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.objects.documents.atomic_file._TIMEOUT_S", 0.1)
    with (
        holding(store.path) as process,
        pytest.raises(InUse, match=rf"is locked by another process: PID {process.pid} \("),
    ):
        store.config.threads = 3
    store.config.threads = 3


def test_where_the_kernel_does_not_tell_the_error_is_as_before(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    store.save({"w": np.arange(10)}, step=1)
    store.save({"w": np.arange(11)}, step=2)
    monkeypatch.setattr(lock_holders, "lock_holders", lambda _: [])
    with (
        holding(checkpoint_dir(store.path, "main", 1)),
        pytest.raises(InUse, match=r"main@1 is open for reading \(close it"),
    ):
        store.delete(1)
