"""On a full disk the catalog is told to be unavailable; the process goes on.

SQLite maps its index of the log into memory, and makes sure beforehand that each 4 KiB of it have room; on a filesystem
with smaller blocks that is not enough, and the kernel ends whoever writes there with SIGBUS.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ckstore import Store
from tests.support.filling import prepare
from tests.support.loopfs import loop_filesystem

_ROOT = Path(__file__).resolve().parents[2]
_STEPPING = """
import sys
from pathlib import Path
from ckstore.catalog import Catalog, CatalogUnavailable
from tests.support.filling import leave_bytes

mount = Path(sys.argv[1])
catalog = Catalog(mount / "store")
blobs = [(f"xxh3-{i:032x}", i) for i in range(300)]
done = 0
for kib in (*range(0, 240, 8), *range(240, 420, 2)):
    leave_bytes(mount, kib * 1024)
    try:
        catalog.listing()
        catalog.add_candidates(blobs, timeout_s=5)
        catalog.forget([digest for digest, _ in blobs], timeout_s=5)
        done += 1
    except CatalogUnavailable:
        continue
print(done)
"""


@pytest.mark.root
@pytest.mark.parametrize("block_bytes", [1024, 4096])
def test_no_number_of_free_blocks_ends_the_process(block_bytes: int, tmp_path: Path) -> None:
    with loop_filesystem("ext4", 64, tmp_path, mkfs_options=("-m", "0", "-b", str(block_bytes))) as mount:
        prepare(mount)
        Store.init(mount / "store")

        stepping = [sys.executable, "-c", _STEPPING, str(mount)]
        done = subprocess.run(stepping, check=False, capture_output=True, text=True, timeout=250, cwd=_ROOT)

    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 10
