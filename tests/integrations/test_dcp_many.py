"""The long form of `test_dcp`: 1, 2, 4 and 8 processes, each with each; ``CKSTORE_CRASH=full`` runs it."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from ckstore import DamagedBlob, Store
from tests.integrations.dcp_cases import digest
from tests.support.checkpoint_dirs import blobs_dir
from tests.support.gloo import Group

CASES = Path(__file__).with_name("dcp_cases.py")
COUNTS = (1, 2, 4, 8)
MIB = 2**20

_MEASURED = """
import sys
from ckstore import Store
def peak_mib():
    with open("/proc/self/status") as file:
        return int(dict(line.split(":", 1) for line in file)["VmHWM"].split()[0]) // 1024
store = Store.open(sys.argv[1], readonly=True)
before = peak_mib()
store.export_safetensors(1, sys.argv[2])
print(peak_mib() - before)
"""

pytestmark = [
    pytest.mark.crash,
    pytest.mark.skipif(os.environ.get("CKSTORE_CRASH") != "full", reason="long: CKSTORE_CRASH=full"),
]


class Groups(dict[int, Group]):
    """Groups by their number of processes, each started when it is first wanted."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.folder = folder

    def __missing__(self, count: int) -> Group:
        self[count] = Group(count, self.folder, CASES)
        return self[count]


@pytest.fixture(scope="module")
def groups(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Groups]:
    made = Groups(tmp_path_factory.mktemp("groups"))
    try:
        yield made
    finally:
        for group in made.values():
            group.__exit__(None, None, None)


def test_fsdp2_saved_on_any_number_of_ranks_loads_on_any_other(groups: Groups, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    for saving in COUNTS:
        (state, _), *_ = groups[saving].run("save_fsdp", store=str(store.path), step=saving)
        for loading in COUNTS:
            assert groups[loading].run("load_fsdp", store=str(store.path), step=saving) == [state] * loading


def test_shards_by_rows_and_columns_saved_on_any_number_load_on_any_other(groups: Groups, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    for saving in COUNTS:
        groups[saving].run("save_shards", store=str(store.path), step=saving)
        for loading in COUNTS:
            assert groups[loading].run("load_shards", store=str(store.path), step=saving) == [True] * loading


@pytest.mark.parametrize(
    "rows, columns, on_chunks",
    [(16384, 1024, True), (50257, 334, False), (2048, 1024, True), (50257, 40, False), (1024, 1024, False)],
)
def test_the_same_weights_of_other_numbers_of_ranks_share_their_chunks(
    groups: Groups, tmp_path: Path, rows: int, columns: int, on_chunks: bool
) -> None:
    """Chunks of 1 MiB, so 8 a rank or one; the table of docs/how-to/ranks.md is of this. The last are smaller.

    50,257 x 40 has as many of these chunks as 50,257 x 1,280 has of 32 MiB.

    A boundary between ranks that does not fall on a chunk cuts one in two, and so costs one chunk at most; where both
    parts go into a pack, they are aligned in it.
    """
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    for step, count in enumerate(COUNTS):
        (new_bytes, logical_bytes), *_ = groups[count].run(
            "large", store=str(store.path), step=step, rows=rows, columns=columns
        )
        print(f"{rows} x {columns}, {count} ranks: {new_bytes / logical_bytes:.1%} new")
        if step:
            assert new_bytes <= (0 if on_chunks else (count - 1) * (MIB + 4096))
    again, *_ = groups[4].run("large", store=str(store.path), step=9, rows=rows, columns=columns)
    assert again[0] == 0


def test_an_export_of_eight_ranks_is_what_full_tensor_gives(groups: Groups, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    (state, _), *_ = groups[8].run("save_fsdp", store=str(store.path), step=1)

    store.export_safetensors(1, tmp_path / "out", select="model", strip_prefix=True)

    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        names = list(file.keys())
        assert {name: digest(file.get_tensor(name)) for name in names} == state["model"]


def test_an_export_of_eight_ranks_takes_little_memory_and_names_a_part_that_is_gone(
    groups: Groups, tmp_path: Path
) -> None:
    """512 MiB in blocks of columns, so that each row of the file is from eight ranks."""
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    groups[8].run("large", store=str(store.path), step=1, rows=8192, columns=16384, dim=1)

    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", _MEASURED, str(store.path), str(tmp_path / "out")],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    print(f"{done.stdout.strip()} MiB of extra memory")
    assert int(done.stdout) < 256
    with safe_open(tmp_path / "out" / "model.safetensors", "pt") as file:
        rows = file.get_slice("w")
        for row in (0, 4095, 8191):
            assert torch.equal(rows[row], torch.arange(row * 16384, (row + 1) * 16384, dtype=torch.int32))
    shutil.rmtree(tmp_path / "out")
    blob = next(iter(blobs_dir(store.path, "main", 1).iterdir()))
    blob.unlink()
    with pytest.raises(DamagedBlob, match=f"{blob.name}.* is missing; w needs it"):
        Store.open(store.path, readonly=True).export_safetensors(1, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir() if "out" in path.name] == []
