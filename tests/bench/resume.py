"""``sudo .venv/bin/python -m tests.bench.resume``: seconds until a new process has restored a training.

A process imports torch, makes a model and its optimizer, and only then begins to count: it imports ckstore, opens the
store and restores both. The files are cold. It is measured with the local store, and on a new node from a mirror.
For comparison, another new process only reads the same bytes, with direct reads of the files or with requests to the
service of the mirror, and a third one uses `torch.load`.
"""

from __future__ import annotations

import argparse
import mmap
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch

from ckstore import Store
from ckstore.remote.keys import BLOBS
from ckstore.remote.objects import THREADS, ObjectEntry
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from ckstore.training import capture, restore
from tests.bench.remote_requests import Bucket
from tests.bench.sizes import size
from tests.support.s3_server import BUCKET, KEY, SECRET

_PART_BYTES = 8 * 2**20
_LAYER = 512
"""Width of a layer: its matrix takes 1 MiB."""


def training(nbytes: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer, whose states will together take about `nbytes`."""
    layers = nbytes // 3 // (4 * _LAYER * _LAYER)
    model = torch.nn.Sequential(*(torch.nn.Linear(_LAYER, _LAYER) for _ in range(layers)))
    return model, torch.optim.AdamW(model.parameters())


def trained(nbytes: int) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return the same after one step."""
    model, optimizer = training(nbytes)
    for parameter in model.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizer.step()
    return model, optimizer


def from_store(folder: Path, nbytes: int) -> Callable[[], object]:
    """Restore from the local store."""
    model, optimizer = training(nbytes)
    return lambda: restore(Store.open(folder / "store"), model=model, optimizer=optimizer)


def from_mirror(folder: Path, nbytes: int) -> Callable[[], object]:
    """Restore on a new node, which has the mirror only."""
    model, optimizer = training(nbytes)
    address = _target().address

    def act() -> None:
        store = Store.open_or_init(folder / "new-node", mirror=address)
        restore(store, model=model, optimizer=optimizer)

    return act


def from_torch(folder: Path, nbytes: int) -> Callable[[], object]:
    """Load a file of `torch.save` into the same objects."""
    model, optimizer = training(nbytes)

    def act() -> None:
        state = torch.load(folder / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])

    return act


def read_files(folder: Path, nbytes: int) -> Callable[[], object]:
    """Read the blobs by direct reads into memory that is used again, two at a time."""
    paths = [path for path in (folder / "store" / "blobs").rglob("*") if path.is_file()]
    return lambda: _in_threads(2, _read_directly, paths)


def read_objects(folder: Path, nbytes: int) -> Callable[[], object]:
    """Ask the service for each blob of the mirror."""
    objects = ServiceObjects(_target())
    blobs = [*objects.list(BLOBS)]

    def read(blob: ObjectEntry) -> None:
        objects.read_into(blob.key, 0, memoryview(bytearray(blob.nbytes)))

    return lambda: _in_threads(THREADS, read, blobs)


ACTS = {act.__name__: act for act in (from_store, read_files, from_torch, from_mirror, read_objects)}


def _target() -> Target:
    return Target("url", f"s3://{BUCKET}/mirror", os.environ["AWS_ENDPOINT_URL"])


def _in_threads(count: int, act: Callable[[Any], object], items: Sequence[object]) -> None:
    with ThreadPoolExecutor(count) as threads:
        for _ in threads.map(act, items):
            pass


def _read_directly(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    try:
        with mmap.mmap(-1, _PART_BYTES) as part:
            while os.readv(fd, [part]) == _PART_BYTES:
                pass
    finally:
        os.close(fd)


def measure(name: str, folder: Path, nbytes: int) -> None:
    """Print the seconds of one act in this process."""
    torch.set_num_threads(1)
    act = ACTS[name](folder, nbytes)
    begun_s = time.perf_counter()
    act()
    print(time.perf_counter() - begun_s)


def in_new_process(name: str, folder: Path, nbytes: int) -> float:
    """Return the seconds of an act in a new process, with all files cold."""
    shutil.rmtree(folder / "new-node", ignore_errors=True)
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3", encoding="ascii")
    call = f"resume.measure({name!r}, resume.Path({str(folder)!r}), {nbytes})"
    code = f"import torch; from tests.bench import resume; {call}"
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], check=True, stdout=subprocess.PIPE, text=True)
    return float(done.stdout)


def main() -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.resume", description=__doc__)
    parser.add_argument("--dir", type=Path, default=Path("/var/tmp"), help="where the store lies")
    parser.add_argument("--size", type=size, default=2 * 2**30, help="of the state")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    torch.set_num_threads(1)
    bucket = Bucket()
    os.environ |= {"AWS_ACCESS_KEY_ID": KEY, "AWS_SECRET_ACCESS_KEY": SECRET, "AWS_ALLOW_HTTP": "true"}
    os.environ["AWS_ENDPOINT_URL"] = bucket.endpoint
    with tempfile.TemporaryDirectory(prefix="ckstore-resume-", dir=options.dir) as made:
        folder = Path(made)
        model, optimizer = trained(options.size)
        with Store.init(folder / "store") as store:
            store.save(capture(model, optimizer), step=1)
            store.remotes.add("mirror", _target().address, endpoint=bucket.endpoint)
            store.push(remote="mirror")
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, folder / "state.pt")
        del model, optimizer
        found: dict[str, list[float]] = {name: [] for name in ACTS}
        for _ in range(options.rounds):
            for name, passed in found.items():
                passed.append(in_new_process(name, folder, options.size))
    bucket.close()
    print("| act | s | ÷ reading the bytes |")
    print("| --- | --- | --- |")
    for name, floor in (("from_store", "read_files"), ("from_torch", "read_files"), ("from_mirror", "read_objects")):
        ratio = statistics.median(one / other for one, other in zip(found[name], found[floor], strict=True))
        print(f"| {name} | {statistics.median(found[name]):.2f} | {ratio:.2f} |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
