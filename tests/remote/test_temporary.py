"""The leftovers of `Store.open` of a URL in the temporary directory."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from tests.support.s3_server import Service

_READER = """
import sys, time
from ckstore import Store
store = Store.open("s3://ck-test/run")
print(len(store.checkpoints()), flush=True)
time.sleep(600)
"""


@pytest.fixture
def temporary(tmp_path: Path, service: Service, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return an empty temporary directory for this process and its children, and create a remote with a checkpoint."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{service.port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    place = tmp_path / "temporary"
    place.mkdir()
    monkeypatch.setenv("TMPDIR", str(place))
    monkeypatch.setattr(tempfile, "tempdir", None)
    store = Store.init(tmp_path / "store")
    store.save({"w": np.arange(1000)}, step=1)
    store.remotes.add("cold", "s3://ck-test/run")
    store.push(1, "cold")
    return place


@contextmanager
def reader() -> Iterator[subprocess.Popen[str]]:
    """Start a process that has the remote open; it is killed at the end."""
    with subprocess.Popen([sys.executable, "-c", _READER], stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "1\n"
            yield process
        finally:
            process.kill()


def test_directories_of_killed_processes_are_removed_and_others_kept(temporary: Path) -> None:
    with reader() as killed, reader() as living:
        killed.kill()
        killed.wait()
        assert len(os.listdir(temporary)) == 2
        foreign = temporary / "ckstore-remote-elsewhere-1"
        foreign.mkdir()

        with Store.open("s3://ck-test/run") as store:
            assert len(os.listdir(temporary)) == 3  # its own, that of the living process, and that of another host
            assert np.array_equal(store.load(1)["w"], np.arange(1000))
        del store
        gc.collect()  # an error that was dealt with on the way, as on a busy machine, may hold it in a cycle

        assert len(os.listdir(temporary)) == 2
        assert living.poll() is None
    assert foreign.exists()


def test_a_clone_that_fails_leaves_nothing(temporary: Path, service: Service) -> None:
    service.habits.denies = True
    begun_s = time.monotonic()

    with pytest.raises(Exception, match="refused"):
        Store.open("s3://ck-test/run")

    assert os.listdir(temporary) == []
    assert time.monotonic() - begun_s < 60
