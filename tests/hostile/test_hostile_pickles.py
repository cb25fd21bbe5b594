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
from ckstore.containers.parsed_values import Refused
from ckstore.containers.torch_pickle import read_pickle
from ckstore.errors import BadInput, CannotLoad
from tests.containers.files import pickle_file, torch_file
from tests.hostile.pickles import (
    ARRAY,
    ARRAY_OF,
    ORDERED,
    TENSOR,
    bombs,
    lies,
    programs,
    storage,
    tensor,
    text,
)
from tests.support.requirements import CRASH_FULL

MOST_TIMES = 60
LEAST_BYTES = 64 * 2**20
"""What is taken for a file: so many times its size, or so much."""
SPOILED = 4_000 if CRASH_FULL else 50
MANY = 20_000 if CRASH_FULL else 2_000
COPIES = (
    "one state of many arrays",
    "one array whose bytes are turned again and again",
    "many scalars of one text",
    "the same attributes of many",
)
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


def test_a_pickle_takes_no_more_than_its_size(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.containers.torch_zip.MAX_STEPS", 1_000)  # which a commit takes, and not a load
    monkeypatch.setattr("ckstore.ops.read.file_state._TIMES", 4)  # values for each byte: it is the same rule
    monkeypatch.setattr("ckstore.tensors.described.REFUSED_MOST", 500)
    least_bytes = LEAST_BYTES
    if not CRASH_FULL:
        monkeypatch.setattr("ckstore.ops.read.file_state._CHARS_LEAST", 2**20)
        least_bytes //= 16  # so that the smaller samples would still be found
    forged = bombs(MANY)
    store = committed(tmp_path, {f"{i}.pt": archive(data) for i, data in enumerate(forged.values())})
    with pytest.raises(CannotLoad):  # what it needs is imported now
        store.load(file="0.pt")
    peaks = {}
    for i, (name, data) in enumerate(forged.items()):
        told = 0
        tracemalloc.start()
        try:
            store.load(file=f"{i}.pt")
        except CannotLoad as error:
            told = len(str(error))
        finally:
            peaks[name] = tracemalloc.get_traced_memory()[1] - least_bytes - MOST_TIMES * len(data)
            tracemalloc.stop()
        assert told < 10_000, name

    assert {name: over for name, over in peaks.items() if over >= 0} == {}


@pytest.mark.parametrize("name", COPIES)
def test_what_is_copied_again_and_again_is_refused(name: str) -> None:
    with pytest.raises(Refused, match="calls and states of at most a few times its size"):
        read_pickle(bombs(2_000)[name])


def test_keys_of_one_hash_are_counted_in_all_sets_together() -> None:
    with pytest.raises(Refused, match="at most 10000 keys"):
        read_pickle(bombs(50)["many sets of keys of one hash"])


@pytest.mark.parametrize("code", ["", "f16", "c32", "O8"])
def test_a_dtype_that_numpy_does_not_have_is_refused_in_words(code: str, tmp_path: Path) -> None:
    dtype = b"cnumpy\ndtype\n(" + text(code) + b"\x89\x88tR"
    store = committed(tmp_path, {"x.pt": archive(dtype + b".")})

    with pytest.raises(CannotLoad, match=f"the NumPy dtype '{code}' cannot be loaded"):
        store.load(file="x.pt")


def test_a_dtype_that_is_changed_after_its_array_does_not_change_it(tmp_path: Path) -> None:
    def counted_in(unit: bytes) -> bytes:
        last = b"}(C" + bytes([len(unit)]) + unit + b"K\x01K\x01K\x01t\x86"
        return b"(K\x04" + text("<") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00" + last + b"t"

    dtype = b"cnumpy\ndtype\n(" + text("M8") + b"\x89\x88tRq\x01" + counted_in(b"s") + b"b"
    array = ARRAY + ARRAY_OF + b"R(K\x01K\x01\x85" + dtype + b"\x89C\x08" + bytes(8) + b"tb"
    store = committed(tmp_path, {"x.pt": archive(b"]q\x05" + array + b"a0h\x01" + counted_in(b"junk") + b"b0h\x05.")})

    assert str(store.load(file="x.pt")[0].dtype) == "datetime64[s]"


NAMED = {
    "a key": (
        b"}cargparse\nNamespace\n)RNs.",
        "the state itself: a key, argparse.Namespace, which is of another type,",
    ),
    "an element": (b"\x8f(cargparse\nNamespace\n)R\x90.", "a set with the element argparse.Namespace, which"),
    "a list as a key": (b"}]Ns.", "the state itself: a key, a list, which is of another type, cannot be loaded"),
    "a colon": (b"}" + text("a: b") + b"cstored.x\nThing\n)Rs.", "\n  a: b: stored.x.Thing cannot be loaded"),
    "a class of a terminal": (
        b"ctorch._tensor\n_rebuild_from_type_v2\n("
        + TENSOR
        + text("a\x1b[31m")
        + text("k")
        + b"\x93("
        + storage()
        + b"K\x00K\x02\x85K\x01\x85\x89"
        + ORDERED
        + b")Rt}tR.",
        r"'a\x1b[31m.k' cannot be loaded",
    ),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_is_refused_has_its_own_name(name: str, tmp_path: Path) -> None:
    data, words = NAMED[name]
    store = committed(tmp_path, {"x.pt": archive(data)})

    with pytest.raises(CannotLoad) as refused:
        store.load(file="x.pt")

    assert words in str(refused.value)


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
