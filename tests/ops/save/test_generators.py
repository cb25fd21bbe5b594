"""The store takes no number of the generators that training uses: a resumed run ends like an uninterrupted one."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import torch

from ckstore import RetentionPolicy, Store


def generators() -> tuple[object, ...]:
    kind, keys, *rest = np.random.get_state(legacy=True)  # noqa: NPY002 - the global one, which training uses
    return random.getstate(), kind, np.asarray(keys).tobytes(), tuple(rest), torch.get_rng_state().numpy().tobytes()


def test_no_act_of_a_store_changes_the_global_generators(tmp_path: Path) -> None:
    state = {"big": np.arange(2**18), "small": {f"t{i}": torch.full((10,), i) for i in range(20)}}
    before = generators()

    with Store.init(tmp_path / "store") as store:
        for step in range(3):
            store.save({**state, "step": step}, step=step, metrics={"loss": step})
        store.load("latest-valid")
        store.load("latest", mmap=True)
        store.config.retention = RetentionPolicy(keep_last=2)
        store.save(state, step=9)
        assert store.verify(sample=0.5).ok
        assert store.verify().ok
        store.gc()
        store.export_safetensors("latest", tmp_path / "exported", select="small")
        store.commit(tmp_path / "exported", run="files")
        store.checkout("files@latest", tmp_path / "files")
        store.reindex()

    assert generators() == before
