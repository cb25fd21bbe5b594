"""Write the stores that `test_stores_of_drafts` reads, as tar files; run once for each draft that is released.

``python -m tests.compat.write_store draft-2026-11`` with the repository as the working directory. With ``steps-`` in
the name it is the store of `write_steps`; ``steps-2026-11`` was written by commit 35f3e85f, the last that named the
directory of a checkpoint after its step.
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


def weights(step: int) -> dict[str, torch.Tensor]:
    """Return what `write_steps` saves: most of it is the same at each step."""
    numbers = torch.arange(20_000, dtype=torch.float32)
    numbers[step::100] += step
    return {"w": numbers, "bias": torch.full((5,), float(step)), "fixed": torch.arange(7)}


def write_steps(name: str) -> None:
    """Write ``NAME.tar.gz``, with its catalog: tags, pins, notes, compacted and deleted checkpoints, two runs."""
    with tempfile.TemporaryDirectory() as folder:
        with Store.init(Path(folder) / "store", chunk_bytes=2**20) as store:
            for step in range(6):
                store.save(weights(step), step=step, metrics={"loss": 1 / (step + 1)}, message=f"step {step}")
            store.save(weights(9), step=5, run="side", tags=["side"])
            store.compact(run="main", keep_newest=3)
            store.tag("best", 2)
            store.tag("first", 0)
            store.pin(3, "figure 3")
            store.annotate(4, metrics={"bleu": 27.5}, note="diverges")
            store.save(weights(7), step=4, if_exists="replace")
            store.config.undo_by_hand_s = 86_400
            store.delete(1)
            store.gc()
        excluded = ["--exclude=reserve/*", "--exclude=events.jsonl"]
        subprocess.run(["tar", "-czf", HERE / f"{name}.tar.gz", *excluded, "-C", folder, "store"], check=True)


if __name__ == "__main__":
    (write_steps if sys.argv[1].startswith("steps-") else write)(sys.argv[1])
