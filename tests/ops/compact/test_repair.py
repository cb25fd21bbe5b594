"""Repair of compacted checkpoints: from plain and from encoded copies, and of each of their documents."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with Store.init(tmp_path / "store") as opened:
        yield opened


def compacted(store: Store, backup: Path | None = None) -> list[torch.Tensor]:
    """Save five checkpoints, copy the store, compact it."""
    generator = torch.Generator().manual_seed(1)
    values = [torch.randn(50_000, generator=generator)]
    for _ in range(4):
        moved = torch.rand(len(values[0]), generator=generator) < 0.01
        values.append(torch.where(moved, values[-1] * 1.5, values[-1]))
    for step, value in enumerate(values):
        store.save({"w": value}, step=step)
    if backup is not None:
        shutil.copytree(store.path, backup)
    store.compact()
    return values


def spoil(path: Path, how: str) -> None:
    path.parent.chmod(0o755)
    if how == "missing":
        path.unlink()
        return
    path.chmod(0o644)
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_lost_encoding_is_found_again_by_the_files_beside_it(store: Store, how: str) -> None:
    values = compacted(store)
    manifest = store.path / "checkpoints/main/0/manifest.json"
    before = json.loads(manifest.read_bytes())["manifest"]
    spoil(manifest, how)

    report = store.verify(repair=True)

    assert report.ok
    assert torch.equal(store.load(0)["w"], values[0])
    after = json.loads(manifest.read_bytes())["manifest"]
    assert {name: after[name] for name in ("checkpoint", "encoded", "files")} == {
        name: before[name] for name in ("checkpoint", "encoded", "files")
    }
    assert store.verify().ok


@pytest.mark.parametrize("also", [(), ("manifest.json",)])
@pytest.mark.parametrize("compacted_copy", [False, True])
def test_a_lost_plain_manifest_comes_from_a_copy(
    store: Store, tmp_path: Path, also: tuple[str, ...], compacted_copy: bool
) -> None:
    values = compacted(store, tmp_path / "backup")
    if compacted_copy:
        shutil.rmtree(tmp_path / "backup")
        shutil.copytree(store.path, tmp_path / "backup")
    folder = store.path / "checkpoints/main/0"
    for name in ("plain.json", *also):
        spoil(folder / name, "flipped")
    assert not store.verify(repair=True).ok

    assert store.verify(repair_from=tmp_path / "backup").ok

    assert "encoded" in json.loads((folder / "manifest.json").read_bytes())["manifest"]
    assert torch.equal(store.load(0)["w"], values[0])


def files_of(store: Store, step: int) -> list[Path]:
    return sorted((store.path / f"checkpoints/main/{step}/blobs").iterdir())


def test_an_encoded_file_comes_from_an_encoded_copy(store: Store, tmp_path: Path) -> None:
    values = compacted(store)
    shutil.copytree(store.path, tmp_path / "backup")
    for path in files_of(store, 0):
        spoil(path, "flipped")

    report = store.verify(repair_from=tmp_path / "backup")

    assert report.ok
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))


def test_a_base_comes_from_a_plain_copy(store: Store, tmp_path: Path) -> None:
    values = compacted(store, tmp_path / "backup")
    plain: list[Any] = [path for path in files_of(store, 4) if path.read_bytes()[:5] != b"ckenc"]
    for path in plain:
        spoil(path, "flipped")

    assert store.verify(repair_from=tmp_path / "backup").ok
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))
