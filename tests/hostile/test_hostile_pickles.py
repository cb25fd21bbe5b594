"""A committed file whose pickle was forged runs nothing, takes no more than its size, and is refused in words."""

from __future__ import annotations

import builtins
import os
import pickle
import random
import sys
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.errors import BadInput, CannotLoad
from tests.containers.files import pickle_file, torch_file
from tests.hostile.pickles import bombs, lies, programs, tensor
from tests.support.requirements import CRASH_FULL

MOST_TIMES = 60
LEAST_BYTES = 64 * 2**20
"""What is taken for a file: so many times its size, or so much."""
SPOILED = 4_000 if CRASH_FULL else 60
FILES = Path(__file__).parents[1] / "containers" / "torch_files"


def committed(tmp_path: Path, files: dict[str, bytes]) -> Store:
    """Return a store with one checkpoint of these files."""
    folder = tmp_path / "checkpoint-1"
    folder.mkdir()
    for name, data in files.items():
        (folder / name).write_bytes(data)
    store = Store.init(tmp_path / "store")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.commit(folder)
    return store


def archive(pickled: bytes) -> bytes:
    """Return a file of torch with this pickle and one storage of two floats."""
    return pickle_file(b"\x80\x02" + pickled, {"0": b"\0\0\x80\x3f\0\0\0\x40"})


def legacy(pickled: bytes) -> bytes:
    """Return a file of torch of before 1.6 with this pickle, and no storage."""
    good = torch_file({"": 1}, _use_new_zipfile_serialization=False)
    mark = b"\x80\x02}q\x00X\x00\x00\x00\x00q\x01K\x01s."
    assert mark in good
    return good.replace(mark, b"\x80\x02" + pickled)


def test_no_program_in_a_pickle_is_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    witness = tmp_path / "witness"
    forged = programs(witness)
    files = {f"{i}.pt": archive(data) for i, data in enumerate(forged.values())}
    files |= {f"{i}-legacy.pt": legacy(data) for i, data in enumerate(forged.values())}
    store = committed(tmp_path, files)
    found: dict[str, Any] = {}
    ran: list[str] = []
    with pytest.raises(CannotLoad):  # what it needs is imported now
        store.load(file="0.pt")
    imported = set(sys.modules)
    with monkeypatch.context() as patches:
        for module, function in ((os, "system"), (builtins, "eval"), (pickle, "loads"), (pickle, "Unpickler")):
            patches.setattr(module, function, lambda *_: ran.append("something"))
        for name in files:
            try:
                found[name] = store.load(1, file=name)
            except BadInput as error:
                found[name] = error

    assert ran == []
    assert set(sys.modules) == imported
    assert not witness.exists()
    wrong = {name: value for name, value in found.items() if not isinstance(value, CannotLoad)}
    assert not wrong


@pytest.mark.parametrize("name", bombs())
def test_a_pickle_takes_no_more_than_its_size(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.containers.torch_zip.MAX_STEPS", 1_000)  # which a commit takes, and not a load
    monkeypatch.setattr("ckstore.ops.read.file_state._TIMES", 4)  # values for each byte: it is the same rule
    monkeypatch.setattr("ckstore.tensors.described.REFUSED_MOST", 500)
    data = bombs()[name]
    store = committed(tmp_path, {"x.pt": archive(data)})
    tracemalloc.start()
    try:
        store.load(file="x.pt")
    except CannotLoad as error:
        told = str(error)
    else:
        told = ""
    finally:
        _, peak = tracemalloc.get_traced_memory()
        tracemalloc.stop()

    assert len(told) < 10_000
    assert peak < LEAST_BYTES + MOST_TIMES * len(data)


def test_a_tensor_that_is_not_in_its_storage_is_refused(tmp_path: Path) -> None:
    forged = lies()
    store = committed(tmp_path, {f"{i}.pt": archive(data + b".") for i, data in enumerate(forged.values())})
    loaded = []
    for i, name in enumerate(forged):
        try:
            loaded.append((name, store.load(file=f"{i}.pt")))
        except CannotLoad:
            continue

    assert loaded == []


def test_the_tensor_that_is_lied_about_is_there(tmp_path: Path) -> None:
    wide = tensor(shape=(2**40, 2), strides=(0, 1))
    store = committed(tmp_path, {"x.pt": archive(tensor() + b"."), "wide.pt": archive(wide + b".")})

    assert store.load(file="x.pt").tolist() == [1, 2]
    assert store.load(file="wide.pt").untyped_storage().nbytes() == 8
    found = store.diff(1, 1, file=("x.pt", "wide.pt"), values=True)
    assert [change.difference for change in found.changed] == [None]


def test_any_spoiled_file_is_loaded_or_refused(tmp_path: Path) -> None:
    rng = random.Random(17)
    originals = sorted(path for path in FILES.iterdir() if path.is_file() and path.suffix != ".py")
    files = {}
    for number in range(SPOILED):
        path = rng.choice(originals)
        data = bytearray(path.read_bytes())
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(min(len(data), 2500))
            data[at : at + rng.choice((0, 1, 1, 1))] = rng.choice(
                (
                    bytes([rng.randrange(256)]),
                    bytes([data[at] ^ 1 << rng.randrange(8)]),
                    b"h\x01",
                    b"}",
                    b"R",
                    b"\xff" * 4,
                )
            )
        files[f"{number}-{path.name}"] = bytes(data)
    store = committed(tmp_path, files)
    refused = loaded = 0
    for name in files:
        try:
            store.load(file=name)
            loaded += 1
        except BadInput:
            refused += 1

    assert min(refused, loaded) > SPOILED // 20
    model = torch.nn.Linear(2, 2)
    for name in list(files)[:20]:
        with pytest.raises(BadInput):
            store.load_into(model, file=name)
