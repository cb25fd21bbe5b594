"""The storage for torch_checkpointing beside everything else that changes its store, and beside other trainings."""

from __future__ import annotations

import os
import pickle
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch_checkpointing.storage.base_storage import Storage

from ckstore import BytesElsewhere, CkstoreError, CkstoreWarning, DamagedBlob, InUse, RetentionPolicy, RunInUse, Store
from ckstore.catalog.catalog import Catalog
from ckstore.fs import locks
from ckstore.integrations.torch_checkpointing import CkstoreStorageConfig, release_unfinished
from tests.integrations.storage_cases import manager
from tests.integrations.test_torch_checkpointing import save
from tests.ops.compact.test_compact import history
from tests.support.damage import blobs_by_size, flip
from tests.support.look import directory_of
from tests.support.stores import check_store
from tests.support.users import GROUP, common_folder, users

pytestmark = [pytest.mark.filterwarnings("default")]
_WAIT_S = 120.0
_OTHER = """
import sys
from pathlib import Path
from ckstore import CkstoreError
from ckstore.integrations.torch_checkpointing import CkstoreStorageConfig
store, folder = sys.argv[1], Path(sys.argv[2])
storage = CkstoreStorageConfig(store, folder).create_storage()
def save(name, files):
    for file, data in files.items():
        storage.mkdir((folder / f"tmp_{name}" / file).parent)
        storage.write(folder / f"tmp_{name}" / file, data)
    try:
        storage.rename(folder / f"tmp_{name}", folder / name, is_directory=True)
    except (CkstoreError, OSError) as error:
        print(type(error).__name__)
    else:
        print("saved")
"""
"""What another process begins with."""


class Training:
    """A folder whose checkpoints are in a store, and the saved states."""

    def __init__(self, store: Store, folder: Path) -> None:
        self.store, self.folder = store, folder
        folder.mkdir(exist_ok=True)
        self.files: dict[str, dict[str, bytes]] = {}
        self.storage = self.another()

    def another(self, **options: Any) -> Storage:
        """Return a storage for the same folder, as of another process that has loaded nothing."""
        return CkstoreStorageConfig(self.store.path, self.folder, **options).create_storage()

    def save(self, *names: str, storage: Storage | None = None) -> None:
        """Save checkpoints with random files."""
        for name in names:
            files = {"model.pt": os.urandom(40_000), "rank_0/optim.pt": os.urandom(300)}
            save(storage or self.storage, self.folder, name, files)
            self.files[name] = files

    def check(self, *names: str, storage: Storage | None = None) -> None:
        """Check that the folder has these checkpoints, whole."""
        for each in [storage] if storage else [self.storage, self.another()]:
            assert each.ls(self.folder) == sorted(names)
            for name in names:
                assert each.ls(self.folder / name) == ["model.pt", "rank_0"]
                for file, data in self.files[name].items():
                    assert each.getsize(self.folder / name / file) == len(data)
                    assert each.read(self.folder / name / file) == data


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    torch.set_num_threads(1)
    made = Training(Store.init(tmp_path / "store"), tmp_path / "out")
    yield made
    release_unfinished()
    with Store.open(made.store.path) as store:
        store.gc(now=True)
    check_store(made.store.path)


def other(training: Training, code: str) -> subprocess.Popen[str]:
    """Run code with a storage for the same folder in another process."""
    command = [sys.executable, "-c", _OTHER + code, str(training.store.path), str(training.folder)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def test_evicted_checkpoints_are_listed_loaded_replaced_and_removed(training: Training, tmp_path: Path) -> None:
    training.save("step-1", "step-2", "step-3")
    training.store.remotes.add("cold", tmp_path / "cold")
    training.store.push(remote="cold", all=True)
    for step in (1, 2):
        training.store.evict(step, "cold")
    training.check("step-1", "step-2", "step-3")

    with pytest.raises(FileExistsError):
        training.save("step-2")
    storage = training.another(if_exists="replace")
    storage.read(training.folder / "step-2" / "model.pt")
    training.save("step-2", storage=storage)
    shutil.rmtree(training.folder / "tmp_step-2", ignore_errors=True)
    training.check("step-1", "step-2", "step-3")

    (tmp_path / "cold").rename(tmp_path / "offline")
    assert storage.exists(training.folder / "step-1" / "model.pt")
    with pytest.raises(BytesElsewhere):
        training.another().read(training.folder / "step-1" / "model.pt")
    storage.rmdir(training.folder / "step-1")
    training.check("step-2", "step-3")


def test_what_was_pulled_is_trained_on_and_no_other_training_is_continued(training: Training, tmp_path: Path) -> None:
    training.save("step-1", "step-2")
    training.store.remotes.add("cold", tmp_path / "cold")
    training.store.push(remote="cold", all=True)
    pulled = Training(Store.init(tmp_path / "pulled"), tmp_path / "other")
    pulled.store.remotes.add("cold", tmp_path / "cold")
    pulled.store.pull(remote="cold", all=True)
    pulled.files = {**training.files}
    pulled.check("step-1", "step-2", storage=pulled.storage)

    with pytest.raises(RunInUse):
        pulled.save("step-3", storage=CkstoreStorageConfig(pulled.store.path, pulled.folder).create_storage())
    storage = pulled.another(if_exists="replace")
    storage.read(pulled.folder / "step-2" / "model.pt")
    pulled.save("step-3", storage=storage)
    pulled.check("step-1", "step-2", "step-3")
    assert pulled.store.info(3).parent == training.store.info(2).id

    # Into the run of another training: that one does not replace what came.
    own = Training(Store.init(tmp_path / "own"), tmp_path / "out")
    storage = own.another(if_exists="replace")
    own.save("step-9", storage=storage)
    own.store.remotes.add("cold", tmp_path / "cold")
    own.store.pull(remote="cold", all=True)
    with pytest.raises(RunInUse):
        own.save("step-2", storage=storage)
    shutil.rmtree(own.folder / "tmp_step-2")
    own.files |= training.files
    own.check("step-1", "step-2", "step-9", storage=storage)
    for store in (pulled.store, own.store):
        check_store(store.path)


@pytest.mark.parametrize("in_background", [False, True])
def test_each_save_is_mirrored(tmp_path: Path, in_background: bool) -> None:
    store, folder = Store.init(tmp_path / "store"), tmp_path / "out"
    store.remotes.add("cold", tmp_path / "cold")
    store.config.mirror = "cold"
    saves = manager(str(store.path), str(folder), in_background=in_background)
    for step in (1, 2):
        saves.save(f"{folder}/step-{step}", {"model": {"w": torch.arange(9.0) + step}, "step": step})
    saves.close()

    deadline = time.monotonic() + _WAIT_S
    while (status := store.mirror_status()) is None or status.behind:
        assert time.monotonic() < deadline, "nothing was pushed"
        time.sleep(0.1)
    store.config.mirror = None
    pulled = Store.init(tmp_path / "pulled")
    pulled.remotes.add("cold", tmp_path / "cold")
    pulled.pull(remote="cold", all=True)
    target = {"model": {"w": torch.zeros(9)}, "step": 0}
    manager(str(pulled.path), str(folder)).load(f"{folder}/step-2", target)
    assert torch.equal(target["model"]["w"], torch.arange(9.0) + 2)  # type: ignore[index]
    check_store(pulled.path)


def test_what_is_deleted_or_replaced_comes_back_at_its_path(training: Training) -> None:
    training.store.config.undo_by_hand_s = training.store.config.undo_by_rule_s = 3600
    storage = training.another(if_exists="replace")
    training.save("step-1", "step-2", "step-3", storage=storage)
    storage.rmdir(training.folder / "step-2")
    training.check("step-1", "step-3")
    training.store.undo("main@2")
    training.check("step-1", "step-2", "step-3")

    storage.rmdir(training.folder / "step-3")
    training.save("step-3", storage=storage)
    training.store.undo("main@3")  # the newer one is at this path
    training.check("step-1", "step-2", "step-3")

    training.store.prune(RetentionPolicy(keep_last=1))
    training.store.gc()
    training.check("step-3")
    training.save("step-4", storage=storage)
    training.check("step-3", "step-4")
    training.store.undo("main@1")
    training.check("step-1", "step-3", "step-4")


def test_compacted_checkpoints_are_read_replaced_and_removed(training: Training) -> None:
    pytest.importorskip("zstandard")
    for step, state in zip(range(6), history(), strict=False):
        directory = training.folder / f"tmp_step-{step}"
        training.storage.mkdir(directory / "rank_0")
        torch.save(state, directory / "model.pt")
        (directory / "rank_0" / "optim.pt").write_bytes(b"1")
        names = ("model.pt", "rank_0/optim.pt")
        training.files[f"step-{step}"] = {name: (directory / name).read_bytes() for name in names}
        training.storage.rename(directory, training.folder / f"step-{step}", is_directory=True)
    steps = [f"step-{step}" for step in range(6)]
    training.check(*steps)
    assert training.store.compact().encoded_count
    training.check(*steps)

    storage = training.another(if_exists="replace")
    storage.read(training.folder / "step-5" / "model.pt")
    training.save("step-5", storage=storage)
    storage.rmdir(training.folder / "step-0")
    training.check(*steps[1:])


def test_a_renamed_run_is_found_by_its_new_name(training: Training) -> None:
    training.save("step-1", "step-2")
    training.store.rename_run("main", "old")
    assert training.storage.ls(training.folder) == []
    assert not training.storage.exists(training.folder / "step-1")

    storage = training.another(run="old")
    training.check("step-1", "step-2", storage=storage)
    storage.read(training.folder / "step-2" / "model.pt")
    training.save("step-3", storage=storage)
    training.check("step-1", "step-2", "step-3", storage=storage)
    assert training.store.info("old@3").parent == training.store.info("old@2").id


def test_a_damaged_checkpoint_is_saved_again_at_its_path(training: Training, tmp_path: Path) -> None:
    training.save("step-1", "step-2", "step-3")
    manifest = directory_of(training.store, 3) / "manifest.json"
    manifest.chmod(0o644)
    flip(manifest)
    assert training.storage.ls(training.folder) == ["step-1", "step-2"]
    for storage in (training.storage, training.another()):
        with pytest.raises(DamagedBlob):
            storage.read(training.folder / "step-3" / "model.pt")

    training.save("step-3")
    training.check("step-1", "step-2", "step-3")

    training.store.remotes.add("cold", tmp_path / "cold")
    training.store.push(remote="cold", all=True)
    flip(blobs_by_size(training.store, 2)[-1])
    assert not training.store.verify().ok
    training.store.verify(repair=True)
    training.check("step-1", "step-2", "step-3")


def test_a_restored_store_is_read_and_trained_on(training: Training, tmp_path: Path) -> None:
    training.save("step-1", "step-2")
    subprocess.run(["cp", "-a", training.store.path, tmp_path / "backup"], check=True)
    training.save("step-3")
    training.store.path.rename(tmp_path / "lost")
    with pytest.raises(CkstoreError):
        training.storage.exists(training.folder / "step-1")
    (tmp_path / "backup").rename(training.store.path)

    training.check("step-1", "step-2")
    storage = training.another()
    storage.read(training.folder / "step-2" / "model.pt")
    training.save("step-3", storage=storage)
    training.check("step-1", "step-2", "step-3")


def test_files_of_another_training_never_become_part_of_a_checkpoint(training: Training) -> None:
    training.save("step-1")
    with other(training, "save('step-2', {'stray': b'x', 'rank_1/stray': b'x'})") as process:
        assert process.communicate(timeout=_WAIT_S)[0] == "RunInUse\n"
    assert "tmp_step-2" in training.storage.ls(training.folder)

    training.save("step-2")
    training.check("step-1", "step-2")


def test_two_trainings_cannot_write_one_checkpoint_at_once(training: Training) -> None:
    code = "storage.mkdir(folder / 'tmp_step-1'); print('begun', flush=True); sys.stdin.readline(); save('step-1', {})"
    with other(training, code) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "begun\n"
        with pytest.raises(InUse, match=f"tmp_step-1 is being written by another process: PID {process.pid}") as busy:
            training.save("step-1")
        assert "give each a folder and a run" in busy.value.hint
        process.kill()
        process.wait(_WAIT_S)

    training.save("step-1")
    with other(training, "storage.read(folder / 'step-1/model.pt'); save('step-2', {'a': b'2'})") as go:
        assert go.communicate(timeout=_WAIT_S)[0] == "saved\n"
    with pytest.raises(RunInUse, match="two processes train in it"):
        training.save("step-3")
    shutil.rmtree(training.folder / "tmp_step-3")


def test_a_directory_is_removed_before_another_training_may_use_it(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the removal would take the files that the other one has begun to write."""
    remove, locked = shutil.rmtree, []

    def look(path: Path, *args: Any, **options: Any) -> None:
        if Path(path).name == "tmp_step-1":
            locked.append(locks.is_locked(path))
        remove(path, *args, **options)

    monkeypatch.setattr(shutil, "rmtree", look)
    training.save("step-1")
    assert locked == [True]
    assert not (training.folder / "tmp_step-1").exists()
    training.check("step-1")


def test_ranks_of_one_save_share_its_directory(training: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    config = CkstoreStorageConfig(training.store.path, training.folder)
    code = "storage.mkdir(folder / 'tmp_step-1'); storage.write(folder / 'tmp_step-1/rank_1', b'1'); print('written')"
    with other(training, code) as process:
        assert process.communicate(timeout=_WAIT_S)[0] == "written\n"

    # The process that writes in the background gets the configuration, and not the group of the ranks.
    config = pickle.loads(pickle.dumps(CkstoreStorageConfig(training.store.path, training.folder)))
    monkeypatch.delenv("WORLD_SIZE")
    save(config.create_storage(), training.folder, "step-1", {"rank_0": b"0"})
    assert training.storage.ls(training.folder / "step-1") == ["rank_0", "rank_1"]


def test_a_name_without_a_step_is_replaced_after_later_steps(training: Training) -> None:
    storage = training.another(if_exists="replace")
    training.save("step-100", "best", "step-200", storage=storage)
    training.save("best", storage=storage)
    training.check("best", "step-100", "step-200")
    best = training.store.info("latest")
    assert [info.step for info in training.store.checkpoints()] == [100, 200, 201]
    assert best.parent == training.store.info(200).id
    training.save("step-300", storage=storage)

    training.store.tag("good", best)
    with pytest.warns(CkstoreWarning, match="the older checkpoint of .*best is kept: main@201 has the tag good"):
        training.save("best", storage=storage)
    training.check("best", "step-100", "step-200", "step-300")
    training.store.untag("good")
    storage.rmdir(training.folder / "best")
    training.check("step-100", "step-200", "step-300")


def test_a_step_that_another_path_has_says_what_to_do(training: Training) -> None:
    training.save("step-1", "best")
    with pytest.raises(
        FileExistsError, match=r"does not replace it \(save to a path with another number, or delete main@2"
    ):
        training.save("step-2")
    shutil.rmtree(training.folder / "tmp_step-2")


def test_a_look_at_an_unchanged_checkpoint_does_not_ask_the_catalog(
    training: Training, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = training.another(if_exists="replace")
    training.save("step-1", "best", storage=storage)
    asked: list[str] = []
    current = Catalog.current

    def count(self: Catalog, *arguments: Any, **options: Any) -> Any:
        asked.append("catalog")
        return current(self, *arguments, **options)

    monkeypatch.setattr(Catalog, "current", count)
    for name in ("step-1", "best"):
        training.check("best", "step-1", storage=training.storage)
        asked.clear()
        for _ in range(3):
            assert training.storage.exists(training.folder / name / "model.pt")
            assert training.storage.getsize(training.folder / name / "model.pt") == 40_000
        assert asked == []
        storage.read(training.folder / name / "model.pt")
        training.save(name, storage=storage)  # by another handle
        training.check("best", "step-1", storage=training.storage)
        assert asked
    training.store.delete(1)
    training.check("best", storage=training.storage)


def test_members_of_a_group_load_and_continue_what_another_has_saved() -> None:
    code = (
        _OTHER + "import json, os\n"
        "os.umask(0o007)\nload, name = sys.argv[3:]\n"
        "read = storage.read(folder / load / 'a').decode() if load else ''\n"
        "save(name, {'a': name.encode()})\nprint(json.dumps([read, storage.ls(folder)]))"
    )
    with common_folder() as folder:
        one, two = users(folder, 2, groups=(GROUP,))
        store = folder / "store"
        for place in (store, folder / "out"):
            place.mkdir()
            os.chown(place, one.uid, GROUP)
            place.chmod(0o2770)
        assert one.ckstore("init", store).returncode == 0

        assert one.python(code, store, folder / "out", "", "step-1") == ["", ["step-1"]]
        assert two.python(code, store, folder / "out", "step-1", "step-2") == ["step-1", ["step-1", "step-2"]]
        assert one.python(code, store, folder / "out", "step-2", "step-3")[0] == "step-2"
        # An unreadable directory of another user does not mean that another process is writing it.
        other = _OTHER + "import json, os\nos.umask(0o077)\nstorage.mkdir(folder / 'tmp_step-4')"
        assert one.python(other, store, folder / "out") is None
        tried = (
            "storage.mkdir(folder / 'tmp_step-4')\nexcept PermissionError as error:\n    print(json.dumps(str(error)))"
        )
        assert "tmp_step-4" in two.python(f"{_OTHER}import json\ntry:\n    {tried}", store, folder / "out")
        with Store.open(store) as opened:
            assert [info.step for info in opened.checkpoints()] == [1, 2, 3]
            assert opened.info(3).parent == opened.info(2).id
            assert opened.verify().ok
