"""A reader in another language, written from the format pages alone, reads what ckstore writes.

``make javascript`` installs its two packages from npm and runs these tests. They need Node 20.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import ckstore
from tests.compat.archives import ARCHIVES, unpack
from tests.format import reader
from tests.format.test_reader import STATES
from tests.support.look import directory_of
from tests.support.stores import check_store

SOURCE = Path(__file__).parent / "javascript"
PACKAGES = Path(__file__).resolve().parents[2] / "build" / "javascript"
MIB = 2**20

pytestmark = pytest.mark.skipif(
    not (PACKAGES / "node_modules").exists(), reason="needs two packages from npm: make javascript"
)


def run(*words: object) -> subprocess.CompletedProcess[str]:
    """Run the reader beside its packages."""
    # Renamed, since node in another worker may be reading the file: of an empty one, it prints nothing.
    fresh = PACKAGES / f"reader-{os.getpid()}.new"
    shutil.copy(SOURCE / "reader.mjs", fresh)
    fresh.replace(PACKAGES / "reader.mjs")
    command = ["node", str(PACKAGES / "reader.mjs"), *map(str, words)]
    return subprocess.run(command, check=False, capture_output=True, text=True, timeout=120)


def shown(store: Path, ref: str) -> dict[str, Any]:
    """Return what the reader shows of a checkpoint."""
    done = run("show", store, ref)
    assert (done.returncode, done.stderr) == (0, "")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def digests(checkpoint: reader.Checkpoint) -> dict[str, str]:
    """Return the names of the leaves, and the SHA-256 of their bytes, as the reader in Python finds them."""
    found = {}
    for index, leaf in enumerate(checkpoint.manifest["leaves"]):
        value = checkpoint.leaf(index)
        if isinstance(value, reader.Tensor):
            found[leaf["name"]] = hashlib.sha256(value.data).hexdigest()
    return found


def compare(store: Path, run_name: str, step: int) -> None:
    """Compare all leaves of a checkpoint in both readers."""
    checkpoint = reader.Store(store).checkpoints()[run_name, step]
    there = shown(store, f"{run_name}@{step}")
    wanted = digests(checkpoint)
    assert there["id"] == checkpoint.id
    assert set(there["tensors"]) == {leaf["name"] for leaf in checkpoint.manifest["leaves"]}
    assert {name: there["tensors"][name]["sha256"] for name in wanted} == wanted


def test_every_kind_of_state_is_read(tmp_path: Path) -> None:
    with ckstore.Store.init(tmp_path / "store", chunk_bytes=MIB) as store:
        for name, state in STATES.items():
            store.save(state, step=len(name), run=name)
    (tmp_path / "store" / "checkpoints" / ".try-0123456789ab").touch()  # left by a writer that was killed

    for name in STATES:
        compare(tmp_path / "store", name, len(name))
    (tmp_path / "store" / "checkpoints" / ".try-0123456789ab").unlink()
    check_store(tmp_path / "store")


def test_compacted_checkpoints_are_read_in_each_form_of_a_tile(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(5)
    weights = torch.randn(2**18, generator=generator)
    table = torch.randn(2**18, generator=generator).bfloat16()
    with ckstore.Store.init(tmp_path / "store") as store:
        for step in range(1, 6):
            weights = weights + torch.randn(2**18, generator=generator) * 1e-4
            table = table.clone()
            table[:: 500 * step] += 1
            counts = torch.arange(2**16) // 3 + step
            fresh = torch.randn(2**18, generator=generator)
            store.save({"w": weights, "w16": weights.half(), "t": table, "n": counts, "fresh": fresh}, step=step)
        assert store.compact(keep_newest=1).encoded_count

    for step in range(1, 6):
        compare(tmp_path / "store", "main", step)
    check_store(tmp_path / "store")


@pytest.mark.parametrize("archive", ARCHIVES, ids=lambda path: f"{path.parent.name}-{path.name.partition('.')[0]}")
def test_the_stores_of_all_versions_are_read(archive: Path, tmp_path: Path) -> None:
    made = unpack(archive, tmp_path)
    absent = made.facts("damaged") | made.facts("remote_only")
    for name, id in made.contents["listed"].items():
        if id not in absent and "values" in made.contents["saved"][id]:
            run_name, _, step = name.partition("@")
            compare(made.root, run_name, int(step))


def test_committed_files_are_extracted(tmp_path: Path) -> None:
    folder = tmp_path / "files"
    (folder / "sub").mkdir(parents=True)
    torch.save({"w": torch.arange(1000.0)}, folder / "sub" / "model.pt")
    (folder / os.fsdecode(b"bytes-\xff")).write_bytes(b"not UTF-8")
    (folder / "link").symlink_to("sub/model.pt")
    with ckstore.Store.init(tmp_path / "store") as store:
        store.commit(folder, step=1)

    done = run("extract", tmp_path / "store", "main@1", tmp_path / "out")

    assert (done.returncode, done.stderr) == (0, "")
    for path in sorted(folder.rglob("*")):
        copy = tmp_path / "out" / path.relative_to(folder)
        assert (path.is_symlink(), path.is_dir()) == (copy.is_symlink(), copy.is_dir())
        assert path.is_dir() or path.read_bytes() == copy.read_bytes()
    check_store(tmp_path / "store")


def test_a_flipped_bit_and_a_newer_manifest_are_errors(tmp_path: Path) -> None:
    with ckstore.Store.init(tmp_path / "store") as store:
        info = store.save({"w": np.arange(1000.0)}, step=1)
        directory = directory_of(store, info)
    (blob,) = (directory / "blobs").iterdir()
    os.chmod(blob, 0o644)
    data = bytearray(blob.read_bytes())
    data[100] ^= 1
    blob.write_bytes(data)

    damaged = run("show", tmp_path / "store", "main@1")

    assert damaged.returncode == 1
    assert blob.name in damaged.stderr
    settings = tmp_path / "store" / "store.json"
    os.chmod(settings, 0o644)
    document = json.loads(settings.read_bytes())
    document.pop("digest", None)
    settings.write_text(json.dumps({**document, "requires": [*document["requires"], "future"]}))
    newer = run("list", tmp_path / "store")
    assert newer.returncode == 1
    assert '"future"' in newer.stderr
