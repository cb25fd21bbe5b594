"""A store and an open checkpoint in other processes: forked children use them, and pickled they are opened again."""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import traceback
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

import ckstore
from ckstore import BadInput, NoSuchRef, OpenCheckpoint, Store
from tests.ops import spawned_loader
from tests.support.checkpoint_dirs import checkpoint_dir


def test_a_pickled_store_is_opened_again_with_what_it_was_opened_with(tmp_path: Path) -> None:
    catalog = tmp_path / "catalog" / "c.db"
    store = Store.init(tmp_path / "s", run="gpt", catalog_path=catalog)
    store.save({"w": np.arange(5)}, 1)

    again: Store = pickle.loads(pickle.dumps(store))
    reader: Store = pickle.loads(pickle.dumps(Store.open(store.path, readonly=True, catalog_path=catalog)))

    assert (again.path, again.run) == (store.path, "gpt")
    assert again.load("latest")["w"].tolist() == [0, 1, 2, 3, 4]
    assert again.save({"w": np.arange(6)}).name == "gpt@2"
    assert store.latest() == again.latest()
    assert reader.load(2)["w"].size == 6
    assert not (store.path / "catalog.db").exists()


def test_a_pickled_open_checkpoint_is_opened_again_by_itself(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    store.save({"w": np.arange(5)}, 1)

    with store.open_checkpoint() as opened, ckstore.open_checkpoint(checkpoint_dir(store.path, "main", 1)) as alone:
        pickled = [pickle.dumps(opened), pickle.dumps(alone)]
        infos = [opened.info, alone.info]
    for data, info in zip(pickled, infos, strict=True):
        again: OpenCheckpoint = pickle.loads(data)
        with again:
            assert again.info == info
            assert again["w"].tolist() == [0, 1, 2, 3, 4]
            assert again.load()["w"].size == 5

    with pytest.raises(BadInput, match="was closed"):
        pickle.dumps(opened)


def test_a_pickled_open_checkpoint_is_never_another_one(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    store.save({"w": np.arange(5)}, 1)
    with store.open_checkpoint() as opened:
        data = pickle.dumps(opened)

    store.save({"w": np.arange(6)}, 1, if_exists="replace")
    with pytest.raises(NoSuchRef, match="it was removed"):
        pickle.loads(data)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_reads_and_saves_with_what_its_parent_has_open(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    store.save({"w": np.arange(12).reshape(4, 3)}, 1)

    with store.open_checkpoint() as opened:
        rows = opened.slice("w")
        assert rows[0].tolist() == [0, 1, 2]

        def in_child() -> None:
            assert rows[1].tolist() == [3, 4, 5]
            assert opened["w"].sum() == 66
            opened.close()
            assert store.load(1)["w"].sum() == 66
            store.save({"w": np.arange(3)}, 2)

        assert _forked(in_child) == 0
        assert rows[2].tolist() == [6, 7, 8]
    assert store.latest() == store.info(2)


@pytest.mark.filterwarnings("ignore:.*use of fork.*:DeprecationWarning")
def test_a_forked_child_opens_nothing_again_that_was_closed(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "s")
    store.save({"w": np.arange(3)}, 1)
    with store.open_checkpoint() as opened:
        pass

    def in_child() -> None:
        with pytest.raises(BadInput, match="was closed"):
            opened["w"]

    assert _forked(in_child) == 0


@pytest.mark.slow
@pytest.mark.whole  # what it is given is pickled above, and read
def test_a_spawned_worker_of_a_data_loader_reads_from_an_open_checkpoint(tmp_path: Path) -> None:
    command = [sys.executable, spawned_loader.__file__, str(tmp_path / "s")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "[3, 12, 21, 30]\n", "")


def _forked(work: Callable[[], None]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            signal.alarm(120)  # a deadlock ends the child
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
