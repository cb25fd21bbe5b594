"""What it costs of a processor to look for values that are not finite: ``python -m tests.bench.health [GIB [ROUNDS]]``.

Saves with the default share, with all of it, and without, take turns in one process; each kind of save is compared with
the one without of the same round. The medians are printed, and the ratio of the fastest ones, which other work on the
machine disturbs least.
"""

from __future__ import annotations

import logging
import shutil
import statistics
import sys
import tempfile
import time
import warnings
from pathlib import Path

import torch

from ckstore import Store

SHARES = (0.0, 0.0625, 1.0)
DTYPES = (torch.float32, torch.bfloat16)
TENSORS = 16
# One element in each 4 KiB: enough that every chunk is another, and little work of the processor.
STRIDE_BYTES = 4096


def measure(folder: Path, dtype: torch.dtype, gib: float, rounds: int) -> dict[tuple[str, float], list[float]]:
    """Return the seconds of a processor of each save, by what was saved and the share."""
    store = Store.init(folder / f"{dtype}".removeprefix("torch."))
    count = int(gib * 2**30) // dtype.itemsize // TENSORS
    state = {f"w{i}": torch.randn(count).to(dtype) for i in range(TENSORS)}
    found: dict[tuple[str, float], list[float]] = {}
    step = 0
    for number in range(rounds + 1):
        for share in SHARES if number % 2 else SHARES[::-1]:
            store.config.health_share = share
            for tensor in state.values():
                tensor[:: STRIDE_BYTES // dtype.itemsize] += 0.5
            for kind in ("new", "unchanged"):
                step += 1
                begun_s = time.process_time()
                store.save(state, step=step)
                if number:  # the first round warms up
                    found.setdefault((kind, share), []).append(time.process_time() - begun_s)
            for info in store.checkpoints()[:-1]:
                store.delete(info, now=True)
    store.close()
    return found


def main() -> None:
    """Measure, and print a line for each kind of save."""
    gib, rounds = float([*sys.argv, "2"][1]), int([*sys.argv, "", "9"][2] or 9)
    warnings.simplefilter("ignore")
    logging.disable()
    torch.set_num_threads(1)
    folder = Path(tempfile.mkdtemp(prefix="ckstore-health-"))
    try:
        for dtype in DTYPES:
            found = measure(folder, dtype, gib, rounds)
            for (kind, share), seconds in found.items():
                without = found[kind, 0.0]
                paired = statistics.median(one / other for one, other in zip(seconds, without, strict=True))
                print(
                    f"{dtype} {gib:g} GiB {kind:9} share {share:<5g} median {statistics.median(seconds):.3f} s, "
                    f"{paired:.3f} of the one without; fastest {min(seconds):.3f} s, {min(seconds) / min(without):.3f}"
                )
    finally:
        shutil.rmtree(folder)


if __name__ == "__main__":
    main()
