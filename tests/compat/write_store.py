"""Write the store that `test_stores_of_drafts` reads, as a tar file; run once for each draft that is released.

``python -m tests.compat.write_store draft-2026-11`` with the repository as the working directory.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ckstore import Ranks, Store
from tests.support.gloo import Group

HERE = Path(__file__).parent
CASES = HERE.parent / "integrations" / "dcp_cases.py"


def write(name: str) -> None:
    """Write ``NAME.tar.gz`` beside this file."""
    with tempfile.TemporaryDirectory() as folder:
        store = Store.init(Path(folder) / "store")
        shared = torch.arange(12, dtype=torch.bfloat16).reshape(3, 4)
        store.save({"model": {"w": shared, "tied": shared}, "lr": 0.1, "names": ["a", "b"]}, step=1, tags=["first"])
        with Group(2, Path(folder), CASES) as group:
            group.run("save_shards", store=str(store.path), step=2)
        store.save({"own": 7}, step=3, ranks=Ranks(0, 1, "compat"))
        (Path(folder) / "file.txt").write_text("committed")
        store.commit(Path(folder) / "file.txt", step=4)
        store.gc()
        target = HERE / f"{name}.tar.gz"
        subprocess.run(["tar", "-czf", target, "--exclude=catalog.db*", "-C", folder, "store"], check=True)


if __name__ == "__main__":
    write(sys.argv[1])
