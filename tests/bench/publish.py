"""Weights for engines, by the share that changed: ``python -m tests.bench.publish FOLDER [MIB] [ROUNDS]``.

For each share, a step is published with differences and with all weights, in turn, and stand-ins for engines pull it:
on the same disk, and over links of 1 GB/s and 200 MB/s, which are readers that sleep. Seconds are the median from the
end of the save to the checked copy of the engine. CPU-seconds are those of both, on the same disk. In addition, the
engine of `examples/vllm_weights.py` reads the step into host memory, and then copies it into its model. This copy is
the pause, and one memcpy of the changed tensors is measured after it.
"""

from __future__ import annotations

import os
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

from ckstore import CkstoreWarning, Store
from tests.weights.vllm_worker import engine_of, vllm
from tests.weights.weight_engine import Link, WeightEngine, newest_version

_SHARES = (0.0002, 0.001, 0.01, 0.03, 0.1)
_LINKS = {"disk": None, "1 GB/s": 1e9, "200 MB/s": 200e6}
_KINDS = {"all": 1, "differences": 1000}  # publish all weights at least once in this number of versions
_ROW = 4096


class ServedModel:
    """The weights that an engine serves, with the method of a model of vLLM."""

    def __init__(self, weights: dict[str, torch.Tensor]) -> None:
        self.serving = {name: value.clone() for name, value in weights.items()}
        self.copied: list[str] = []

    def load_weights(self, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Copy weights into the model."""
        self.copied = []
        for name, value in weights:
            self.serving[name].copy_(value)
            self.copied.append(name)


def main(folder: str, mib: int = 1024, rounds: int = 3) -> int:
    """Print one line for each share and form of differences."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CkstoreWarning)
    rows = mib * 2**20 // (2 * _ROW) // 16
    weights = {f"layers.{i}.weight": torch.randn(rows, _ROW).mul_(0.02).bfloat16() for i in range(16)}
    all_bytes = sum(value.nbytes for value in weights.values())
    print(f"{all_bytes / 1e9:.2f} GB of bfloat16 weights in {len(weights)} tensors, median of {rounds}")
    links = [f"{name}, s | of all" for name in _LINKS]
    columns = ["changed", "form", "bytes", "of all", "CPU-s | of all", *links, "pause, ms", "of a memcpy"]
    print(f"| {' | '.join(columns)} |")
    print("| --- " * (len(columns) + len(links) + 1) + "|")
    with tempfile.TemporaryDirectory(dir=folder) as place:
        for share in _SHARES:
            for form in ("overwrite", "xor"):
                _measure(Path(place) / "case", weights, share, form, rounds)
                shutil.rmtree(Path(place) / "case")
    return 0


def _measure(folder: Path, weights: dict[str, torch.Tensor], share: float, form: Any, rounds: int) -> None:
    base = folder / "base"
    base.mkdir(parents=True)
    (base / "config.json").write_text("{}")
    options: dict[str, Any] = {"select": "model", "add": [base], "timeout_s": 0, "difference": form, "keep_full": 1}
    took: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    sizes: dict[str, int] = {}
    with Store.init(folder / "store") as store:
        store.save({"model": weights}, 0, "policy")
        with (
            store.publish("policy", folder / "all", **options, full_every=_KINDS["all"]) as one,
            store.publish("policy", folder / "differences", **options, full_every=_KINDS["differences"]) as two,
            vllm(),
            engine_of(ServedModel(weights)) as served,
        ):
            served.init_transfer_engine(served.parse_init_info({"store": str(store.path), "in_place": True}))
            served.update_weights({"ref": "policy@0", "load": True})
            publishers = {"all": one, "differences": two}
            for step in range(rounds + 1):
                if step:
                    _train(weights, share)
                    store.save({"model": weights}, step, "policy")
                for kind, publisher in publishers.items():
                    os.sync()  # the disk must not write the copies of the last engines meanwhile
                    began_s, began_cpu_s = time.monotonic(), time.process_time()
                    sizes[kind] = next(publisher).nbytes
                    took[kind, "publishing"].append(time.monotonic() - began_s)
                    for name, rate in _LINKS.items():
                        engine = WeightEngine(folder / f"{kind} {name}", base, Link(rate) if rate else None)
                        os.sync()
                        began_s = time.monotonic()
                        engine.pull(folder / kind, newest_version(folder / kind))
                        took[kind, name].append(took[kind, "publishing"][-1] + time.monotonic() - began_s)
                        if rate is None:
                            took[kind, "CPU"].append(time.process_time() - began_cpu_s)
                if step:
                    _pause(served, weights, step, took)
            served.shutdown()
    # The first version has all weights in both.
    median = {key: statistics.median(times[-rounds:]) for key, times in took.items()}
    cells = [f"{share:.2%}", form, f"{sizes['differences'] / 1e6:.1f} MB", f"{sizes['differences'] / sizes['all']:.4f}"]
    for name in ("CPU", *_LINKS):
        cells += [f"{median['differences', name]:.2f}", f"{median['differences', name] / median['all', name]:.2f}"]
    pause_s, memcpy_s = median["served", "pause"], median["served", "memcpy"]
    cells += [f"{pause_s * 1e3:.1f}", f"{pause_s / memcpy_s:.2f}"]
    print(f"| {' | '.join(cells)} |", flush=True)


def _pause(served: Any, weights: dict[str, torch.Tensor], step: int, took: Any) -> None:
    """Load a step into the model of an engine, and then copy the changed tensors once more."""
    ref = f"policy@{step}"
    served.update_weights({"ref": ref})
    began_s = time.monotonic()
    served.update_weights({"ref": ref, "load": True})
    took["served", "pause"].append(time.monotonic() - began_s)
    model, host = served.model, served.host["model"]
    began_s = time.monotonic()
    for name in model.copied:
        model.serving[name].copy_(host[name])
    took["served", "memcpy"].append(time.monotonic() - began_s)
    if not all(torch.equal(model.serving[name], value) for name, value in weights.items()):
        raise ValueError(f"the engine serves other weights than step {step} has")


def _train(weights: dict[str, torch.Tensor], share: float) -> None:
    """Change a share of the values by one unit in their last place, as small learning rates do."""
    for value in weights.values():
        flat = value.view(-1).view(torch.int16)
        where = torch.randint(len(flat), (max(1, int(share * len(flat))),))
        flat[where] += 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], *map(int, sys.argv[2:])))
