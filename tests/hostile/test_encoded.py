"""Forged containers and encodings, each by itself: one error of ckstore, in the time and memory of what is there."""

from __future__ import annotations

import gc
import resource
import time
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

import ckstore
from ckstore import CkstoreError, Store
from tests.hostile.archives_encoded import CASES, Forged, container, publish
from tests.hostile.archives_manifests import digest
from tests.hostile.scene import Scene
from tests.support.checkpoint_dirs import checkpoint_dir

torch.set_num_threads(1)  # it is here before memory is bounded, in which it would not fit
_CPU_S = 8
_MEMORY_BYTES = 256 * 2**20
_SHORT = (
    "a frame that claims 2^62 bytes",
    "a frame with a window of 64 MiB that is cut",
    "a table of 2^60 tiles",
    "two blobs that are decoded with each other",
    "a base that is shorter than what is decoded with it",
    "an encoded blob that ends in its table",
    "runs that jump to and fro in a chain",
)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in _SHORT else [pytest.mark.whole]) for name in CASES]
)
def test_a_forged_container_is_refused_by_the_work_of_what_is_there(name: str, tmp_path: Path) -> None:
    scene = Scene(tmp_path, tmp_path / "out")
    with Store.init(scene.store) as store:
        store.save({"w": b"1" * 9000}, step=1)
    CASES[name](scene)
    gc.collect()
    start_s, before = time.process_time(), resource.getrlimit(resource.RLIMIT_AS)
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + _MEMORY_BYTES, before[1]))
    try:
        with pytest.raises(CkstoreError) as found:
            _load(checkpoint_dir(scene.store, "main", 3))
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)

    assert str(found.value)
    assert time.process_time() - start_s < _CPU_S


def test_a_blob_with_more_bases_than_stay_open_is_read(tmp_path: Path) -> None:
    scene = Scene(tmp_path, tmp_path / "out")
    Store.init(scene.store).close()
    parts = [bytes([i]) * 100 for i in range(20)]
    content = b"".join(parts) * 3
    bases = [digest(part) for part in parts]
    runs = [[100, 1, "same", i % 20, 0] for i in range(60)]
    file = container(digest(content), len(content), [(4, b"")] * 60, runs, bases)
    publish(scene, Forged([*parts, file], [[digest(content), len(content), 20, bases]]))

    assert bytes(_load(checkpoint_dir(scene.store, "main", 3))["w"]) == content


def _load(path: Path) -> Any:
    with warnings.catch_warnings(), ckstore.open_checkpoint(path) as opened:
        warnings.simplefilter("ignore")
        return opened.load()
