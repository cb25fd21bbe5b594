"""The door for fsspec: its files equal those of a checkout, and what is written is a checkpoint or nothing."""

from __future__ import annotations

import errno
import importlib
import io
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import tomllib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import datetime
from functools import partial
from pathlib import Path
from typing import Any

import fsspec
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ckstore import BadInput, DamagedBlob, InUse, NoSuchFile, SaveFailed, StepExists, Store, StoreNotFound
from ckstore.fs.new_tree import NewTree
from ckstore.integrations.fsspec import CkstoreFileSystem
from tests.support.damage import flip
from tests.support.descriptors import open_below
from tests.support.examples import examples
from tests.support.look import directory_of, files_of
from tests.support.torch_versions import without_group

ROOT = Path(__file__).parents[2]
SEGMENT = st.sampled_from(["a", "b c", "model.bin", "[x]*", "é", ".hidden"])
PATHS = st.lists(SEGMENT, min_size=1, max_size=3).map("/".join)


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "place").mkdir()
    return Store.init(tmp_path / "place" / "store", chunk_bytes=2**20)


@pytest.fixture
def fs() -> CkstoreFileSystem:
    return CkstoreFileSystem(skip_instance_cache=True)


def url(store: Store, *inner: object) -> str:
    return "/".join((f"ckstore://{store.path}", *map(str, inner)))


def write(fs: Any, url: str, data: bytes = b"data") -> None:
    with fs.open(url, "wb") as file:
        file.write(data)


@settings(max_examples=examples(8), deadline=None)
@given(
    files=st.dictionaries(PATHS, st.binary(max_size=200), min_size=1, max_size=5),
    links=st.dictionaries(
        SEGMENT, st.sampled_from(["a", "model.bin", "./b c/../a", "a/.", "../a", "/etc/passwd", "b c"])
    ),
)
def test_law_what_is_seen_and_read_equals_the_checkout(files: dict[str, bytes], links: dict[str, str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder, "source"), Path(folder, "out")
        for path, data in files.items():
            if not any((source / parent).is_file() for parent in Path(path).parents) and not (source / path).is_dir():
                (source / path).parent.mkdir(parents=True, exist_ok=True)
                (source / path).write_bytes(data)
        for name, target in links.items():
            if not os.path.lexists(source / name):
                (source / name).symlink_to(target)
        store = Store.init(Path(folder, "store"))
        store.commit(source, 7)
        store.checkout(7, out)
        fs = CkstoreFileSystem(skip_instance_cache=True)
        top = f"{store.path}/main/7"

        found = {path.removeprefix(top): fs.info(path) for path in fs.find(top, withdirs=True)}

        walked = {str(path)[len(str(out)) :]: path for path in out.rglob("*")}
        real = {name: path for name, path in walked.items() if not leads_out(path, out)}
        assert found.keys() - {""} == walked.keys()
        for name, there in real.items():
            is_file = there.is_file()
            assert found[name]["type"] == ("file" if is_file else "link" if there.is_symlink() else "directory")
            assert found[name]["size"] == (there.stat().st_size if is_file else 0)
            if is_file:
                assert fs.cat_file(top + name) == there.read_bytes()
        for name in walked.keys() - real.keys():
            assert found[name]["type"] == "link"
            with pytest.raises(NoSuchFile):
                fs.cat_file(top + name)


def leads_out(path: Path, top: Path) -> bool:
    end = Path(os.path.realpath(path))
    return path.is_symlink() and (not end.exists() or not end.is_relative_to(os.path.realpath(top)))


def test_law_reads_at_any_place_give_the_bytes_of_the_file(tmp_path: Path, store: Store, fs: Any) -> None:
    tensors = {f"w{i}": torch.randn(n) for i, n in enumerate((1, 1000, 300_000, 700_000, 0, 5))}
    torch.save(tensors, tmp_path / "model.pt")
    whole = (tmp_path / "model.pt").read_bytes()
    store.commit(tmp_path / "model.pt", 1)
    draw = random.Random(1)

    with fs.open(url(store, "main", 1, "model.pt"), "rb") as file:
        assert file.size == len(whole)
        for _ in range(60):
            start, count = draw.randrange(len(whole) + 10), draw.choice((0, 1, 100, 70_000, 2_000_000, -1))
            file.seek(start)
            assert file.read(count) == whole[start:][: None if count < 0 else count]
        file.seek(-3, io.SEEK_END)
        assert file.read() == whole[-3:]
    assert torch.equal(torch.load(fs.open(url(store, "main", "latest", "model.pt")))["w3"], tensors["w3"])
    assert open_below(store.path) == {}


def test_runs_steps_and_names_are_directories(tmp_path: Path, store: Store, fs: Any) -> None:
    (tmp_path / "f").write_bytes(b"1")
    info = store.commit(tmp_path / "f", 5, "gpt", tags=["best"])
    store.save({"x": 1}, 6, "gpt")
    store.save({"x": 1}, 1, "other")

    assert fs.ls(url(store), detail=False) == [f"{store.path}/gpt", f"{store.path}/other"]
    assert fs.ls(url(store, "gpt"), detail=False) == [f"{store.path}/gpt/5", f"{store.path}/gpt/6"]
    for name in ("5", "step-5", "checkpoint-5", "best", info.id):
        assert fs.ls(url(store, "gpt", name), detail=False) == [f"{store.path}/gpt/{name}/f"]
        assert fs.cat(url(store, "gpt", name, "f")) == b"1"
    assert fs.ls(url(store, "gpt", 6)) == []
    assert fs.glob(url(store, "*", 5, "*")) == [f"{store.path}/gpt/5/f"]
    assert fs.created(url(store, "gpt", 5, "f")) == datetime.fromisoformat(info.created)
    assert fs.ukey(url(store, "gpt", 5)) != fs.ukey(url(store, "gpt", 6))
    with pytest.raises(NoSuchFile, match="saved state"):
        fs.open(url(store, "gpt", 6, "model.safetensors"))
    for missing in (("gpt", 5, "g"), ("gpt", 7, "f"), ("no", 5, "f"), ("no run", 5, "f"), ("gpt", "a@b", "f")):
        assert not fs.exists(url(store, *missing))
        with pytest.raises(FileNotFoundError):
            fs.open(url(store, *missing))
    with pytest.raises(StoreNotFound):
        fs.ls(f"ckstore://{tmp_path}/elsewhere/gpt")
    assert open_below(store.path) == {}


def test_a_store_that_is_reached_through_a_symlink_is_listed_under_the_path_that_was_asked_for(
    tmp_path: Path, store: Store, fs: Any
) -> None:
    (tmp_path / "f").write_bytes(b"1")
    store.commit(tmp_path / "f", 5)
    (tmp_path / "link").symlink_to(store.path.parent)
    top = f"{tmp_path}/link/store"

    assert fs.glob(f"ckstore://{top}/*/5/*") == [f"{top}/main/5/f"]
    assert fs.find(f"ckstore://{top}") == [f"{top}/main/5/f"]
    fs.get(f"ckstore://{top}/main/5", str(tmp_path / "got"), recursive=True)
    assert [str(path.relative_to(tmp_path)) for path in (tmp_path / "got").rglob("*")] == ["got/f"]
    with fs.transaction:
        write(fs, f"ckstore://{top}/main/6/one")
        write(fs, url(store, "main", 6, "two"))
    assert [file.path for file in files_of(store, 6)] == ["one", "two"]


def test_what_is_damaged_is_not_said_to_be_absent(tmp_path: Path, store: Store, fs: Any) -> None:
    (tmp_path / "f").write_bytes(b"1")
    store.commit(tmp_path / "f", 5)
    place = url(store, "main", 5, "f")
    assert (fs.exists(place), fs.isfile(place), fs.isdir(place)) == (True, True, False)
    assert (fs.exists(url(store)), fs.isfile(url(store)), fs.isdir(url(store, "main"))) == (True, False, True)
    for nothing in (place + "2", url(store, "main", 6), f"ckstore://{tmp_path}/elsewhere"):
        assert (fs.exists(nothing), fs.isfile(nothing), fs.isdir(nothing)) == (False, False, False)
    flip(directory_of(store, 5) / "manifest.json", 60)

    for ask in (fs.exists, fs.isfile, fs.isdir, fs.lexists):
        with pytest.raises(DamagedBlob):
            ask(place)


def test_any_program_finds_it_by_the_url(tmp_path: Path, store: Store) -> None:
    points = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["fsspec.specs"]
    (tmp_path / "f.txt").write_text("words")
    store.commit(tmp_path / "f.txt", 1)

    assert points == {"ckstore": "ckstore.integrations.fsspec:CkstoreFileSystem"}
    with fsspec.open(url(store, "main", "latest", "f.txt"), "r") as file:
        assert file.read() == "words"
    opened = pickle.loads(pickle.dumps(fsspec.open(url(store, "main", 1, "f.txt"))))
    with opened as file:
        assert file.read() == b"words"


def test_damage_is_found_when_it_is_read(tmp_path: Path, store: Store, fs: Any) -> None:
    (tmp_path / "f").write_bytes(bytes(3 * 2**20))
    store.commit(tmp_path / "f", 1)
    (blob,) = (directory_of(store, 1) / "blobs").iterdir()
    flip(blob, 0)

    with fs.open(url(store, "main", 1, "f")) as file, pytest.raises(DamagedBlob):
        file.read(10)
    assert open_below(store.path) == {}


def test_what_a_transaction_wrote_is_one_checkpoint_when_it_ends(store: Store, fs: Any) -> None:
    top = url(store, "gpt", "step-3")
    with fs.transaction:
        fs.makedirs(f"{top}/empty")
        write(fs, f"{top}/sub/.tmp", b"1")
        fs.mv(f"{top}/sub/.tmp", f"{top}/sub/one")
        fs.pipe(f"{top}/two", b"22")
        write(fs, f"{top}/three")
        fs.rm(f"{top}/three")
        fs.copy(f"{top}/two", f"{top}/four")
        assert fs.find(top) == [f"{store.path}/gpt/step-3/{name}" for name in ("four", "sub/one", "two")]
        assert fs.cat(f"{top}/two") == b"22"
        assert store.checkpoints() == []

    assert [info.name for info in store.checkpoints()] == ["gpt@3"]
    assert fs.last.id == store.info("gpt@3").id
    files = {file.path: (file.kind, file.nbytes) for file in files_of(store, 3)}
    assert files == {
        "empty": ("directory", 0),
        "sub": ("directory", 0),
        "sub/one": ("file", 1),
        "two": ("file", 2),
        "four": ("file", 2),
    }
    assert os.listdir(store.path.parent) == ["store"]


@pytest.mark.parametrize("names", [["a"], ["sub/a", "sub/deep/b"], []])
def test_a_transaction_in_which_all_was_removed_again_makes_no_checkpoint(
    store: Store, fs: Any, names: list[str]
) -> None:
    with fs.transaction:
        fs.makedirs(url(store, "main", 1, "empty"))
        for name in names:
            fs.pipe_file(url(store, "main", 1, name), b"x")
        for name in names:
            fs.rm(url(store, "main", 1, name))

    assert store.checkpoints() == []
    assert fs.last is None
    assert os.listdir(store.path.parent) == ["store"]


def test_outside_a_transaction_the_error_has_the_two_lines_that_write_it(store: Store) -> None:
    with pytest.raises(BadInput, match="outside a transaction") as excinfo:
        fsspec.open(url(store, "gpt", 500, "model.pt"), "wb").open()
    hint = excinfo.value.hint.splitlines()
    assert hint[0] == "these two lines write it:"

    exec("\n".join(hint[1:]), {"fsspec": fsspec, "data": b"weights"})  # noqa: S102

    assert [info.name for info in store.checkpoints()] == ["gpt@500"]
    assert fsspec.open(url(store, "gpt", 500, "model.pt")).open().read() == b"weights"


def test_a_checkpoint_is_not_a_file_and_the_error_names_one_that_would_be(store: Store, fs: Any) -> None:
    with pytest.raises(BadInput, match=f"ckstore://{store.path}/gpt/checkpoint-500.pt/FILE"):
        fs.open(url(store, "gpt", "checkpoint-500.pt"), "wb")


class GivenUpError(Exception):
    """What a writer raises."""


def fails(fs: Any, *acts: Callable[[], object]) -> None:
    with fs.transaction:
        for act in acts:
            act()


def give_up() -> None:
    raise GivenUpError


def give_up_inside(fs: Any) -> None:
    with pytest.raises(GivenUpError):
        fails(fs, give_up)


def test_a_transaction_that_fails_leaves_nothing(store: Store, fs: Any) -> None:
    one = partial(write, fs, url(store, "main", 1, "one"))
    with pytest.raises(GivenUpError):
        fails(fs, one, give_up)
    with pytest.raises(BadInput, match="still open"):
        fails(fs, lambda: fs.open(url(store, "main", 1, "one"), "wb"))
    with pytest.raises(SaveFailed, match="a transaction in this one failed"):
        fails(fs, one, lambda: give_up_inside(fs))
    with pytest.raises(BadInput, match="one checkpoint"):
        fails(fs, one, lambda: write(fs, url(store, "main", 2, "one")))

    assert store.checkpoints() == []
    assert os.listdir(store.path.parent) == ["store"]
    with fs.transaction, fs.transaction:
        write(fs, url(store, "main", 1, "one"))
    with pytest.raises(StepExists):
        fails(fs, lambda: write(fs, url(store, "main", 1, "one"), b"other"))
    replacing: Any = CkstoreFileSystem(if_exists="replace", skip_instance_cache=True)
    replacing.start_transaction()
    write(replacing, url(store, "main", 1, "two"))
    replacing.end_transaction()
    assert fs.find(url(store, "main", 1)) == [f"{store.path}/main/1/two"]


def test_threads_write_one_checkpoint(store: Store, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = NewTree.beside
    both = threading.Barrier(2)

    def slowly(destination: Path) -> NewTree:
        with suppress(threading.BrokenBarrierError):
            both.wait(0.5)
        return begin(destination)

    monkeypatch.setattr(NewTree, "beside", slowly)
    with fs.transaction, ThreadPoolExecutor(2) as threads:
        list(threads.map(lambda name: write(fs, url(store, "main", 1, name)), ("one", "two")))

    assert [file.path for file in files_of(store, 1)] == ["one", "two"]
    assert os.listdir(store.path.parent) == ["store"]


def test_what_cannot_be_removed_now_fails_no_checkpoint(store: Store, fs: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rmdir = os.rmdir

    def refuse(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOTEMPTY, os.strerror(errno.ENOTEMPTY))

    with fs.transaction:
        write(fs, url(store, "main", 1, "one"))
        monkeypatch.setattr(os, "rmdir", refuse)
    monkeypatch.setattr(os, "rmdir", rmdir)

    assert fs.last.name == "main@1"
    with fs.transaction:
        write(fs, url(store, "main", 2, "one"))
    assert os.listdir(store.path.parent) == ["store"]


def test_a_name_of_other_digits_is_no_step(store: Store, fs: Any) -> None:
    for name in ("²", "٣", "007"):
        with pytest.raises(BadInput, match="not a step"):
            fails(fs, partial(write, fs, url(store, "main", 3, "f")), partial(write, fs, url(store, "main", name, "f")))
    assert store.checkpoints() == []


def test_what_cannot_be_done_whole_is_refused(tmp_path: Path, store: Store, fs: Any) -> None:
    (tmp_path / "f").write_bytes(b"1")
    store.commit(tmp_path / "f", 1, tags=["best"])
    place = url(store, "main", 1, "f")

    refused: tuple[Callable[[], object], ...] = (
        lambda: fs.open(url(store, "main", 2, "f"), "wb"),
        lambda: fs.open(place, "ab"),
        lambda: fs.mv(place, place + "2"),
        lambda: fs.rm(place),
        lambda: fs.rm(url(store, "main"), recursive=True),
        lambda: fs.rm(url(store, "main", 1)),
        lambda: fs.rmdir(url(store, "main", 1)),
    )
    for act in refused:
        with pytest.raises(BadInput):
            act()
    for name in ("latest", "best", "first"):
        with pytest.raises(BadInput, match="not a step"):
            fails(fs, partial(write, fs, url(store, "main", name, "f")))
    with pytest.raises(BadInput, match="not a file in a checkpoint"):
        fails(fs, lambda: write(fs, url(store, "main", "f")))
    with pytest.raises(InUse):
        fs.rm(url(store, "main", 1), recursive=True)
    store.untag("best")
    fs.rm(url(store, "main", 1), recursive=True)
    assert store.checkpoints() == []


@pytest.mark.filterwarnings("ignore:torch.distributed is")
def test_a_distributed_checkpoint_goes_in_and_out_as_through_any_filesystem(store: Store, fs: Any) -> None:
    from torch.distributed.checkpoint.state_dict_loader import load
    from torch.distributed.checkpoint.state_dict_saver import save

    dcp = "torch.distributed.checkpoint"
    try:
        torchs = importlib.import_module(f"{dcp}.fsspec_filesystem")  # torch 2.15 or later
    except ImportError:
        torchs = importlib.import_module(f"{dcp}._fsspec_filesystem")
    top = url(store, "main", 3)
    state: dict[str, Any] = {"w": torch.arange(1000.0), "n": {"b": torch.ones(3, dtype=torch.bfloat16)}}
    found: dict[str, Any] = {"w": torch.zeros(1000), "n": {"b": torch.zeros(3, dtype=torch.bfloat16)}}
    shared, _ = fsspec.url_to_fs(top)

    with shared.transaction:
        save(state, storage_writer=torchs.FsspecWriter(top), **without_group(save))
    load(found, storage_reader=torchs.FsspecReader(top), **without_group(load))

    assert torch.equal(found["w"], state["w"])
    assert torch.equal(found["n"]["b"], state["n"]["b"])
    assert sorted(os.path.basename(path) for path in fs.find(top)) == [".metadata", "__0_0.distcp"]
    with pytest.raises(BadInput, match="outside a transaction"):
        torchs.FsspecWriter(url(store, "main", 4)).fs.create_stream(url(store, "main", 4, "f"), "wb").__enter__()


def test_a_process_that_is_killed_in_a_transaction_leaves_no_checkpoint_and_what_it_left_goes(store: Store) -> None:
    script = f"""
import os, signal
from ckstore.integrations.fsspec import CkstoreFileSystem
fs = CkstoreFileSystem()
with fs.transaction:
    with fs.open({url(store, "main", 1, "f")!r}, "wb") as file:
        file.write(b"half")
    os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, timeout=120, check=False)

    assert done.returncode == -signal.SIGKILL, done.stderr
    assert store.checkpoints() == []
    assert len(os.listdir(store.path.parent)) == 2
    fs = CkstoreFileSystem(skip_instance_cache=True)
    with fs.transaction:
        write(fs, url(store, "main", 1, "f"), b"whole")
    assert fs.cat(url(store, "main", 1, "f")) == b"whole"
    assert os.listdir(store.path.parent) == ["store"]


@pytest.mark.parametrize("name, message", [("x" * 300, "names of at most 255 bytes"), ("a\0b", "control characters")])
def test_a_name_that_no_file_can_have_is_refused(store: Store, fs: Any, name: str, message: str) -> None:
    with fs.transaction, pytest.raises(BadInput, match=message):
        fs.open(url(store, "main", 1, name), "wb")
    assert store.checkpoints() == []
