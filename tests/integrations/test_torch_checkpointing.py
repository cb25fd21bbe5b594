"""A folder of torch_checkpointing whose checkpoints are in a store looks like one on a disk, and loses nothing."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from torch_checkpointing import CheckpointManager
from torch_checkpointing.checkpoint_writer import CheckpointWriterConfig
from torch_checkpointing.config import SyncCheckpointSaverConfig
from torch_checkpointing.storage.base_storage import ReadArgs, Storage
from torch_checkpointing.storage.filesystem import LocalFileSystemStorage, LocalFileSystemStorageConfig

from ckstore import BadInput, CheckpointInfo, DamagedBlob, NoSuchRef, RetentionPolicy, RunInUse, Store, StoreNotFound
from ckstore.integrations import torch_checkpointing as storage_module
from ckstore.integrations.torch_checkpointing import CkstoreStorageConfig, release_unfinished
from ckstore.ops.read.open_checkpoint import OpenCheckpoint
from tests.integrations.storage_cases import manager
from tests.support.damage import blobs_by_size, flip
from tests.support.gloo import Group
from tests.support.stores import check_store
from tests.support.users import common_folder, users

CASES = Path(__file__).with_name("storage_cases.py")
pytestmark = [pytest.mark.filterwarnings("default")]


class Folders:
    """The same folder twice: on a disk, and with its checkpoints in a store."""

    def __init__(self, folder: Path) -> None:
        self.store = Store.init(folder / "store")
        self.kept, self.plain = folder / "kept", folder / "plain"
        for path in (self.kept, self.plain):
            path.mkdir()
        self.config = CkstoreStorageConfig(self.store.path, self.kept)
        self.storages: list[tuple[Storage, Path]] = [
            (self.config.create_storage(), self.kept),
            (LocalFileSystemStorage(LocalFileSystemStorageConfig(use_direct_io=False)), self.plain),
        ]

    def both(self, act: Callable[..., Any], *arguments: Any) -> Any:
        """Call a function with each storage and its folder; check that both do the same, and return it."""
        kept, plain = (self._tried(act, storage, path, *arguments) for storage, path in self.storages)
        assert kept == plain
        return kept

    @staticmethod
    def _tried(act: Callable[..., Any], *arguments: Any) -> Any:
        try:
            found = act(*arguments)
        except OSError as error:
            return type(error)
        return sorted(found) if isinstance(found, list) else found


@pytest.fixture
def folders(tmp_path: Path) -> Iterator[Folders]:
    torch.set_num_threads(1)
    made = Folders(tmp_path)
    yield made
    release_unfinished()
    check_store(made.store.path)


def write(storage: Storage, folder: Path, files: dict[str, bytes]) -> None:
    """Write files as a writer of torch_checkpointing does."""
    for name, data in files.items():
        storage.mkdir((folder / name).parent)
        storage.write(folder / name, data)


def save(storage: Storage, folder: Path, name: str, files: dict[str, bytes]) -> None:
    """Save a checkpoint as a writer of torch_checkpointing does."""
    write(storage, folder / f"tmp_{name}", files)
    storage.rename(folder / f"tmp_{name}", folder / name, is_directory=True)


def look(storage: Storage, folder: Path, path: str, what: str) -> Any:
    """Return what a reader of torch_checkpointing finds at a path."""
    if what == "glob":
        return [Path(found).name for found in storage.glob(f"{folder}/{path}")]
    if what == "stream":
        with storage.stream_read(folder / path, ReadArgs(pre_read_full_file=False)) as file:
            file.seek(1)
            return file.read()
    if what == "getsize" and storage.isdir(folder / path):
        return None  # a number of the filesystem
    return getattr(storage, what)(folder / path)


DESTINATIONS = ("absent", "empty directory", "directory", "file", "checkpoint")


def put(storage: Storage, folder: Path, name: str, destination: str) -> None:
    """Have something at the destination of a rename."""
    if destination in {"empty directory", "directory"}:
        (folder / name).mkdir()
    if destination == "directory":
        (folder / name / "file").write_bytes(b"there")
    if destination == "file":
        (folder / name).write_bytes(b"there")
    if destination == "checkpoint":
        save(storage, folder, name, {"model.pt": b"older"})


def rename(storage: Storage, folder: Path, name: str, source: str) -> None:
    """Rename a file or directory."""
    if source == "file":
        (folder / "tmp_file").write_bytes(b"new")
        storage.rename(folder / "tmp_file", folder / name)
    else:
        save(storage, folder, name, {"model.pt": b"new", "rank_0/optim.pt": b"newer"})


@pytest.mark.parametrize("destination", DESTINATIONS)
@pytest.mark.parametrize("source", ["file", "directory"])
@pytest.mark.parametrize("name", ["step-7", "final"])
def test_a_rename_keeps_the_contract(folders: Folders, source: str, destination: str, name: str) -> None:
    folders.both(put, name, destination)
    folders.both(rename, name, source)

    for inner in ("", "/model.pt", "/rank_0", "/rank_0/optim.pt", "/file"):
        for what in ("exists", "isdir", "read"):
            folders.both(look, f"{name}{inner}", what)
    committed = source == "directory" and destination in {"absent", "empty directory"}
    assert len(list(folders.store.checkpoints())) == (committed or destination == "checkpoint")


NAMES = st.sampled_from(["step-1", "step-2", "step-30", "final", "best"])
FILES = st.dictionaries(
    st.sampled_from(["model_0.pt", "model_1.pt", ".metadata", "rank_0/optim.pt", "rank_0/more/x", "rank_1/optim.pt"]),
    st.binary(max_size=3000),
    min_size=1,
)
PATHS = ["", "model_0.pt", "rank_0", "rank_0/more/x", "not there"]


@pytest.mark.property
@settings(max_examples=6, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(acts=st.lists(st.tuples(st.sampled_from(["save", "remove", "write"]), NAMES, FILES), max_size=6))
def test_a_folder_in_a_store_looks_like_one_on_a_disk(
    tmp_path_factory: pytest.TempPathFactory, acts: list[tuple[str, str, dict[str, bytes]]]
) -> None:
    folders = Folders(tmp_path_factory.mktemp("law"))
    for kind, name, files in acts:
        if kind == "save":
            folders.both(save, name, files)
        elif kind == "write":
            folders.both(lambda storage, folder, *of: write(storage, folder / f"tmp_{of[0]}", of[1]), name, files)
        elif folders.both(look, name, "exists"):
            folders.both(look, name, "rmdir")

    folders.both(look, "", "ls")
    folders.both(look, "step-*", "glob")
    for top in ("step-1", "final", "tmp_step-2"):
        for inner in PATHS:
            for what in ("exists", "isdir", "ls", "read", "getsize", "stream"):
                folders.both(look, f"{top}/{inner}", what)
    assert folders.store.verify().ok
    release_unfinished()
    check_store(folders.store.path)
    folders.store.close()


@pytest.mark.parametrize("in_background", [False, True])
def test_a_training_goes_on_from_what_it_loaded(tmp_path: Path, in_background: bool) -> None:
    folder = tmp_path / "out"
    Store.init(tmp_path / "store").close()
    state: dict[str, Any] = {"model": {"w": torch.arange(9.0)}, "step": 0}

    def train(steps: range, begin: int | None) -> None:
        of_run = manager(str(tmp_path / "store"), str(folder), in_background=in_background, if_exists="replace")
        if begin is not None:
            state.update(of_run.load(f"{folder}/step-{begin}", state))
        for step in steps:
            state["model"] = {"w": state["model"]["w"] + step}
            state["step"] = step
            of_run.save(f"{folder}/step-{step}", state)
        of_run.close()

    train(range(1, 4), None)
    train(range(3, 5), 2)
    with Store.open(tmp_path / "store") as store:
        found = {info.step: info for info in store.checkpoints()}
        assert [*found] == [1, 2, 3, 4]
        assert [found[step].parent for step in (2, 3, 4)] == [found[step].id for step in (1, 2, 3)]
        assert not any(info.warnings for info in found.values())
    target = {"model": {"w": torch.zeros(9)}, "step": 0}
    manager(str(tmp_path / "store"), str(folder)).load(f"{folder}/step-4", target)
    assert torch.equal(target["model"]["w"], torch.arange(9.0) + 1 + 2 + 3 + 4)  # type: ignore[index]

    with pytest.raises((RunInUse, RuntimeError), match="another training"):
        train(range(5, 6), None)
    check_store(tmp_path / "store")


def test_what_is_loaded_again_or_deleted_is_continued(folders: Folders) -> None:
    config = CkstoreStorageConfig(folders.store.path, folders.kept, if_exists="replace")
    folder, storage, loads = folders.kept, config.create_storage(), config.create_storage()

    def parent(step: int) -> str | None:
        save(storage, folder, f"step-{step}", {"model.pt": os.urandom(50)})
        return folders.store.info(step).parent

    assert parent(1) is None
    first = folders.store.info(1).id
    for _ in range(2):  # the second time is a rollback
        loads.read(folder / "step-1/model.pt")
        assert parent(2) == first
        assert parent(3) == folders.store.info(2).id

    third = folders.store.info(3).id
    other = CkstoreStorageConfig(folders.store.path, folder)
    storage, loads = other.create_storage(), other.create_storage()
    loads.read(folder / "step-3/model.pt")
    loads.rmdir(folder / "step-3")
    assert parent(4) == third


def test_threads_may_load_at_once(folders: Folders) -> None:
    storage, paths = folders.config.create_storage(), [folders.kept / f"step-{step}" / "model.pt" for step in (1, 2)]
    for path in paths:
        save(storage, folders.kept, path.parent.name, {"model.pt": path.parent.name.encode()})
    loads = [folders.config.create_storage() for _ in range(20)]

    with ThreadPoolExecutor(8) as pool:
        for each in loads:
            assert [*pool.map(each.read, paths * 8)] == [b"step-1", b"step-2"] * 8


def test_damage_is_found_by_who_reads_it(folders: Folders) -> None:
    data = os.urandom(100_000)
    storage = folders.config.create_storage()
    save(storage, folders.kept, "step-1", {"model.pt": data, "other": b"whole"})
    flip(blobs_by_size(folders.store, "latest")[-1])

    with pytest.raises(DamagedBlob, match=r"model\.pt"):
        storage.read(folders.kept / "step-1" / "model.pt")
    assert storage.read(folders.kept / "step-1" / "other") == b"whole"
    shutil.rmtree(folders.store.path)
    Store.init(folders.store.path).close()


def test_a_load_that_cannot_be_noted_fails_and_leaves_nothing_open(
    folders: Folders, monkeypatch: pytest.MonkeyPatch
) -> None:
    storage = folders.config.create_storage()
    save(storage, folders.kept, "step-1", {"model.pt": b"data"})
    write_text = Path.write_text

    def full(path: Path, *words: Any, **options: Any) -> int:
        write_text(path, "a part", encoding="ascii")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as patched:
        patched.setattr(Path, "write_text", full)
        for whole in (True, False):
            with pytest.raises(OSError, match="No space left"):
                storage.stream_read(folders.kept / "step-1" / "model.pt", ReadArgs(pre_read_full_file=whole))

    noted = folders.config._loaded
    assert list(noted.parent.glob(f"{noted.name}*")) == []
    assert storage.read(folders.kept / "step-1" / "model.pt") == b"data"
    storage.rmdir(folders.kept / "step-1")  # an open checkpoint could not be deleted


def test_a_checkpoint_never_changes(folders: Folders) -> None:
    storage, folder = folders.config.create_storage(), folders.kept
    save(storage, folder, "step-1", {"a": b"a", "b/c": b"c"})
    write(storage, folder / "tmp_step-2", {"a": b"other"})

    for change in (
        lambda: storage.write(folder / "step-1/a", b"x"),
        lambda: storage.stream_write(folder / "step-1/new"),
        lambda: storage.delete(folder / "step-1/a"),
        lambda: storage.rmdir(folder / "step-1/b"),
        lambda: storage.mkdir(folder / "step-1/d"),
        lambda: storage.rename(folder / "step-1", folder / "step-5", is_directory=True),
        lambda: storage.rename(folder / "tmp_step-2/a", folder / "step-1/a"),
    ):
        with pytest.raises(OSError, match="never changes") as refused:
            change()
        assert refused.value.errno == errno.EROFS
    assert storage.read(folder / "step-1/a") == b"a"


@pytest.mark.parametrize("what", ["exists", "isdir", "getsize", "read", "stream"])
@pytest.mark.parametrize("listed", [False, True])
def test_a_checkpoint_that_is_deleted_during_a_look_is_not_there(
    folders: Folders, monkeypatch: pytest.MonkeyPatch, what: str, listed: bool
) -> None:
    storage, folder = folders.config.create_storage(), folders.kept
    save(storage, folder, "step-1", {"rank_0/model.pt": b"data"})
    if listed:
        assert storage.exists(folder / "step-1/rank_0/model.pt")
    opens = Store.open_checkpoint

    def deleted(self: Store, info: CheckpointInfo) -> OpenCheckpoint:
        folders.store.delete(info)
        return opens(self, info)

    monkeypatch.setattr(Store, "open_checkpoint", deleted)
    if what in {"exists", "isdir"}:
        assert look(storage, folder, "step-1/rank_0", what) is listed
    elif what != "getsize" or not listed:
        with pytest.raises(FileNotFoundError):
            look(storage, folder, "step-1/rank_0/model.pt", what)


@pytest.mark.parametrize("name, other", [("step-5", "checkpoint-5"), ("step-5", "step-005"), ("best", "its step")])
def test_only_the_own_path_is_replaced(folders: Folders, name: str, other: str) -> None:
    storage = CkstoreStorageConfig(folders.store.path, folders.kept, if_exists="replace").create_storage()
    save(storage, folders.kept, name, {"model.pt": b"one"})
    save(storage, folders.kept, name, {"model.pt": b"two"})

    if other == "its step":
        other = f"step-{folders.store.info('latest').step}"
    with pytest.raises(FileExistsError, match="does not replace"):
        save(storage, folders.kept, other, {"model.pt": b"other"})
    assert storage.read(folders.kept / name / "model.pt") == b"two"


def test_no_file_hides_a_checkpoint(folders: Folders) -> None:
    def stream(storage: Storage, folder: Path) -> None:
        with storage.stream_write(folder / "step-1") as file:
            file.write(b"x")

    folders.both(save, "step-1", {"model.pt": b"data"})
    assert folders.both(lambda storage, folder: storage.write(folder / "step-1", b"x")) is IsADirectoryError
    assert folders.both(stream) is IsADirectoryError
    assert folders.both(look, "step-1/model.pt", "read") == b"data"


def test_the_folder_is_found_through_symlinks_and_where_it_does_not_exist(folders: Folders, tmp_path: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(folders.kept)
    for config, path in ((folders.config, link), (CkstoreStorageConfig(folders.store.path, link), folders.kept)):
        storage = config.create_storage()
        save(storage, path, "step-1", {"model.pt": b"data"})
        assert not os.listdir(folders.kept)
        assert not storage_module._unfinished
        assert storage.read(link / "step-1/model.pt") == storage.read(folders.kept / "step-1/model.pt") == b"data"
        storage.rmdir(path / "step-1")

    storage = folders.config.create_storage()
    save(storage, link, "step-2", {"model.pt": b"data"})
    folders.kept.rmdir()
    assert storage.glob(f"{folders.kept}/step-*") == [f"{folders.kept}/step-2"]
    assert storage.isdir(link)
    assert not storage.exists(tmp_path / "other")


def test_a_relative_store_remains_the_same_one(folders: Folders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folders.store.path.parent)
    storage = CkstoreStorageConfig(folders.store.path.name, folders.kept).create_storage()
    monkeypatch.chdir("/")

    save(storage, folders.kept, "step-1", {"model.pt": b"data"})
    assert folders.store.info(1).step == 1


def test_what_is_written_to_the_final_path_is_refused_since_no_rename_would_commit_it(tmp_path: Path) -> None:
    Store.init(tmp_path / "store").close()
    written = CheckpointManager(
        CheckpointManager.Config(
            save=SyncCheckpointSaverConfig(writer_config=CheckpointWriterConfig(write_to_temp_dir=False)),
            storage_config=CkstoreStorageConfig(tmp_path / "store", tmp_path / "out"),
        )
    )

    with pytest.raises(BadInput, match="would not become part of a checkpoint") as refused:
        written.save(str(tmp_path / "out/step-1"), {"model": {"w": torch.zeros(3)}})

    assert "write_to_temp_dir=True" in refused.value.hint
    with pytest.raises(StoreNotFound):
        CkstoreStorageConfig(tmp_path / "no store", tmp_path / "out").create_storage()
    with pytest.raises(BadInput, match="a new run in each process"):
        CkstoreStorageConfig(tmp_path / "store", tmp_path / "out", run="auto")


def test_retention_of_the_store_and_the_trainer_agree(folders: Folders) -> None:
    storage, folder = folders.config.create_storage(), folders.kept
    for step in range(1, 6):
        save(storage, folder, f"step-{step}", {"model.pt": os.urandom(5000)})
    folders.store.prune(RetentionPolicy(keep_last=3))
    assert storage.ls(folder) == ["step-3", "step-4", "step-5"]
    assert not storage.exists(folder / "step-1")

    storage.rmdir(folder / "step-4")
    assert storage.glob(f"{folder}/step-*") == [f"{folder}/step-{step}" for step in (3, 5)]
    # A checkpoint that was saved in another way has no path in the folder.
    folders.store.save({"w": torch.zeros(3)}, step=9)
    assert storage.ls(folder) == ["step-3", "step-5"]
    assert not storage.exists(folder / "step-9")


def test_who_may_only_read_the_store_can_load() -> None:
    code = (
        "import json, sys\nfrom pathlib import Path\n"
        "from ckstore.integrations.torch_checkpointing import CkstoreStorageConfig\n"
        "store, folder = sys.argv[1:]\n"
        "storage = CkstoreStorageConfig(store, folder).create_storage()\n"
        "print(json.dumps(storage.read(Path(folder) / 'step-1/a').decode()))"
    )
    with common_folder() as folder:
        (reader,) = users(folder, 1)
        store = Store.init(folder / "store")
        config = CkstoreStorageConfig(store.path, folder / "out")
        save(config.create_storage(), folder / "out", "step-1", {"a": b"data"})
        for path in (store.path, *store.path.rglob("*")):
            if not path.is_symlink():
                path.chmod(0o755 if path.is_dir() else 0o444)

        assert reader.python(code, store.path, folder / "out") == "data"
        store.close()


@pytest.fixture
def group(tmp_path: Path, warm: Path) -> Callable[..., list[Any]]:
    """Call a function of `storage_cases` on the ranks of a new group."""

    def call(size: int, case: str, **arguments: Any) -> list[Any]:
        with Group(size, tmp_path, CASES, python=warm / "python") as ranks:
            return ranks.call(case, store=str(tmp_path / "store"), folder=str(tmp_path / "out"), **arguments)

    return call


@pytest.mark.slow
@pytest.mark.integration
def test_what_four_ranks_save_two_load_also_after_a_kill(tmp_path: Path, group: Callable[..., list[Any]]) -> None:
    store = Store.init(tmp_path / "store")
    assert group(4, "save", step=1) == [None] * 4
    killed = group(4, "save_and_die", step=2, rank=0)
    assert isinstance(killed[0], EOFError)
    assert [info.step for info in store.checkpoints()] == [1]

    for loaded in group(2, "load", step=1):
        assert torch.equal(loaded["w"], torch.arange(960.0).reshape(24, 40))
        assert torch.equal(loaded["b"], torch.arange(36.0) - 1)

    with pytest.raises(NoSuchRef):
        store.info(2)
    assert store.verify().ok
    check_store(store.path)
