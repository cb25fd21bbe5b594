"""What ckstore writes is what docs/format/v1.md says: `reader.py`, written from that page, reads it all.

The reader knows nothing of ckstore, so here its values are compared with the states that were saved.
"""

import argparse
import collections
import datetime as dt
import decimal
import http
import io
import itertools
import json
import math
import os
import pathlib
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from safetensors.torch import save_file

import ckstore
from tests.format import reader
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.examples import examples
from tests.support.look import directory_of

MIB = 2**20
WHOLE_DTYPES = [getattr(torch, name) for name in reader.TORCH_ITEMSIZE if hasattr(torch, name)]


# ------------------------------------------------------------------ what is compared: values as tuples


def bits(value: float) -> bytes:
    return struct.pack(">d", value)


def saved(value: Any) -> Any:
    """Return a state as tuples that are equal only for the same bits, dtypes, shapes and structure."""
    match value:
        case torch.Tensor():
            flat = value.detach().contiguous().reshape(-1).view(torch.uint8)
            return "torch", str(value.dtype).removeprefix("torch."), tuple(value.shape), flat.numpy().tobytes()
        case np.ndarray():
            return "numpy", value.dtype.str, value.shape, value.tobytes()
        case np.generic():
            return "scalar", value.dtype.str, value.tobytes()
        case collections.OrderedDict():
            attributes = saved(dict(vars(value))) if vars(value) else None
            return "odict", [(saved(k), saved(v)) for k, v in value.items()], attributes
        case _:
            return plain(value, saved)


def found(value: Any) -> Any:
    """Return the same for what the reader gives."""
    match value:
        case reader.Tensor():
            return value.kind, value.dtype, value.shape, value.data
        case reader.NumpyScalar():
            return "scalar", value.dtype, value.data
        case reader.OrderedDict():
            attributes = None if value.attributes is None else found(value.attributes)
            return "odict", [(found(k), found(v)) for k, v in value.items], attributes
        case _:
            return plain(value, found)


def plain(value: Any, inner: Any) -> Any:
    kind = type(value).__name__
    match value:
        case collections.deque():
            return kind, [inner(item) for item in value], value.maxlen
        case float():
            return kind, bits(value)
        case complex():
            return kind, bits(value.real), bits(value.imag)
        case list() | tuple():
            return kind, [inner(item) for item in value]
        case io.BytesIO():
            return kind, value.tell(), value.getvalue()
        case dict():
            return kind, [(inner(k), inner(v)) for k, v in value.items()]
        case _:
            assert value is None or type(value) in (
                bool,
                int,
                str,
                bytes,
                bytearray,
                set,
                frozenset,
                decimal.Decimal,
            ), kind
            return kind, value


# ------------------------------------------------------------------ states


def random_bytes(count: int, seed: int) -> torch.Tensor:
    return torch.randint(0, 256, (count,), dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))


def of_dtype(dtype: torch.dtype) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.tensor([[True, False], [False, False]])
    return random_bytes(6 * dtype.itemsize, dtype.itemsize).view(dtype).view(2, 3)


def every_kind_of_node() -> dict[Any, Any]:
    module = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    return {
        "none": None,
        "bools": [True, False],
        "ints": (0, -1, 2**53, -(2**53), 2**53 + 1, -(10**30), 10**5000),
        "floats": [0.1, -0.0, 1e-323, math.inf, -math.inf, math.nan, struct.unpack(">d", b"\xff\xf8\0\0\0\0\0\7")[0]],
        "complex": [1 + 2j, complex(-0.0, math.nan)],
        "texts": ["", "é", "\ud800", "\U0001f600", "a\0b", "x" * 100_000, "ü" * 70_000],
        "bytes": [b"", b"\0\xff", bytes(range(256)) * 1000],
        "scalars": [
            np.float32(0.5),
            np.int64(-3),
            np.bool_(True),
            np.complex128(1j),
            np.datetime64("2026-01-01", "ns"),
        ],
        "empty": [[], (), {}, collections.OrderedDict()],
        "module": module.state_dict(),
        "counter": collections.Counter({30: 2, 10: 1}),
        "odict": collections.OrderedDict([("b", 1), ("a", torch.ones(2))]),
        3: {-7: "negative", 2**60: "great", 0: [torch.zeros(1)]},
        "sets": [{1, "a", (2, "b")}, frozenset([None, 0.5]), set()],
        "files": [io.BytesIO(b"a"), io.BytesIO(b"a" * 1000)],
        "more": [bytearray(b"a"), bytearray(b"a" * 1000), decimal.Decimal("1.10"), collections.deque([1], 3)],
        "keys": {None: 1, True: [torch.ones(1)], 2.5: torch.ones(2), (0, "a[b]", (1,)): torch.ones(3)},
        "numbers": [list(range(-9, 2000)), [0.1, -0.0] * 700, [True, False] * 700, [2**63] * 1100],
        "a.b": torch.ones(1),
        "a": {"b": torch.zeros(1)},
        "": {"[0]": torch.full((1,), 2.0), "\\": torch.full((1,), 3.0)},
    }


def tied_and_strided() -> dict[str, Any]:
    base = torch.arange(24, dtype=torch.float32)
    lone = torch.arange(10_000, dtype=torch.int16)
    return {
        "base": base,
        "again": base,
        "window": base[3:9],
        "transposed": base.view(4, 6).t(),
        "other dtype": base.view(torch.int32)[::5],
        "expanded": base[2].expand(3, 2),
        "lone view": lone[5000:5004],
        "lone transposed": torch.arange(6).view(2, 3).t(),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
        "scalar": torch.tensor(1.5),
        "no elements": torch.empty(0, 3),
    }


def numpy_arrays() -> dict[str, Any]:
    steps = np.arange(12, dtype=np.float64).reshape(3, 4)
    return {
        "c": steps,
        "fortran": np.asfortranarray(steps),
        "reversed": steps[::-1, ::2],
        "big endian": steps.astype(">i4"),
        "words": np.array(["a", "ünïcode"]),
        "bytes": np.array([b"ab", b"c"]),
        "times": np.array(["2026-01-01", "NaT"], dtype="M8[ns]"),
        "flags": np.array([True, False]),
        "half": steps.astype(np.float16),
        "scalar": np.array(7),
        "none": np.empty((2, 0)),
    }


def chunks_and_packs() -> dict[str, Any]:
    return {
        "chunks": random_bytes(3 * MIB + MIB // 2, 1),
        "whole chunks": random_bytes(2 * MIB, 2).view(torch.float32),
        "small": [random_bytes(n, n) for n in range(1, 200, 3)],
        "array": np.frombuffer(random_bytes(MIB + 3, 5).numpy().tobytes(), np.uint8),
    }


STATES: dict[str, Any] = {
    "dtypes": {str(dtype): of_dtype(dtype) for dtype in WHOLE_DTYPES},
    "nodes": every_kind_of_node(),
    "tied": tied_and_strided(),
    "numpy": numpy_arrays(),
    "chunks": chunks_and_packs(),
    "one-tensor": torch.arange(5),
    "one-number": 7,
}


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with each of `STATES` as a run of its own; no test may change it."""
    place = tmp_path_factory.mktemp("format") / "store"
    with ckstore.Store.init(place, chunk_bytes=MIB) as store:
        for name, state in STATES.items():
            store.save(state, step=len(name), run=name)
    return place


@pytest.fixture
def store(tmp_path: Path) -> ckstore.Store:
    return ckstore.Store.init(tmp_path / "store", chunk_bytes=MIB)


def test_values_that_the_reader_leaves_are_as_the_page_has_them(store: ckstore.Store) -> None:
    state = [
        dt.date(2026, 1, 2),
        dt.datetime(2026, 1, 2, 3, tzinfo=dt.timezone(dt.timedelta(hours=1))),
        dt.timedelta(-1, 2, 3),
        pathlib.PurePosixPath("a/b"),
        torch.Size([1, 2]),
        torch.bfloat16,
        torch.qint8,
        torch.strided,
        torch.channels_last,
        torch.per_tensor_affine,
        torch.device("cuda:0"),
        np.str_("a"),
        collections.defaultdict[Any, Any](list, {1: 2}),
        argparse.Namespace(lr=0.5, w=[1]),
        http.HTTPStatus.OK,
    ]
    store.save([*state, torch.eye(2).to_sparse()], step=1)

    *held, sparse = reader.Store(store.path).latest().state()

    assert [(value.kind, value.held) for value in held] == [
        ("date", ["2026-01-02"]),
        ("datetime", ["2026-01-02T03:00:00.000000", 0, "+01:00"]),
        ("timedelta", [-1, 2, 3]),
        ("path", ["PurePosixPath", "a/b"]),
        ("torch.Size", [[1, 2]]),
        ("torch.dtype", ["bfloat16"]),
        ("torch.dtype", ["qint8"]),
        ("torch.layout", ["strided"]),
        ("torch.memory_format", ["channels_last"]),
        ("torch.qscheme", ["per_tensor_affine"]),
        ("torch.device", ["cuda:0"]),
        ("numpy.str_", ["a"]),
        ("defaultdict", [{1: 2}, "list"]),
        ("object", [{"lr": 0.5, "w": [1]}, "argparse.Namespace"]),
        ("enum", ["http.HTTPStatus", "OK"]),
    ]
    assert (sparse.kind, sorted(sparse.tensors)) == ("sparse_coo", ["indices", "values"])
    assert sparse.extra == (reader.Plain("torch.Size", [[2, 2]]), True)


# ------------------------------------------------------------------ states come back


@pytest.mark.parametrize("name", STATES)
def test_the_reader_gets_the_state_that_was_saved(path: Path, name: str) -> None:
    checkpoint = reader.Store(path).checkpoints()[name, len(name)]

    assert found(checkpoint.state()) == saved(STATES[name])
    checkpoint.check_blobs()
    assert checkpoint.content() == checkpoint.manifest["content"]
    total = sum(size for size, _ in checkpoint.manifest["storages"])
    assert checkpoint.manifest["logical_bytes"] == total


scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.complex_numbers(),
    st.text(max_size=4),
    st.binary(max_size=4),
)
arrays = hnp.arrays(
    dtype=hnp.integer_dtypes(endianness="?") | hnp.floating_dtypes(sizes=(16, 32, 64)) | hnp.boolean_dtypes(),
    shape=hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3),
)
tensors = st.tuples(
    st.sampled_from([torch.float32, torch.bfloat16, torch.bool, torch.complex64]),
    st.lists(st.integers(0, 3), max_size=3),
    st.integers(0, 9),
).map(lambda drawn: (torch.arange(27) % (drawn[2] + 2))[: math.prod(drawn[1])].reshape(drawn[1]).to(drawn[0]))
states: st.SearchStrategy[Any] = st.recursive(
    scalars | arrays | tensors,
    lambda c: st.one_of(
        st.lists(c, max_size=3),
        st.lists(c, max_size=3).map(tuple),
        st.dictionaries(st.text(max_size=3) | st.integers(), c, max_size=3),
        st.dictionaries(st.text(max_size=3), c, max_size=3).map(collections.OrderedDict),
    ),
    max_leaves=8,
)


@pytest.mark.property
@settings(max_examples=examples(6), suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(state=states)
def test_the_reader_gets_any_state(store: ckstore.Store, state: Any) -> None:
    info = store.save(state)

    checkpoint = reader.Checkpoint(checkpoint_dir(store.path, "main", info.step))
    assert checkpoint.id == info.id
    assert found(checkpoint.state()) == saved(state)
    assert checkpoint.content() == info.content


def test_tensors_that_shared_memory_share_a_storage_and_no_others(path: Path) -> None:
    state = reader.Store(path).checkpoints()["tied", 4].state()
    tied = {state[name].storage for name in ("base", "again", "window", "transposed", "other dtype", "expanded")}
    alone = [state[name].storage for name in ("lone view", "lone transposed", "parameter", "scalar")]

    assert len(tied) == 1
    assert len({*alone, *tied}) == 5


def test_a_lone_view_stores_only_its_elements(path: Path) -> None:
    checkpoint = reader.Store(path).checkpoints()["tied", 4]

    assert checkpoint.manifest["storages"][checkpoint.state()["lone view"].storage][0] == 4 * 2


def test_great_tensors_are_cut_into_chunks_and_small_ones_share_packs(path: Path) -> None:
    checkpoint = reader.Store(path).checkpoints()["chunks", 6]
    state, storages, blobs = checkpoint.state(), checkpoint.manifest["storages"], checkpoint.manifest["blobs"]
    chunks = storages[state["chunks"].storage][1]
    small = [storages[tensor.storage][1] for tensor in state["small"]]

    assert [length for *_, length in chunks[:3]] == [MIB] * 3
    assert all(blobs[blob] == [piece, MIB] and offset == 0 for piece, blob, offset, _ in chunks[:3])
    assert {len(extents) for extents in small} == {1}
    assert len({extents[0][1] for extents in small}) == 1
    assert all(extents[0][2] % 64 == 0 for extents in small)


def test_a_pack_is_its_pieces_with_zero_bytes_between_them(path: Path) -> None:
    for checkpoint in reader.Store(path).checkpoints().values():
        pieces: dict[int, list[tuple[int, int]]] = collections.defaultdict(list)
        for _, extents in checkpoint.manifest["storages"]:
            for _, blob, offset, length in extents:
                pieces[blob].append((offset, offset + length))
        for blob, spans in pieces.items():
            digest, size = checkpoint.manifest["blobs"][blob]
            data = (checkpoint.directory / "blobs" / digest).read_bytes()
            at = 0
            for start, end in sorted(set(spans)):
                assert start % 64 == 0
                assert start - at < 64
                assert not any(data[at:start])
                at = end
            assert at == size


# ------------------------------------------------------------------ the store around them


def test_the_reader_gets_the_files_that_were_committed(store: ckstore.Store, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    (folder / "sub").mkdir(parents=True)
    weights = {"w": torch.arange(2**19, dtype=torch.float32), "b": torch.ones(3)}
    save_file(weights, folder / "model.safetensors")
    torch.save(weights, folder / "sub" / "model.pt")
    (folder / os.fsdecode(b"bytes-\xff")).write_bytes(b"not UTF-8")
    (folder / "empty").touch(mode=0o600)
    (folder / "link").symlink_to("sub/model.pt")

    info = store.commit(folder)

    checkpoint = reader.Checkpoint(directory_of(store, info))
    found = checkpoint.files()
    assert set(found) == {str(path.relative_to(folder)) for path in folder.rglob("*")}
    for path, (kind, mode, data) in found.items():
        file = folder / path
        if kind == "symlink":
            assert os.fsencode(os.readlink(file)) == data
            continue
        assert mode == file.stat().st_mode & 0o777
        assert data == (file.read_bytes() if file.is_file() else b"")
    state = checkpoint.state()
    assert state["model.safetensors"]["w"].data == state["sub/model.pt"]["w"].data == weights["w"].numpy().tobytes()
    assert checkpoint.content() == info.content


def test_checkpoints_tags_and_the_latest_are_found(store: ckstore.Store) -> None:
    for step in (1, 2, 10):
        store.save({"w": torch.full((3,), step)}, step=step, tags=[f"t{step}"])
    store.save({"w": torch.zeros(1)}, step=2, run="other.run-2", tags=["best", "t1"])
    last = store.save({"w": torch.ones(1)}, step=1, if_exists="replace", metrics={"loss": 0.5})

    seen = reader.Store(store.path)

    assert set(seen.checkpoints()) == {("main", 1), ("main", 2), ("main", 10), ("other.run-2", 2)}
    named = {"best": "other.run-2@2", "t1": "other.run-2@2", "t2": "main@2", "t10": "main@10"}
    infos = {tag: store.info(ref) for tag, ref in named.items()}
    assert seen.tags() == {tag: (info.run, info.step, info.id[5:15]) for tag, info in infos.items()}
    assert {tag: ids_of(seen.tagged(tag)) for tag in named} == {tag: [info.id] for tag, info in infos.items()}
    assert seen.latest().id == last.id
    for (run, step), checkpoint in seen.checkpoints().items():
        info = store.info(f"{run}@{step}")
        assert (checkpoint.id, checkpoint.content()) == (info.id, info.content)


def ids_of(*checkpoints: reader.Checkpoint | None) -> list[str]:
    return [checkpoint.id for checkpoint in checkpoints if checkpoint is not None]


def test_what_supersedes_a_tagged_checkpoint_is_that_of_its_step(store: ckstore.Store) -> None:
    old = store.save({"w": torch.zeros(1)}, step=1, tags=["kept"])
    new = store.save({"w": torch.ones(1)}, step=1, if_exists="replace")

    seen = reader.Store(store.path)

    assert ids_of(seen.checkpoints()["main", 1], seen.latest(), seen.tagged("kept")) == [new.id, new.id, old.id]
    assert {id for _, _, id in seen.by_id()} == {old.id, new.id}


def forms_of_one(root: Path) -> list[Path]:
    """Return the directories of three generations of a checkpoint with the tag ``kept`` in a new store."""
    with ckstore.Store.init(root) as store:
        store.save({"w": torch.ones(3)}, step=1, tags=["kept"])
    first = checkpoint_dir(root, "main", 1)
    forms = [first, first.with_name(f"{first.name}.2"), first.with_name(f"{first.name}.10")]
    for form in forms[1:]:
        shutil.copytree(first, form)
    return forms


def mark(directory: Path) -> None:
    (directory / "damaged.json").write_text("{}")


def tear(directory: Path) -> None:
    for path in (directory / "blobs").iterdir():
        path.unlink()


def lose_the_manifest(directory: Path) -> None:
    (directory / "manifest.json").unlink()


def take_the_manifest_of_another(directory: Path) -> None:
    root = directory.parents[2].with_name("another")
    ckstore.Store.open_or_init(root).save({"w": torch.zeros(3)}, step=1, if_exists="replace")
    shutil.copy(checkpoint_dir(root, "main", 1) / "manifest.json", directory)


@pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")
@pytest.mark.parametrize("hurt", [mark, tear, lose_the_manifest, take_the_manifest_of_another])
def test_of_the_generations_of_an_id_the_highest_whole_one_counts(tmp_path: Path, hurt: Callable[[Path], None]) -> None:
    root = tmp_path / "store"
    forms = forms_of_one(root)
    counting = []
    for form in reversed(forms):
        counting.append(reader.Store(root).tagged("kept"))
        for ref in ("1", "kept", "latest", "latest-valid"):
            loaded: Any = ckstore.Store.open(root, readonly=True).load(ref)
            assert torch.equal(loaded["w"], torch.ones(3))
        hurt(form)

    assert [checkpoint and checkpoint.directory for checkpoint in counting] == forms[::-1]
    assert reader.Store(root).checkpoints().keys() == ({("main", 1)} if hurt is mark else set())


@pytest.mark.parametrize("hurt", [mark, tear, lose_the_manifest, take_the_manifest_of_another])
def test_a_damaged_checkpoint_supersedes_an_older_one_only_if_it_is_complete(
    store: ckstore.Store, hurt: Callable[[Path], None]
) -> None:
    old = store.save({"w": torch.zeros(1)}, step=1, tags=["kept"])
    new = store.save({"w": torch.ones(1)}, step=1, if_exists="replace")
    hurt(directory_of(store, new))

    seen = reader.Store(store.path)

    named = new if hurt is mark else old
    assert ids_of(seen.of_steps()["main", 1], seen.latest()) == [named.id, named.id]
    if hurt is mark:
        assert [store.info(ref).id for ref in (1, "latest")] == [new.id, new.id]
    with pytest.warns(ckstore.CkstoreWarning, match="latest-valid is main@1, since newer"):
        assert ckstore.Store.open(store.path, readonly=True).info("latest-valid").id == old.id


def test_a_store_of_a_draft_is_read(tmp_path: Path) -> None:
    root = tmp_path / "store"
    with ckstore.Store.init(root) as store:
        ids = [store.save({"w": torch.full((3,), step)}, step=step, tags=[f"t{step}"]).id for step in (1, 2, 3)]
    run = root / "checkpoints" / "main"
    for step in (1, 2):
        checkpoint_dir(root, "main", step).rename(run / str(step))
        (root / "refs" / f"t{step}").unlink()
    (root / "refs" / "t1").symlink_to("../checkpoints/main/1")
    (root / "refs" / "t2").symlink_to("../checkpoints/main/../main/2/../2")
    settings = json.loads((root / "store.json").read_bytes())
    (root / "store.json").chmod(0o644)
    (root / "store.json").write_text(
        json.dumps({name: value for name, value in settings.items() if name not in ("requires", "digest")})
    )

    seen = reader.Store(root)

    assert ids_of(*(seen.checkpoints()["main", step] for step in (1, 2, 3))) == ids
    assert ids_of(*(seen.tagged(f"t{step}") for step in (1, 2, 3))) == ids
    assert seen.tags() == {"t1": ("main", 1, ""), "t2": ("main", 2, ""), "t3": ("main", 3, ids[2][5:15])}
    shutil.copytree(run / "2", run / f"2.{ids[1][5:15]}")  # a draft name is below all others
    assert [one.directory.name for _, one in sorted(seen.by_id().items())] == [
        "1",
        f"2.{ids[1][5:15]}",
        f"3.{ids[2][5:15]}",
    ]


def test_a_file_that_a_killed_writer_left_among_the_runs_is_no_run(store: ckstore.Store) -> None:
    """A writer tests with it whether the filesystem can link, when it opens the store."""
    info = store.save(1, step=0)
    (store.path / "checkpoints" / ".try-0123456789ab").touch()

    assert reader.Store(store.path).latest().id == info.id


def test_what_the_caller_said_is_found(store: ckstore.Store) -> None:
    first = store.save(1, step=0)
    metadata = {"lr": [0.1, math.inf], "n": 2**80, "nested": {"é": None}}
    metrics = {"loss": math.inf, "acc": 0.25, "seen": 2**53}
    store.save(2, step=1, metrics=metrics, metadata=metadata, message="a\nb", parent=first)

    checkpoint = reader.Store(store.path).latest()

    assert checkpoint.metrics() == metrics
    assert checkpoint.metadata() == metadata
    assert (checkpoint.manifest["message"], checkpoint.manifest["parent"]) == ("a\nb", first.id)


def test_the_same_content_has_the_same_content_digest_and_another_has_another(store: ckstore.Store) -> None:
    one = store.save({"w": torch.ones(3), "n": 1}, step=1, metrics={"a": 1})
    same = store.save({"w": torch.ones(3), "n": 1}, step=2, run="other", message="again")
    other = store.save({"w": torch.ones(3), "n": 2}, step=3)
    seen = reader.Store(store.path).checkpoints()

    assert one.content == same.content == seen["main", 1].content() == seen["other", 2].content()
    assert len({one.id, same.id, other.id}) == 3
    assert other.content != one.content


def test_a_copy_of_one_directory_is_a_complete_checkpoint(path: Path, tmp_path: Path) -> None:
    shutil.copytree(checkpoint_dir(path, "nodes", 5), tmp_path / "copy")
    checkpoint = reader.Checkpoint(tmp_path / "copy")

    assert checkpoint.is_complete()
    assert found(checkpoint.state()) == saved(STATES["nodes"])


def test_blobs_are_read_only_with_a_stamp_under_their_canonical_name(path: Path) -> None:
    names: collections.Counter[int] = collections.Counter()
    links = {}
    for folder, _, files in os.walk(path):
        for name in filter(reader.DIGEST.match, files):
            status = os.stat(Path(folder, name))
            names[status.st_ino] += 1
            links[status.st_ino] = status.st_nlink
            assert stat.S_IMODE(status.st_mode) == 0o444
            assert status.st_mtime_ns % 10**9 == 271_828_000
            assert abs(status.st_mtime - time.time()) < 3600
            canonical = path / "blobs" / name.partition("-")[2][:2] / name
            assert os.path.samefile(canonical, Path(folder, name))

    assert dict(names) == links
    assert len(links) > 10


def test_what_has_not_the_form_of_a_checkpoint_is_ignored(store: ckstore.Store) -> None:
    store.save(1, step=5)
    run, directory = store.path / "checkpoints" / "main", checkpoint_dir(store.path, "main", 5)
    short = directory.name.removeprefix("5.")
    names = ["05", "-1", "x", str(2**53 + 1), ".hidden", f"5.{short[:9]}", f"5.{short.upper()}.A", f"05.{short}"]
    for name in [
        *names,
        f"5.{short}.0",
        f"5.{short}.01",
        f"5.{short}.1.1",
        f"5.{short}.1000000",
        f"{2**53 + 1}.{short}",
    ]:
        shutil.copytree(directory, run / name)
    for name in (f"6.{short}", f"5.{'0' * 10}"):  # of another step, of another id
        shutil.copytree(directory, run / name)
    shutil.copytree(run, store.path / "checkpoints" / "not a run")
    shutil.copytree(directory, store.path / "staging" / "whole")
    (store.path / "refs" / "5").symlink_to("../checkpoints/main/5")
    (store.path / "refs" / ".tmp").symlink_to("../checkpoints/main/5")

    seen = reader.Store(store.path)

    assert list(seen.checkpoints()) == [("main", 5)]
    assert seen.tags() == {}


def test_a_checkpoint_without_one_of_its_blobs_is_not_complete(store: ckstore.Store) -> None:
    store.save({"w": torch.ones(3)}, step=1)
    store.save({"w": torch.zeros(3)}, step=2)
    checkpoint = reader.Store(store.path).checkpoints()["main", 2]
    (checkpoint.directory / "blobs" / checkpoint.manifest["blobs"][0][0]).unlink()

    assert list(reader.Store(store.path).checkpoints()) == [("main", 1)]


def test_the_reader_finds_damage_in_every_byte_that_is_used(store: ckstore.Store) -> None:
    store.save({"w": torch.arange(10, dtype=torch.uint8), "v": torch.arange(5, dtype=torch.uint8)}, step=1)
    directory = reader.Store(store.path).checkpoints()["main", 1].directory
    (blob,) = (directory / "blobs").iterdir()
    blob.chmod(0o644)
    data = blob.read_bytes()
    used = [i for i, byte in enumerate(data) if i % 64 < 10]
    for i in used:
        blob.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(reader.FormatError, match="damaged"):
            reader.Checkpoint(directory).check_blobs()
    for i in range(10):
        blob.write_bytes(data[:i] + bytes([data[i] ^ 1]) + data[i + 1 :])
        with pytest.raises(reader.FormatError, match=r"piece .* is damaged"):
            reader.Checkpoint(directory).state()


# ------------------------------------------------------------------ independence


def test_the_reader_needs_nothing_but_the_standard_library_and_xxhash(path: Path, tmp_path: Path) -> None:
    program = """
import json, sys
sys.path.insert(0, sys.argv[1])
before = set(sys.modules)
import reader
from pathlib import Path
store = reader.Store(Path(sys.argv[2]))
read = [f"{run}@{step}" for (run, step), checkpoint in store.checkpoints().items() if [checkpoint.state()]]
print(json.dumps([read, sorted({name.partition(".")[0] for name in set(sys.modules) - before})]))
"""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-c", program, str(Path(reader.__file__).parent), str(path)],
        check=True,
        capture_output=True,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    read, modules = json.loads(done.stdout)

    assert set(read) == {f"{name}@{len(name)}" for name in STATES}
    assert set(modules) - {"reader", "xxhash"} - set(sys.stdlib_module_names) == set()
    assert "xxhash" in modules


def test_the_reader_agrees_with_itself_about_names() -> None:
    keys: list[str | int] = ["", "a", ".", "[", "]", "\\", "0", "\\0", 0, 1, -1, "a.b", "[0]"]
    names: dict[str, tuple[str | int, ...]] = {}
    for count in range(4):
        for path in itertools.product(keys, repeat=count):
            name = ""
            for key in path:
                name = reader.join(name, key)
            assert names.setdefault(name, path) == path
