"""A file larger than memory goes in and comes back, in a bounded amount of memory.

`CKSTORE_CRASH=full` takes a file of 1.3 times the memory of the machine and needs 1.5 times its size of disk;
the short form takes one of some hundred megabytes.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ckstore import Store
from tests.support.requirements import CRASH_FULL, require

pytestmark = [pytest.mark.slow, pytest.mark.endurance]

MIB = 2**20
TENSOR_BYTES = 256 * MIB if CRASH_FULL else 40 * MIB
MOST_MEMORY_BYTES = 224 * MIB  # two chunks a thread to read and compare, and what was never imported before
ROOT = Path(__file__).resolve().parents[2]

_PROGRAM = """
import sys
from ckstore import Store
from ckstore.ops.read import checkout
from ckstore.ops.save import commit, save  # so that the difference is what the files take
what, path, place = sys.argv[1:]
store = Store.open(path)
peak = lambda: next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
before = peak()
store.commit(place, 1) if what == "commit" else store.checkout(1, place)
print(1024 * (peak() - before))
"""


def size_bytes() -> int:
    if not CRASH_FULL:
        return 400 * MIB
    memory = int(Path("/proc/meminfo").read_text().split()[1]) * 1024
    return int(1.3 * memory)


def make_file(path: Path, nbytes: int) -> None:
    """Make a safetensors file of many tensors: every third drawn afresh, the others holes, as in a sparse file."""
    count = -(-nbytes // TENSOR_BYTES)
    header = {
        f"layers.{i}.weight": {
            "dtype": "U8",
            "shape": [TENSOR_BYTES],
            "data_offsets": [i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES],
        }
        for i in range(count)
    }
    text = json.dumps(header).encode()
    block = os.urandom(MIB - 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        first = file.tell()
        for i in range(0, count, 3):
            file.seek(first + i * TENSOR_BYTES)
            for at in range(i * TENSOR_BYTES, (i + 1) * TENSOR_BYTES, MIB):
                file.write(at.to_bytes(8, "little") + block)  # no two alike, and made faster than drawn
        file.truncate(first + count * TENSOR_BYTES)


def sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def run(what: str, store: Path, place: Path) -> tuple[int, float]:
    """Commit or check out in a new process; return how much its memory grew, and how long it took."""
    begun_s = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, what, store, place], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return int(done.stdout), time.monotonic() - begun_s


@pytest.mark.timeout(7200)
def test_a_file_larger_than_memory_goes_in_and_comes_back(tmp_path: Path) -> None:
    nbytes = size_bytes()
    free_bytes = shutil.disk_usage(tmp_path).free
    require(free_bytes >= 1.5 * nbytes, f"needs {1.5 * nbytes:.0f} bytes of disk, {free_bytes} are free")
    place = tmp_path / "in"
    place.mkdir()
    make_file(place / "model.safetensors", nbytes)
    wanted = sha256(place / "model.safetensors")
    Store.init(tmp_path / "store").close()

    committed_bytes, commit_s = run("commit", tmp_path / "store", place)
    shutil.rmtree(place)
    checked_out_bytes, checkout_s = run("checkout", tmp_path / "store", tmp_path / "out")

    print(
        f"\na file of {nbytes / 2**30:.1f} GiB: commit took {committed_bytes / MIB:.0f} MiB of memory and "
        f"{commit_s:.0f} s, checkout {checked_out_bytes / MIB:.0f} MiB and {checkout_s:.0f} s"
    )
    assert sha256(tmp_path / "out" / "model.safetensors") == wanted
    assert committed_bytes <= MOST_MEMORY_BYTES
    assert checked_out_bytes <= MOST_MEMORY_BYTES
