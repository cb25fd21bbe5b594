"""Exports as safetensors: what every state gives, ties, names, damage, kills, full disks, bounded memory."""

from __future__ import annotations

import base64
import errno
import json
import os
import shutil
import struct
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.torch import load_file, load_model, save_file

from ckstore import Store
from ckstore.containers.safetensors_write import can_be_name, dtype_and_shape
from ckstore.errors import BadInput, CkstoreError, CkstoreWarning, DamagedBlob, InsufficientSpace, NoSuchRef
from ckstore.fs import files, links
from ckstore.model.names import join_index, join_key, plain
from ckstore.ops.read import export_files, regions
from tests.containers.files import library_reads
from tests.support.crashing import run_and_kill
from tests.support.damage import MIB, blobs_by_size, flip
from tests.support.requirements import CRASH_FULL
from tests.support.states import states, tensor_bits

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from ckstore.model.reports.export_report import ExportReport

ROOT = Path(__file__).resolve().parents[3]


# ------------------------------------------------------------------------------------ what is in an export


def tensors_in(directory: Path) -> dict[str, torch.Tensor]:
    """Return the tensors of all files, found as the hub's convention says."""
    index = directory / "model.safetensors.index.json"
    if not index.exists():
        return dict(load_file(directory / "model.safetensors"))
    weight_map = json.loads(index.read_bytes())["weight_map"]
    found: dict[str, torch.Tensor] = {}
    for name in set(weight_map.values()):
        with safe_open(directory / name, framework="pt") as file:
            found |= {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118 - it is no dict
            assert all(weight_map[key] == name for key in file.keys())  # noqa: SIM118
            assert file.metadata()["format"] == "pt"
    assert found.keys() == weight_map.keys()
    return found


def state_in(directory: Path) -> dict[str, Any]:
    path = directory / "state.json"
    document: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"values": {}, "attributes": {}}
    return document


def bits(value: Any) -> Any:
    """Return what two equal values of a state have in common; Python's own containers only empty."""
    if isinstance(value, torch.Tensor):
        return "torch", str(value.dtype).removeprefix("torch."), tuple(value.shape), tensor_bits(value)
    if isinstance(value, np.ndarray):
        return "numpy", value.dtype.str, value.shape, value.tobytes()
    if isinstance(value, np.generic):
        return "numpy", value.dtype.str, value.tobytes()
    if isinstance(value, float):
        return "float", struct.pack(">d", value)
    if isinstance(value, complex):
        return "complex", bits(value.real), bits(value.imag)
    if isinstance(value, dict | list | tuple):
        return "dict" if isinstance(value, dict) else "list"
    return type(value), value


def bits_of_json(value: Any) -> Any:
    """Return the same for a value in ``state.json``, by its description in docs/how-to/export.md."""
    if not isinstance(value, dict) or not value:
        return bits(value)
    if "float" in value:
        special = {"nan": "7ff8000000000000", "inf": "7ff0000000000000", "-inf": "fff0000000000000"}[value["float"]]
        return "float", bytes.fromhex(value.get("bits", special))
    if "complex" in value:
        return "complex", *map(bits_of_json, value["complex"])
    if "int" in value:
        return int, int(value["int"])
    for kind in ("torch", "numpy"):
        if kind in value:
            shape = [tuple(value["shape"])] if "shape" in value else []
            return kind, value[kind], *shape, base64.b64decode(value["data"])
    if "bytes" in value:
        return bytes, base64.b64decode(value["bytes"])
    return str, base64.b64decode(value["utf-8"]).decode("utf-8", "surrogatepass")


def named(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Give name and value of everything in a state but containers that are not empty."""
    if isinstance(value, dict) and value:
        for key, item in value.items():
            yield from named(item, join_key(path, key) if isinstance(key, str) else join_index(path, key))
    elif isinstance(value, list | tuple) and value:
        for i, item in enumerate(value):
            yield from named(item, join_index(path, i))
    else:
        yield path, value


def is_held(name: str, value: Any) -> bool:
    return form_of(name, value) is not None


def form_of(name: str, value: Any) -> str | None:
    """Return the dtype of the format for a value that is exported as a tensor."""
    kind = {torch.Tensor: "torch", torch.nn.Parameter: "torch", np.ndarray: "numpy"}.get(type(value), "")
    dtype = value.dtype.str if kind == "numpy" else str(getattr(value, "dtype", "")).removeprefix("torch.")
    held = dtype_and_shape(kind, dtype, tuple(value.shape)) if kind and can_be_name(plain(name)) else None
    return held and held[0]


def view_of(tensor: torch.Tensor) -> object:
    """Return what tied tensors have in common; nothing equals that of a conjugated or empty one."""
    if tensor.is_conj() or not tensor.numel():
        return object()
    strides = [stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True) if size > 1]
    return tensor.data_ptr(), tensor.dtype, tuple(tensor.shape), tuple(strides)


def as_torch(value: Any) -> tuple[tuple[int, ...], bytes]:
    return tuple(value.shape), value.tobytes() if isinstance(value, np.ndarray) else tensor_bits(value)


def check_export(report: ExportReport, state: Any) -> None:
    """Everything is there once, under its name, bit for bit."""
    held = {plain(name): value for name, value in named(state) if is_held(name, value)}
    others = {name: value for name, value in named(state) if not is_held(name, value)}
    found = tensors_in(report.destination)
    document = state_in(report.destination)

    assert found.keys() | report.tied.keys() == held.keys()
    assert not found.keys() & report.tied.keys()
    assert {name: as_torch(tensor) for name, tensor in found.items()} == {name: as_torch(held[name]) for name in found}
    order = list(held)
    for dropped, kept in report.tied.items():
        assert order.index(kept) < order.index(dropped)
        assert as_torch(held[dropped]) == as_torch(held[kept])
    views = Counter(
        view_of(held[name])
        for name in found
        if isinstance(held[name], torch.Tensor) and name not in ("format", "total_size")
    )
    assert max(views.values(), default=1) == 1
    assert {name: bits_of_json(value) for name, value in document["values"].items()} == {
        name: bits(value) for name, value in others.items()
    }
    assert set(report.state_names) >= others.keys()
    assert {file.name for file in report.files} == set(os.listdir(report.destination))
    assert {file.name: file.nbytes for file in report.files} == {
        path.name: path.stat().st_size for path in report.destination.iterdir()
    }


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a few bytes what is megabytes otherwise."""
    monkeypatch.setattr(regions, "RANGE_BYTES", 32)
    monkeypatch.setattr(export_files, "RANGE_BYTES", 32)


@pytest.mark.property
@pytest.mark.usefixtures("small_buffers")
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture, *settings().suppress_health_check])
@given(state=states(), max_shard_bytes=st.sampled_from([1, 40, 10**9]))
def test_every_state_is_exported_whole(state: Any, max_shard_bytes: int, tmp_path: Path, store: Store) -> None:
    forms = [form_of(name, value) for name, value in named(state)]
    assume(all(form is None or library_reads(form) for form in forms))
    destination = tmp_path / "out"
    shutil.rmtree(destination, ignore_errors=True)
    saved = store.save(state, run="drawn")
    taken = Counter(plain(name) for name, value in named(state) if is_held(name, value))

    if max(taken.values(), default=1) > 1:
        with pytest.raises(BadInput, match="two tensors would both be named"):
            store.export_safetensors(saved, destination)
        assert not destination.exists()
    else:
        check_export(store.export_safetensors(saved, destination, max_shard_bytes=max_shard_bytes), state)
    assert [name for name in os.listdir(tmp_path) if "ckstore-" in name] == []


def model_state() -> dict[str, Any]:
    """Return tensors with chunks of their own and small ones, permuted ones, tied ones, and what is not a tensor."""
    torch.manual_seed(0)
    embedding = torch.randn(700, 500)
    state: dict[str, Any] = {
        "model": {
            "wte.weight": embedding,
            **{f"layers.{i}.weight": torch.randn(30, 20, dtype=torch.bfloat16) for i in range(20)},
            "conv.weight": torch.randn(8, 4, 3, 3).to(memory_format=torch.channels_last),
            "back.weight": torch.randn(600, 400).t(),
            "lm_head.weight": embedding,
        },
        "optimizer": {"state": {0: {"step": torch.tensor(3.0), "exp_avg": np.ones((700, 5))}}, "lr": 0.1},
        "epoch": 3,
    }
    return state


def test_shards_hold_what_one_file_holds(store: Store, tmp_path: Path) -> None:
    state = model_state()
    store.save(state)

    one = store.export_safetensors("latest", tmp_path / "one")
    several = store.export_safetensors("latest", tmp_path / "several", max_shard_bytes="1MB")

    check_export(one, state)
    check_export(several, state)
    assert len(one.files) == 2
    assert len(several.files) > 4
    assert one.tensor_count == several.tensor_count == 25
    index = json.loads((tmp_path / "several" / "model.safetensors.index.json").read_bytes())
    assert index["metadata"]["model.lm_head.weight"] == "model.wte.weight"
    assert index["metadata"]["total_size"] == sum(t.nbytes for t in tensors_in(tmp_path / "one").values())


def test_the_file_is_to_the_byte_what_save_file_writes(store: Store, tmp_path: Path) -> None:
    state = {name: tensor for name, tensor in model_state()["model"].items() if name != "lm_head.weight"}
    store.save({"model": state})

    store.export_safetensors("latest", tmp_path / "out", select="model", strip_prefix=True)

    save_file({name: tensor.contiguous() for name, tensor in state.items()}, "theirs", {"format": "pt"})
    assert os.listdir("out") == ["model.safetensors"]
    assert Path("out/model.safetensors").read_bytes() == Path("theirs").read_bytes()


# --------------------------------------------------------------------------------------------- ties and names


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(20, 8)
        self.inner = torch.nn.Linear(8, 8)
        self.head = torch.nn.Linear(8, 20, bias=False)
        self.head.weight = self.embedding.weight


def test_a_module_with_tied_weights_comes_back_tied(store: Store, tmp_path: Path) -> None:
    module, other = Tied(), Tied()
    store.save({"model": module, "epoch": 1})

    report = store.export_safetensors("latest", tmp_path / "out", select="model", strip_prefix=True)

    assert report.tied == {"head.weight": "embedding.weight"}
    assert [file.name for file in report.files] == ["model.safetensors"]
    assert len(report.left_out) == 1
    with safe_open(tmp_path / "out" / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt", "head.weight": "embedding.weight"}
    missing, unexpected = load_model(other, tmp_path / "out" / "model.safetensors")
    assert not missing
    assert not unexpected
    assert other.head.weight is other.embedding.weight
    assert torch.equal(other.head.weight, module.head.weight)
    assert torch.equal(other.inner.weight, module.inner.weight)


def test_views_that_overlap_otherwise_are_written_each(store: Store, tmp_path: Path) -> None:
    base = torch.arange(25.0).reshape(5, 5)
    state = {"base": base, "row": base[1], "turned": base.t(), "same": base[:], "expanded": base[0].expand(3, 5)}
    store.save(state)

    report = store.export_safetensors("latest", tmp_path / "out")

    check_export(report, state)
    assert report.tied == {"same": "base"}
    assert set(tensors_in(tmp_path / "out")) == {"base", "row", "turned", "expanded"}


@pytest.mark.parametrize("name", ["format", "total_size"])
def test_a_tied_tensor_whose_name_means_something_else_in_the_metadata_is_written(
    name: str, store: Store, tmp_path: Path
) -> None:
    tensor = torch.ones(3)
    store.save({"a": tensor, name: tensor, "b": tensor})

    report = store.export_safetensors("latest", tmp_path / "out", max_shard_bytes=12)

    assert report.tied == {"b": "a"}
    assert set(tensors_in(tmp_path / "out")) == {"a", name}


@pytest.mark.parametrize(
    "select, names",
    [
        ("model", {"enc.0.weight", "enc.1.weight", "dec.weight"}),
        ("model.*", {"enc.0.weight", "enc.1.weight", "dec.weight"}),
        ("model.enc", {"0.weight", "1.weight"}),
        ("model.enc.*.weight", {"0.weight", "1.weight"}),
        ("model.dec.weight", {"dec.weight"}),
        ("other.list", {"[0]", "[1].x"}),
        ("other.list[1]", {"x"}),
        (["model.enc.0", "model.dec"], {"enc.0.weight", "dec.weight"}),
        (["model", "model.enc"], {"enc.0.weight", "enc.1.weight", "dec.weight"}),
    ],
)
def test_the_prefix_that_select_names_is_stripped(select: Any, names: set[str], store: Store, tmp_path: Path) -> None:
    flat = {"enc.0.weight": np.zeros(1), "enc.1.weight": np.zeros(2), "dec.weight": np.zeros(3)}
    store.save({"model": flat, "other": {"list": [np.zeros(4), {"x": np.zeros(5)}]}})

    store.export_safetensors("latest", tmp_path / "out", select=select, strip_prefix=True)

    assert set(tensors_in(tmp_path / "out")) == names


@pytest.mark.parametrize(
    "select", [None, ["a", "b"], "*", "m*", lambda name: name == "a"], ids=["none", "two", "star", "glob", "function"]
)
def test_a_prefix_of_another_type_is_refused(select: Any, store: Store, tmp_path: Path) -> None:
    store.save({"a": np.zeros(1), "b": np.zeros(1), "model": {"c": np.zeros(1)}})

    with pytest.raises(BadInput, match="prefix"):
        store.export_safetensors("latest", tmp_path / "out", select=select, strip_prefix=True)


def test_two_tensors_of_one_name_are_refused_and_one_can_be_selected(store: Store, tmp_path: Path) -> None:
    store.save({"a": {"b": np.zeros(1)}, "a.b": np.ones(1)})

    with pytest.raises(BadInput, match=r"'a\.b': a\.b and a\\\.b"):
        store.export_safetensors("latest", tmp_path / "out")

    store.export_safetensors("latest", tmp_path / "out", select=r"a\.b")
    assert tensors_in(tmp_path / "out")["a.b"].tolist() == [1]


def test_a_selection_that_fits_nothing_is_refused(store: Store, tmp_path: Path) -> None:
    store.save({"a": np.zeros(1)})

    with pytest.raises(NoSuchRef, match="select='b'"):
        store.export_safetensors("latest", tmp_path / "out", select="b")


# --------------------------------------------------------------------------------- what safetensors cannot hold


def test_what_safetensors_cannot_hold_can_be_read_beside_it(store: Store, tmp_path: Path) -> None:
    store.save({"w": np.zeros(2), "lr": 0.5, "name": "x", "none": None, "big": 2**70, "z": np.ones(1, ">f4"), "e": []})

    report = store.export_safetensors("latest", tmp_path / "out")

    document = state_in(tmp_path / "out")
    assert document["checkpoint"] == "main@0"
    assert document["id"] == report.checkpoint_id
    assert document["values"] == {
        "z": {"numpy": ">f4", "shape": [1], "data": "P4AAAA=="},
        "lr": 0.5,
        "name": "x",
        "none": None,
        "big": {"int": str(2**70)},
        "e": [],
    }
    assert set(report.state_names) == document["values"].keys()


def test_attributes_of_a_state_dict_are_kept_but_for_the_versions_of_torch(store: Store, tmp_path: Path) -> None:
    module = torch.nn.Linear(2, 2)
    state = module.state_dict()
    store.save({"model": state})
    assert store.export_safetensors("latest", tmp_path / "plain").state_names == ()
    state.note = "x"  # type: ignore[attr-defined]
    store.save({"model": state})

    report = store.export_safetensors("latest", tmp_path / "out")

    assert state_in(tmp_path / "out")["attributes"] == {"model.note": "x"}
    assert report.state_names == ("model.note (attribute)",)
    assert report.left_out == ("model: the versions of modules that torch keeps in _metadata",)


@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_a_sparse_tensor_is_exported_with_what_puts_it_together(store: Store, tmp_path: Path) -> None:
    sparse = torch.eye(3).to_sparse()
    store.save({"coo": sparse, "csr": sparse.to_sparse_csr()})

    report = store.export_safetensors("latest", tmp_path / "out")

    tensors = tensors_in(tmp_path / "out")
    assert state_in(tmp_path / "out")["attributes"] == {
        "coo.kind": "sparse_coo",
        "coo.extra[0]": {"torch.Size": [3, 3]},
        "coo.extra[1]": True,
        "csr.kind": "sparse_csr",
        "csr.extra": {"torch.Size": [3, 3]},
    }
    again = torch.sparse_coo_tensor(tensors["coo.indices"], tensors["coo.values"], (3, 3), check_invariants=True)
    assert torch.equal(again.to_dense(), sparse.to_dense())
    assert "coo.kind (attribute)" in report.state_names


def test_what_is_too_large_for_json_is_refused_with_its_name(store: Store, tmp_path: Path) -> None:
    store.save({"w": np.zeros(2), "fft": {"spectrum": torch.zeros(5000, dtype=torch.complex128)}})

    with pytest.raises(BadInput, match=r"fft\.spectrum: complex128, 80000 bytes .*select"):
        store.export_safetensors("latest", tmp_path / "out")

    assert sorted(os.listdir(tmp_path)) == [".home", "store"]
    store.export_safetensors("latest", tmp_path / "out", select="w")


@pytest.mark.parametrize("state", [torch.arange(3), 5, {}, {"a": 1}], ids=str)
def test_a_state_that_is_one_value_or_none_is_exported(state: Any, store: Store, tmp_path: Path) -> None:
    store.save(state)

    check_export(store.export_safetensors("latest", tmp_path / "out"), state)


# ----------------------------------------------------------------------------------------------- what is refused


def test_destinations_that_cannot_be_are_refused(store: Store, tmp_path: Path) -> None:
    store.save({"a": np.zeros(1)})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "x").touch()
    (tmp_path / "empty").mkdir()

    for name, why in [
        ("model.safetensors", "must be a directory"),
        ("full", "is not empty"),
        ("store/checkpoints/x", "is in the store"),
        ("no/such", "does not exist"),
    ]:
        with pytest.raises(BadInput, match=why):
            store.export_safetensors("latest", tmp_path / name)
    assert store.export_safetensors("latest", tmp_path / "empty").tensor_count == 1


def test_committed_files_are_not_exported(store: Store, tmp_path: Path) -> None:
    save_file({"w": torch.ones(3)}, tmp_path / "w.safetensors")
    store.commit(tmp_path / "w.safetensors")

    with pytest.raises(BadInput, match=r"committed from files, .*ckstore checkout main@0"):
        store.export_safetensors("latest", tmp_path / "out")


@pytest.mark.parametrize("size", [0, -1, "0", "5 apples", 1.5, True])
def test_a_shard_size_that_cannot_be_read_is_refused(size: Any, store: Store, tmp_path: Path) -> None:
    store.save({"a": np.zeros(1)})

    with pytest.raises(BadInput, match=r"size"):
        store.export_safetensors("latest", tmp_path / "out", max_shard_bytes=size)


# --------------------------------------------------------------------------------------------------- damage


def test_a_damaged_blob_ends_the_export_and_nothing_is_there(store: Store, tmp_path: Path) -> None:
    store.save(model_state(), step=1)
    for blob in blobs_by_size(store, 1):
        flip(blob, keep_time=True)
        reader = Store.open(store.path, readonly=True)  # remembers nothing, so that only the reading can find it

        with pytest.raises(DamagedBlob, match=blob.name):
            reader.export_safetensors(1, tmp_path / "out")

        assert sorted(os.listdir(tmp_path)) == [".home", "store"]
        flip(blob, keep_time=True)
    check_export(store.export_safetensors(1, tmp_path / "out"), model_state())


@pytest.mark.usefixtures("small_buffers")
def test_a_piece_of_which_a_part_is_wanted_is_checked_whole(store: Store, tmp_path: Path) -> None:
    flat = torch.arange(200_000.0)
    store.save({"a": flat[:10], "b": flat})
    (blob,) = blobs_by_size(store, "latest")
    flip(blob, at=8, keep_time=True)

    with pytest.raises(DamagedBlob, match=blob.name):
        Store.open(store.path, readonly=True).export_safetensors("latest", tmp_path / "out", select="a")

    flip(blob, at=8, keep_time=True)
    assert tensors_in(store.export_safetensors("latest", tmp_path / "out", select="a").destination)["a"][2] == 2


def test_latest_valid_passes_over_what_turns_out_to_be_damaged(store: Store, tmp_path: Path) -> None:
    store.save({"w": np.zeros(5 * MIB, np.uint8)}, step=1)
    store.save({"w": np.ones(5 * MIB, np.uint8)}, step=2)
    flip(blobs_by_size(store, 2)[-1], keep_time=True)

    with pytest.warns(CkstoreWarning, match="main@2"):
        report = store.export_safetensors("latest-valid", tmp_path / "out")

    assert report.name == "main@1"
    store.save({"w": np.ones(5 * MIB, np.uint8)}, step=2)


@pytest.mark.parametrize("part", [0, 0.5, 1])
def test_a_file_that_reads_back_otherwise_is_not_published(
    part: float, store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(model_state())
    wanted = store.export_safetensors("latest", tmp_path / "whole").files[0].nbytes
    fsync = os.fsync
    at = int(part * (wanted - 1))

    def fsync_and_rot(fd: int) -> None:
        fsync(fd)
        if os.fstat(fd).st_size == wanted:
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)

    monkeypatch.setattr(os, "fsync", fsync_and_rot)

    with pytest.raises(CkstoreError, match=r"model\.safetensors does not read back"):
        store.export_safetensors("latest", tmp_path / "out")

    assert sorted(os.listdir(tmp_path)) == [".home", "store", "whole"]


# ---------------------------------------------------------------------------------------------- kills, full disks

_SEAM = {
    os: ("mkdir", "open", "pwrite", "fsync", "fchmod", "posix_fadvise", "close"),
    links: ("rename",),
    files: ("sync_directory",),
}


@pytest.mark.crash
def test_a_kill_at_any_step_leaves_no_destination_and_the_next_export_works(store: Store, tmp_path: Path) -> None:
    state = {"a": torch.arange(9.0).reshape(3, 3), "b": torch.ones(4, dtype=torch.bool), "c": 1}
    store.save(state)
    out = tmp_path / "out"
    reader = Store.open(store.path, readonly=True)
    complete, at = 0, 1

    while run_and_kill(
        lambda: reader.export_safetensors("latest", out, max_shard_bytes=36),
        at=at,
        before=True,
        seam=_SEAM,
        may_fail=False,
    ):
        left = sorted(os.listdir(out)) if out.exists() else None
        if left is not None:  # it was renamed: then all of it is there
            complete += 1
            assert len(left) == 4
            shutil.rmtree(out)
        check_export(reader.export_safetensors("latest", out, max_shard_bytes=36), state)
        assert [name for name in os.listdir(tmp_path) if "ckstore-" in name] == []
        shutil.rmtree(out)
        at += 1 if CRASH_FULL else 7

    print(f"{at} calls")
    assert at > 40
    assert complete or not CRASH_FULL
    assert len(os.listdir(out)) == 4


@pytest.mark.root
def test_a_full_disk_is_said_before_and_leaves_nothing(
    store: Store, make_filesystem: Callable[[str, int], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    mount = make_filesystem("ext4", 32)
    before = sorted(os.listdir(mount))
    rng = np.random.default_rng(0)
    store.save({"w": rng.integers(0, 255, 40 * MIB, np.uint8), "x": rng.integers(0, 255, 5 * MIB, np.uint8)})

    with pytest.raises(InsufficientSpace, match=r"needs [0-9.]+ MiB, [0-9.]+ .?i?B are free"):
        store.export_safetensors("latest", mount / "out")
    monkeypatch.setattr(export_files, "_check_space", lambda *_: None)  # as if others filled it meanwhile
    with pytest.raises(InsufficientSpace, match=r"needs [0-9.]+ MiB, which did not fit .*\. [0-9.]+ .?i?B are free"):
        store.export_safetensors("latest", mount / "out")

    assert sorted(os.listdir(mount)) == before
    assert store.export_safetensors("latest", mount / "out", select="x").tensor_count == 1


def test_a_destination_that_this_user_may_not_write_to_is_named(store: Store) -> None:
    store.save(model_state())

    for write in (store.export_safetensors, store.checkout):
        with pytest.raises(BadInput, match=r"out cannot be made in /sys: \w+") as caught:  # not even root may
            write("latest", "/sys/out")
        assert "that you may write to" in caught.value.hint


def test_running_out_of_space_says_what_was_needed(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.save(model_state())
    pwrite = os.pwrite

    def full(fd: int, data: Any, at: int) -> int:
        if at > MIB:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return pwrite(fd, data, at)

    monkeypatch.setattr(os, "pwrite", full)

    with pytest.raises(InsufficientSpace, match=r"needs [0-9.]+ MiB, which did not fit \(No space left on device\)"):
        store.export_safetensors("latest", tmp_path / "out")

    assert sorted(os.listdir(tmp_path)) == [".home", "store"]


# ------------------------------------------------------------------------------------- what it reads and takes


def test_views_of_one_large_piece_are_read_at_one_go(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flat = torch.arange(250_000.0)
    state = {f"view.{i}": flat[i * 1000 : (i + 1) * 1000] for i in range(250)} | {"turned": flat.reshape(500, 500).t()}
    store.save(state)
    read_bytes = 0
    read_into = files.read_into

    def counting(fd: int, offset: int, out: memoryview, what: str) -> None:
        nonlocal read_bytes
        read_bytes += len(out) if "blob" in what else 0
        read_into(fd, offset, out, what)

    monkeypatch.setattr(files, "read_into", counting)
    monkeypatch.setattr(export_files, "RANGE_BYTES", 20_000)
    monkeypatch.setattr(regions, "RANGE_BYTES", 20_000)

    check_export(store.export_safetensors("latest", tmp_path / "out"), state)
    assert read_bytes <= 2 * flat.nbytes


def test_progress_is_told_up_to_the_end(store: Store, tmp_path: Path) -> None:
    store.save(model_state())
    told: list[tuple[int, int]] = []

    report = store.export_safetensors("latest", tmp_path / "out", progress=lambda *done: told.append(done))

    assert told == sorted(told)
    assert told[-1] == (2 * report.files[0].nbytes,) * 2


_MEASURED = """
import sys
from ckstore import Store
store = Store.open(sys.argv[1], readonly=True)
store.export_safetensors(1, sys.argv[2] + "-first")  # imports what is needed
open("/proc/self/clear_refs", "w").write("5")
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
store.export_safetensors(2, sys.argv[2])
print((peak() - before) // 1024)
assert "torch" not in sys.modules
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_state(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.save({"w": np.ones((3, 3), order="F")}, step=1)
    store.save({"w": np.zeros(150 * MIB, np.uint8), "t": np.asfortranarray(np.zeros((5000, 2500), "f4"))}, step=2)

    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, store.path, tmp_path / "out"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 64, f"{done.stdout} MiB"
    assert (tmp_path / "out" / "model.safetensors").stat().st_size > 190 * MIB
