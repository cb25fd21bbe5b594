"""Exports as a torch file and as a directory of `torch.distributed.checkpoint`: equal, whole or absent."""

from __future__ import annotations

import base64
import datetime as dt
import io
import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import load as torch_load

from ckstore import Store
from ckstore.containers.torch_zip_write import lay_out
from ckstore.errors import BadInput, CkstoreError, DamagedBlob, NoSuchRef
from ckstore.fs import files, links
from ckstore.ops.read import export_files
from ckstore.ops.read.formats import export_dcp
from tests.support.crashing import run_and_kill
from tests.support.damage import MIB, blobs_by_size, flip
from tests.support.examples import examples
from tests.support.requirements import CRASH_FULL
from tests.support.states import assert_same, states

ROOT = Path(__file__).resolve().parents[3]


def tied_state() -> dict[str, Any]:
    base = torch.arange(60.0).reshape(6, 10)
    return {
        "model": {"a.weight": base, "b.weight": base},
        "turned": base.t(),
        "part": base[2:4, 1:],
        "empty": torch.zeros(0, 3),
        "scalar": torch.tensor(3, dtype=torch.int16),
        "half": torch.ones(5, dtype=torch.bfloat16),
        "small": torch.ones(3, dtype=torch.float8_e4m3fn),
        "lr": 0.1,
        "steps": [1, 2, 2**70],
    }


@pytest.mark.filterwarnings("ignore")  # torch warns of some dtypes when it makes them
@settings(max_examples=examples(12), deadline=None, suppress_health_check=list(HealthCheck))
@given(state=states())
def test_a_torch_file_gives_back_what_that_of_torch_does(store: Store, tmp_path: Path, state: Any) -> None:
    store.save(state, step=1, if_exists="replace")
    out = tmp_path / "state.pt"
    out.unlink(missing_ok=True)

    try:
        report = store.export(1, out, format="torch")
    except BadInput as error:
        if "torch files cannot hold" not in error.message or out.exists():
            raise
        return
    torchs = io.BytesIO()
    torch.save(store.load(1), torchs)  # its pickles of a few arrays forget their byte order
    torchs.seek(0)
    trusted = bool(report.unsafe_globals)
    assert_same(torch.load(torchs, weights_only=not trusted), torch.load(out, weights_only=not trusted))


@pytest.mark.parametrize("kind", ["torch", "dcp"])
def test_a_memory_format_that_torch_cannot_pickle_is_named(store: Store, tmp_path: Path, kind: Any) -> None:
    store.save({"a": {"b": [1, torch.channels_last]}, "w": torch.ones(2)}, step=1)

    with pytest.raises(BadInput, match=r"^a\.b\[1\]: torch\.channels_last cannot be pickled") as caught:
        store.export(1, tmp_path / "out", format=kind)
    assert "select=" in caught.value.hint
    assert not (tmp_path / "out").exists()
    store.export(1, tmp_path / "out", format=kind, select="w")


def test_a_torch_file_keeps_ties_and_strides_and_loads_as_weights(store: Store, tmp_path: Path) -> None:
    state = tied_state()
    store.save(state, step=1)

    report = store.export(1, tmp_path / "state.pt", format="torch")

    for mmap in (False, True):
        loaded = torch.load(report.destination, weights_only=True, mmap=mmap)
        assert_same(state, loaded)
        assert loaded["turned"].stride() == (1, 10)
        assert loaded["part"].untyped_storage().data_ptr() == loaded["turned"].untyped_storage().data_ptr()
    with zipfile.ZipFile(report.destination) as archive:
        assert archive.testzip() is None
    assert report.unsafe_globals == ()
    assert [(file.name, file.nbytes) for file in report.files] == [("state.pt", os.path.getsize(report.destination))]
    assert sorted(os.listdir(tmp_path)) == [".home", "state.pt", "store"]


def test_a_part_is_exported_as_load_gives_it(store: Store, tmp_path: Path) -> None:
    store.save(tied_state(), step=1)

    store.export(1, tmp_path / "part.pt", format="torch", select="model")
    store.export(1, tmp_path / "part", format="dcp", select=["turned", "lr"])

    assert_same(store.load(1, select="model"), torch.load(tmp_path / "part.pt", weights_only=True))
    dcp_to_torch_save(tmp_path / "part", tmp_path / "other.pt")
    assert_same(store.load(1, select=["turned", "lr"]), torch.load(tmp_path / "other.pt", weights_only=True))
    with pytest.raises(NoSuchRef, match="no name"):
        store.export(1, tmp_path / "none.pt", format="torch", select="nothing")
    with pytest.raises(NoSuchRef, match="no name"):
        store.export(1, tmp_path / "none", format="dcp", select="nothing")


@pytest.mark.parametrize("select", ["o.state[0]", "o.state", "o.t[0]", "o.t", "o.l", "o.a.b", "o*c"])
def test_the_plain_values_of_a_part_are_in_a_dcp_directory_too(store: Store, tmp_path: Path, select: str) -> None:
    parts = {"t": (torch.ones(3), 5), "l": [1, 2, torch.ones(1)], "a.b": {"c": 1.5, 2: "two"}, "rest": {}}
    store.save({"o": {"state": {0: {"step": 3, "m": torch.ones(2)}}, **parts}, "lr": 0.1}, step=1)

    store.export(1, tmp_path / "part", format="dcp", select=select)

    dcp_to_torch_save(tmp_path / "part", tmp_path / "part.pt")
    found = torch.load(tmp_path / "part.pt", weights_only=True)
    assert_same(with_text_keys(store.load(1, select=select)), found)


def test_a_part_of_a_list_is_refused_for_dcp_which_would_not_load_it(store: Store, tmp_path: Path) -> None:
    store.save({"o": [{"w": torch.ones(1), "lr": 1}, 2, torch.ones(1)], "x": 1}, step=1)

    for select in ("o[1]", "o[0].w", ["o[0]", "o[2]"]):
        with pytest.raises(BadInput, match="o is a list"):
            store.export(1, tmp_path / "part", format="dcp", select=select)
    store.export(1, tmp_path / "part", format="dcp", select=["o[0].w", "o[1]", "o[2]"])
    dcp_to_torch_save(tmp_path / "part", tmp_path / "part.pt")
    found = torch.load(tmp_path / "part.pt", weights_only=True)
    assert_same({"o": [{"w": torch.ones(1)}, 2, torch.ones(1)]}, found)


def with_text_keys(value: Any) -> Any:
    """Return dicts with the keys that a DCP directory has for them."""
    if isinstance(value, dict):
        return {str(key): with_text_keys(item) for key, item in value.items()}
    return [*map(with_text_keys, value)] if isinstance(value, list) else value


def test_a_tensor_in_several_files_counts_once(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_dcp, "CHUNK_MOST_BYTES", 100)
    store.save({"w": torch.ones(40, 10), "scalar": torch.tensor(1), "empty": torch.ones(0, 3)}, step=1)

    report = store.export(1, tmp_path / "out", format="dcp", max_shard_bytes=2000)

    assert len(report.files) > 4
    assert report.tensor_count == 3


def test_what_needs_trust_is_named(store: Store, tmp_path: Path) -> None:
    store.save({"array": np.arange(4), "day": dt.date(2026, 1, 2), "w": torch.ones(2)}, step=1)

    report = store.export(1, tmp_path / "state.pt", format="torch")

    assert "datetime.date" in report.unsafe_globals
    with pytest.raises(Exception, match="weights_only"):
        torch.load(report.destination, weights_only=True)
    assert_same(store.load(1), torch.load(report.destination, weights_only=False))


def test_files_in_memory_are_exported_as_what_they_are(store: Store, tmp_path: Path) -> None:
    state = {"files": [io.BytesIO(b"a"), io.BytesIO(b"a" * 1000)], "w": torch.ones(2)}
    store.save(state, step=1)

    report = store.export(1, tmp_path / "state.pt", format="torch")
    store.export_safetensors(1, tmp_path / "out")

    assert report.unsafe_globals == ("_io.BytesIO",)
    assert_same(state, torch.load(tmp_path / "state.pt", weights_only=False))
    values = json.loads((tmp_path / "out" / "state.json").read_bytes())["values"]
    assert [base64.b64decode(values[f"files[{i}]"]["io.BytesIO"]) for i in (0, 1)] == [b"a", b"a" * 1000]


def test_what_goes_through_memory_has_a_limit(store: Store, tmp_path: Path) -> None:
    store.save({"large": b"x" * (33 * MIB), "w": torch.ones(2)}, step=1)

    for form in ("torch", "dcp"):
        with pytest.raises(BadInput, match=r"large: 33\.0 MiB"):
            store.export(1, tmp_path / "out", format=form)
        store.export(1, tmp_path / f"{form}-w", format=form, select="w")
    assert not (tmp_path / "out").exists()


def test_one_memory_of_two_types_is_refused_with_both_names(store: Store, tmp_path: Path) -> None:
    memory = torch.arange(4.0)
    store.save({"a": memory, "b": memory.view(torch.int32)}, step=1)

    with pytest.raises(BadInput, match=r"a \(float32\) and b \(int32\) are the same memory"):
        store.export(1, tmp_path / "out.pt", format="torch")


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
def test_a_dcp_directory_loads_with_torch_in_place_and_as_a_whole(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export_dcp, "CHUNK_MOST_BYTES", 100)  # several rows a chunk
    state = {**tied_state(), "nested": [{"w": torch.arange(3)}, {"w": torch.arange(4)}]}
    store.save(state, step=1)

    report = store.export(1, tmp_path / "dcp", format="dcp", max_shard_bytes=3000)

    assert len(report.files) > 2
    assert {file.name for file in report.files} == set(os.listdir(tmp_path / "dcp"))
    target: dict[str, Any] = {
        "model": {name: torch.zeros(6, 10) for name in state["model"]},
        "turned": torch.zeros(10, 6),
        "part": torch.zeros(2, 9),
        "scalar": torch.tensor(0, dtype=torch.int16),
        "nested": [{"w": torch.zeros(3, dtype=torch.int64)}, {"w": torch.zeros(4, dtype=torch.int64)}],
        "lr": 0.0,
    }
    torch_load(target, checkpoint_id=tmp_path / "dcp")
    assert_values(target, {name: state[name] for name in target})
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "whole.pt")
    assert_values(torch.load(tmp_path / "whole.pt", weights_only=True), state)


def assert_values(found: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert found.keys() == wanted.keys()
        for name in wanted:
            assert_values(found[name], wanted[name])
    elif isinstance(wanted, list):
        for one, other in zip(found, wanted, strict=True):
            assert_values(one, other)
    elif isinstance(wanted, torch.Tensor):
        assert found.dtype == wanted.dtype
        assert torch.equal(found, wanted)
    else:
        assert found == wanted


def test_two_values_of_one_name_are_refused(store: Store, tmp_path: Path) -> None:
    store.save({"a": {"b": torch.ones(2)}, "a.b": torch.zeros(2)}, step=1)

    with pytest.raises(BadInput, match=r"two values that torch\.distributed\.checkpoint would name 'a\.b'"):
        store.export(1, tmp_path / "out", format="dcp")


def test_attributes_of_dicts_are_told(store: Store, tmp_path: Path) -> None:
    store.save({"model": torch.nn.Linear(2, 2).state_dict()}, step=1)

    report = store.export(1, tmp_path / "out", format="dcp")

    assert report.left_out == ("model: the attributes of this dict",)


@pytest.mark.parametrize("form", ["torch", "dcp"])
def test_what_is_there_is_never_replaced_and_what_cannot_be_is_refused(store: Store, tmp_path: Path, form: Any) -> None:
    store.save({"w": torch.ones(2)}, step=1)
    (tmp_path / "there").write_bytes(b"mine")

    with pytest.raises(BadInput, match="exists"):
        store.export(1, tmp_path / "there", format=form)
    with pytest.raises(BadInput, match="is in the store"):
        store.export(1, store.path / "out", format=form)
    with pytest.raises(BadInput, match="strip_prefix"):
        store.export(1, tmp_path / "out", format=form, strip_prefix=True)
    assert (tmp_path / "there").read_bytes() == b"mine"
    assert sorted(os.listdir(tmp_path)) == [".home", "store", "there"]


def test_arguments_are_checked(store: Store, tmp_path: Path) -> None:
    store.save({"w": torch.ones(2)}, step=1)
    other: Any = "onnx"

    with pytest.raises(BadInput, match="format must be one of safetensors, torch, dcp"):
        store.export(1, tmp_path / "out", format=other)
    with pytest.raises(BadInput, match="max_shard_bytes"):
        store.export(1, tmp_path / "out", format="torch", max_shard_bytes=5)
    with pytest.raises(BadInput, match="max_shard_bytes"):
        store.export(1, tmp_path / "out", format="dcp", max_shard_bytes=0)
    assert store.export(1, tmp_path / "out").files[0].name == "model.safetensors"


@pytest.mark.crossed
@pytest.mark.parametrize("form", ["torch", "dcp"])
@pytest.mark.parametrize("gone", [False, True])
def test_a_damaged_or_missing_part_is_named_and_nothing_is_left(
    store: Store, tmp_path: Path, form: Any, gone: bool
) -> None:
    store.save({"w": torch.ones(5 * MIB), "lr": 1.0}, step=1)
    blob = blobs_by_size(store, 1)[-1]
    if gone:
        blob.unlink()
    else:
        flip(blob, keep_time=True)

    with pytest.raises(DamagedBlob, match=r"\bw\b"):
        Store.open(store.path, readonly=True).export(1, tmp_path / "out", format=form)

    assert sorted(os.listdir(tmp_path)) == [".home", "store"]
    store.save({"w": torch.ones(5 * MIB), "lr": 1.0}, step=1, if_exists="replace")


@pytest.mark.crossed
@pytest.mark.parametrize("form", ["torch", "dcp"])
@pytest.mark.parametrize("part", [0, 0.4, 1])
def test_a_file_that_reads_back_otherwise_is_not_published(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: Any, part: float
) -> None:
    store.save({"w": torch.ones(1000)}, step=1)
    wanted = store.export(1, tmp_path / "whole", format=form).files[0].nbytes
    fsync = os.fsync
    at = int(part * (wanted - 1))

    def fsync_and_rot(fd: int) -> None:
        fsync(fd)
        if os.fstat(fd).st_size == wanted:
            os.pwrite(fd, bytes([os.pread(fd, 1, at)[0] ^ 1]), at)

    monkeypatch.setattr(os, "fsync", fsync_and_rot)

    with pytest.raises(CkstoreError, match="does not read back"):
        store.export(1, tmp_path / "out", format=form)

    assert sorted(os.listdir(tmp_path)) == [".home", "store", "whole"]


_SEAM = {
    os: ("mkdir", "open", "pwrite", "fsync", "fchmod", "link"),
    links: ("rename",),
    files: ("sync_directory",),
}


@pytest.mark.crash
def test_a_kill_at_any_step_leaves_no_torch_file_and_the_next_export_works(store: Store, tmp_path: Path) -> None:
    state = {"a": torch.arange(9.0).reshape(3, 3), "b": torch.ones(4, dtype=torch.bool), "c": 1}
    store.save(state, step=1)
    out = tmp_path / "out.pt"
    reader = Store.open(store.path, readonly=True)
    complete, at = 0, 1

    while run_and_kill(lambda: reader.export(1, out, format="torch"), at=at, before=True, seam=_SEAM, may_fail=False):
        if out.exists():
            complete += 1
            assert_same(state, torch.load(out, weights_only=True))
            out.unlink()
        reader.export(1, out, format="torch")
        assert_same(state, torch.load(out, weights_only=True))
        assert [name for name in os.listdir(tmp_path) if "ckstore-" in name] == []
        out.unlink()
        at += 1 if CRASH_FULL else 5

    assert at > 20
    assert complete or not CRASH_FULL
    assert out.exists()


def test_archives_of_more_than_four_gib_have_the_long_forms(tmp_path: Path) -> None:
    sizes = [10, 5 * 2**30, 7, 2**32 - 1]
    layout = lay_out([f"data/{i}" for i in range(4)], sizes)

    with open(tmp_path / "sparse.zip", "wb") as file:
        for i, start in enumerate(layout.heads):
            file.seek(start)
            head = layout.head(i, i)
            assert start + len(head) == layout.starts[i]
            assert layout.starts[i] % 64 == 0
            file.write(head)
        file.seek(layout.end)
        file.write(layout.tail([0, 1, 2, 3]))
        assert file.tell() == layout.nbytes

    with zipfile.ZipFile(tmp_path / "sparse.zip") as archive:
        assert [(info.filename, info.file_size, info.CRC) for info in archive.infolist()] == [
            (f"archive/data/{i}", size, i) for i, size in enumerate(sizes)
        ]
        for info in archive.infolist():
            archive.open(info).close()  # compares the heads


def test_progress_is_told_up_to_the_end(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export_files, "RANGE_BYTES", 2**20)
    store.save({"w": torch.ones(MIB)}, step=1)
    told: list[tuple[int, int]] = []

    report = store.export(1, tmp_path / "out", format="torch", progress=lambda *done: told.append(done))

    assert told == sorted(told)
    assert told[-1] == (2 * report.nbytes,) * 2


_MEASURED = """
import sys
from ckstore import Store
store = Store.open(sys.argv[1], readonly=True)

def held():
    with open("/proc/self/status") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

for form in ("torch", "dcp"):
    store.export(1, f"{sys.argv[2]}-first-{form}", format=form)  # imports what is needed
    before, most = held(), 0

    def look(done, all):
        global most
        most = max(most, held())

    store.export(2, f"{sys.argv[2]}-{form}", format=form, progress=look)
    print((most - before) // 1024)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_state(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    state = {"w": torch.zeros(160 * MIB, dtype=torch.uint8), "t": torch.zeros(5000, 2500).t()}
    store.save({"w": torch.ones(3, 3).t(), "lr": 1}, step=1)
    store.save(state, step=2)

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _MEASURED, store.path, tmp_path / "out"],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    extra = [int(line) for line in done.stdout.split()]
    assert len(extra) == 2
    assert max(extra) < 64, f"{extra} MiB"
    loaded = torch.load(tmp_path / "out-torch", weights_only=True, mmap=True)
    assert torch.equal(loaded["t"], state["t"])
