"""Weights for engines, by the share that changed: ``python -m tests.bench.publish FOLDER [MIB] [ROUNDS]``.

For each share, a step is published with differences and with all weights, in turn, and a stand-in for an engine pulls
it. Seconds are the median from the end of the save to the checked copy of the engine, all on one disk.
"""

from __future__ import annotations

import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

import torch

from ckstore import CkstoreWarning, Store
from tests.weights.weight_engine import WeightEngine, newest_version

_SHARES = (0.0002, 0.001, 0.01, 0.05, 0.1)
_ROW = 4096


def main(folder: str, mib: int = 1024, rounds: int = 3) -> int:
    """Print one line for each share and form of differences."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CkstoreWarning)
    rows = mib * 2**20 // (2 * _ROW) // 16
    weights = {f"layers.{i}.weight": torch.randn(rows, _ROW).mul_(0.02).bfloat16() for i in range(16)}
    all_bytes = sum(value.nbytes for value in weights.values())
    print(f"{all_bytes / 1e9:.2f} GB of bfloat16 weights in {len(weights)} tensors, median of {rounds}")
    print("| changed | form | bytes | share of all | seconds | share of all | publishing | applying |")
    print("| --- | --- | --- | --- | --- | --- | --- | --- |")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for share in _SHARES:
            for form in ("overwrite", "xor"):
                _measure(Path(place), weights, share, form, rounds)
    return 0


def _measure(place: Path, weights: dict[str, torch.Tensor], share: float, form: Any, rounds: int) -> None:
    folder = place / "case"
    base = folder / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    options: dict[str, Any] = {"select": "model", "add": [base], "timeout_s": 0, "difference": form, "keep_full": 1}
    took: dict[str, list[tuple[float, float]]] = {"all": [], "differences": []}
    sizes: dict[str, int] = {}
    with Store.init(folder / "store") as store:
        store.save({"model": weights}, 0, "policy")
        kinds = {"all": 1, "differences": 1000}
        with (
            store.publish("policy", folder / "all", **options, full_every=kinds["all"]) as one,
            store.publish("policy", folder / "differences", **options, full_every=kinds["differences"]) as two,
        ):
            publishers = {"all": one, "differences": two}
            engines = {kind: WeightEngine(folder / f"{kind}-engine", base) for kind in kinds}
            for step in range(rounds + 1):
                if step:
                    _train(weights, share)
                    store.save({"model": weights}, step, "policy")
                for kind, publisher in publishers.items():
                    began_s = time.monotonic()
                    version = next(publisher)
                    published_s = time.monotonic()
                    engines[kind].pull(folder / kind, newest_version(folder / kind))
                    if step:
                        took[kind].append((published_s - began_s, time.monotonic() - published_s))
                        sizes[kind] = version.nbytes
    shutil.rmtree(folder)
    publishing, applying = (statistics.median(one[at] for one in took["differences"]) for at in (0, 1))
    seconds = {kind: statistics.median(map(sum, times)) for kind, times in took.items()}
    print(
        f"| {share:.2%} | {form} | {sizes['differences'] / 1e6:.1f} MB | {sizes['differences'] / sizes['all']:.4f} "
        f"| {seconds['differences']:.2f} | {seconds['differences'] / seconds['all']:.2f} | {publishing:.2f} "
        f"| {applying:.2f} |",
        flush=True,
    )


def _train(weights: dict[str, torch.Tensor], share: float) -> None:
    """Change a share of the values by one unit in their last place, as small learning rates do."""
    for value in weights.values():
        flat = value.view(-1).view(torch.int16)
        where = torch.randint(len(flat), (max(1, int(share * len(flat))),))
        flat[where] += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
