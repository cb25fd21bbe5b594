"""The metrics of a store are those of `du`, as text that a collector takes."""

from __future__ import annotations

import os
import re
from pathlib import Path

import numpy as np
import pytest

from ckstore import BadInput, Store
from tests.support.checkpoint_dirs import checkpoint_dir


def test_bytes_and_runs_are_those_of_du_and_the_file_is_replaced(store: Store, tmp_path: Path) -> None:
    for step in (1, 2):
        store.save({"w": np.arange(9000) + step}, step=step, run="gpt")
    path = tmp_path / "ckstore.prom"
    path.write_text("old")

    text = store.metrics(path)

    assert path.read_text() == text
    found = dict(re.findall(r'^(\w+\{\w+="\w+")[^}]*\} (\S+)$', text, re.MULTILINE))
    used = store.du()
    assert float(found['ckstore_store_bytes{kind="alone"']) == used.alone_bytes
    assert float(found['ckstore_run_alone_bytes{run="gpt"']) == used.runs[0].alone_bytes
    assert float(found['ckstore_run_newest_step{run="gpt"']) == 2
    assert float(found['ckstore_run_damaged{run="gpt"']) == 0
    assert text.endswith("# EOF\n")


def test_a_pipe_or_a_device_is_written_to_and_not_replaced(store: Store, tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    try:
        text = store.metrics(pipe)
        assert os.read(reader, 2**16).decode() == text
    finally:
        os.close(reader)
    assert pipe.is_fifo()
    (tmp_path / "full").symlink_to("/dev/full")
    with pytest.raises(BadInput, match="No space left on device"):
        store.report(tmp_path / "full")
    assert (tmp_path / "full").is_char_device()


def test_an_empty_store_has_metrics_and_a_closed_place_is_refused(store: Store, tmp_path: Path) -> None:
    assert 'kind="free"' in store.metrics()
    with pytest.raises(BadInput, match="cannot be written"):
        store.metrics(tmp_path / "nowhere" / "ckstore.prom")


@pytest.mark.parametrize("name", ["config.json", "catalog.db", "manifest.json", "refs/new"])
def test_no_file_of_the_store_is_replaced(store: Store, tmp_path: Path, name: str) -> None:
    store.save({"w": np.arange(9)}, step=1)
    store.tag("kept", 1)
    (tmp_path / "link").symlink_to(store.path, target_is_directory=True)
    path = checkpoint_dir(store.path, "main", 1) / name if name == "manifest.json" else store.path / name
    before = path.read_bytes() if path.exists() else None

    for there in (path, tmp_path / "link" / path.relative_to(store.path)):
        for write in (store.metrics, store.report, store.write_metrics):
            with pytest.raises(BadInput, match="is in the store"):
                write(there)

    assert (path.read_bytes() if path.exists() else None) == before
    assert store.load("kept")["w"].sum() == 36
