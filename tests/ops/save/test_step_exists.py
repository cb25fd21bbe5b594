"""The error of a step that is taken names the process that saved the other checkpoint, if this host knows it."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import StepExists
from ckstore.objects.layout import HostView
from ckstore.ops.save import step_author
from tests.support.stores import check_store

_OTHER = """
import sys
import numpy as np
from ckstore import Store
store = Store.open(sys.argv[1])
pending = store.save_async({"w": np.zeros(3)}, step=1) if sys.argv[2] == "async" else None
info = pending.result() if pending else store.save({"w": np.zeros(3)}, step=1)
print("saved", flush=True)
sys.stdin.readline()
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    Store.init(tmp_path / "s").close()
    return tmp_path / "s"


def refused(path: Path, *, background: bool = False) -> StepExists:
    with Store.open(path) as store:
        save = (lambda *args: store.save_async(*args).result()) if background else store.save
        with pytest.raises(StepExists, match="has another checkpoint at step 1") as caught:
            save({"w": np.ones(3)}, 1)
    check_store(path)
    return caught.value


@pytest.mark.parametrize("how", ["save", "async"])
def test_the_other_process_is_named_while_it_runs_and_when_it_has_ended(path: Path, how: str) -> None:
    command = [sys.executable, "-c", _OTHER, str(path), how]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "saved\n"
        running = refused(path)
        in_background = refused(path, background=True)
        other.communicate("\n", timeout=60)
    ended = refused(path)

    for error in (running, in_background):
        assert f" by PID {other.pid} ({sys.executable} -c" in error.message
        assert error.message.endswith("which is running")
        assert error.hint.startswith("give each training its own run (run=) if both are to run; or choose")
    assert ended.message.endswith(f" by PID {other.pid}, which has ended")
    assert "is running" not in ended.message
    assert "two are meant" not in ended.hint
    assert ended.id == running.id == Store.open(path).info(1).id


@pytest.mark.parametrize("background", [False, True])
def test_this_process_is_named_as_such(path: Path, background: bool) -> None:
    with Store.open(path) as store:
        if background:
            store.save_async({"w": np.zeros(3)}, step=1).result()
        else:
            store.save({"w": np.zeros(3)}, step=1)

    for again in (False, True):
        assert refused(path, background=again).message.endswith(" by this process")


def test_a_process_that_took_the_number_of_another_is_not_named(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Store.open(path) as store:
        store.save({"w": np.zeros(3)}, step=1)
    later = SimpleNamespace(time=lambda: 2**33, clock_gettime=lambda _: 0, CLOCK_BOOTTIME=0)
    monkeypatch.setattr(step_author, "time", later)

    assert refused(path).message.endswith(f" by PID {os.getpid()}, which has ended")


def test_none_is_named_where_the_journal_is_lost_or_of_several_hosts(path: Path) -> None:
    with Store.open(path) as store:
        store.save({"w": np.zeros(3)}, step=1)
        named = refused(path)
        local = store._context.layout
        store._context.layout = replace(local, view=HostView("other hosts may use it"))
        with pytest.raises(StepExists) as caught:
            store.save({"w": np.ones(3)}, step=1)
        store._context.layout = local
    (path / "events.jsonl").unlink()
    lost = refused(path)

    assert caught.value.message == lost.message == named.message.removesuffix(" by this process")
