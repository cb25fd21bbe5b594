"""Repair of compacted checkpoints: from plain and from encoded copies, and of each of their documents."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import Store
from ckstore.errors import DamagedBlob
from ckstore.objects import heal
from ckstore.ops.compact import plain_form
from tests.cli.conftest import Run
from tests.cli.conftest import run as run  # noqa: PLC0414 - a fixture
from tests.ops.refs.test_locked import Holder
from tests.support.checkpoint_dirs import blobs_dir, checkpoint_dir, step_of_name


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
    manifest = checkpoint_dir(store.path, "main", 0) / "manifest.json"
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
    folder = checkpoint_dir(store.path, "main", 0)
    for name in ("plain.json", *also):
        spoil(folder / name, "flipped")
    assert not store.verify(repair=True).ok

    assert store.verify(repair_from=tmp_path / "backup").ok

    assert "encoded" in json.loads((folder / "manifest.json").read_bytes())["manifest"]
    assert torch.equal(store.load(0)["w"], values[0])


def files_of(store: Store, step: int) -> list[Path]:
    return sorted(blobs_dir(store.path, "main", step).iterdir())


def test_an_encoded_file_comes_from_an_encoded_copy(store: Store, tmp_path: Path) -> None:
    values = compacted(store)
    shutil.copytree(store.path, tmp_path / "backup")
    for path in files_of(store, 0):
        spoil(path, "flipped")

    report = store.verify(repair_from=tmp_path / "backup")

    assert report.ok
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))


@pytest.mark.parametrize("plain", [False, True])
def test_a_process_that_has_read_it_before_reads_what_another_has_repaired(
    store: Store, tmp_path: Path, plain: bool
) -> None:
    values = compacted(store, tmp_path / "backup")
    if not plain:
        shutil.rmtree(tmp_path / "backup")
        shutil.copytree(store.path, tmp_path / "backup")
    with Store.open(store.path, readonly=True) as reader:
        assert all(torch.equal(reader.load(step)["w"], value) for step, value in enumerate(values))
        for path in files_of(store, 0):
            spoil(path, "flipped")
        with pytest.raises(DamagedBlob):
            reader.load(0)

        assert store.verify(repair_from=tmp_path / "backup").ok

        assert all(torch.equal(reader.load(step)["w"], value) for step, value in enumerate(values))
        assert not any(info.damaged for info in reader.checkpoints())
        assert reader.verify().ok


def test_a_base_comes_from_a_plain_copy(store: Store, tmp_path: Path) -> None:
    values = compacted(store, tmp_path / "backup")
    plain: list[Any] = [path for path in files_of(store, 4) if path.read_bytes()[:5] != b"ckenc"]
    for path in plain:
        spoil(path, "flipped")

    assert store.verify(repair_from=tmp_path / "backup").ok
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))


def blob_of(store: Store, step: int) -> str:
    with store.open_checkpoint(step) as opened:
        (blob,) = opened._directory.manifest.blobs
    return blob.digest


def spoil_all(root: Path, name: str, how: str) -> None:
    """Spoil every copy of a blob: a file that has several names only once."""
    paths = list(root.rglob(name))
    for path in paths if how == "missing" else {path.stat().st_ino: path for path in paths}.values():
        spoil(path, how)


def forms_of(store: Store, step: int) -> dict[str, str]:
    """Return the plain digest of every blob that a checkpoint has encoded -> the name of its file."""
    document = json.loads((checkpoint_dir(store.path, "main", step) / "manifest.json").read_bytes())["manifest"]
    return {item[0]: document["files"][item[2]][0] for item in document.get("encoded", ())}


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_an_encoded_piece_is_healed_by_a_plain_copy(store: Store, tmp_path: Path, how: str) -> None:
    values = compacted(store, tmp_path / "backup")
    file = forms_of(store, 1)[blob_of(store, 1)]
    spoil_all(store.path, file, how)
    assert not store.verify(repair=True).ok

    report = store.verify(repair_from=tmp_path / "backup")

    assert report.ok, report
    assert file not in forms_of(store, 1).values()
    assert not list((store.path / "checkpoints").rglob(file))
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))
    with Store.open(store.path) as again:
        assert again.verify().ok
        again.compact()
        assert all(torch.equal(again.load(step)["w"], value) for step, value in enumerate(values))


@pytest.mark.parametrize("how", ["missing", "flipped"])
def test_a_plain_piece_is_healed_by_an_encoded_copy(store: Store, tmp_path: Path, how: str) -> None:
    values = compacted(store)
    shutil.copytree(store.path, tmp_path / "backup")
    with Store.open(tmp_path / "backup") as backup:
        backup.compact(keep_newest=1)
        assert forms_of(backup, 2)
    (plain,) = {path.name for path in files_of(store, 2)}
    for root in (store.path, tmp_path / "backup"):
        spoil_all(root, plain, how)

    report = store.verify(repair_from=tmp_path / "backup")

    assert report.ok, report
    assert [repair.digest for repair in report.repaired] == [plain]
    assert "encoded form" in report.repaired[0].source
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))


def test_what_a_reader_may_be_decoding_with_stays_until_the_next_repair(store: Store, tmp_path: Path) -> None:
    values = compacted(store, tmp_path / "backup")
    plain = blob_of(store, 1)
    file = forms_of(store, 1)[plain]
    with store.open_checkpoint(1):
        spoil_all(store.path, file, "flipped")
        report = store.verify(repair_from=tmp_path / "backup")
        assert (report.ok, [one.digest for one in report.repaired]) == (True, [plain])
        assert [step_of_name(path.parts[-3]) for path in (store.path / "checkpoints").rglob(file)] == [1]
        assert torch.equal(store.load(1)["w"], values[1])

    assert store.verify(repair=True).ok
    assert not list((store.path / "checkpoints").rglob(file))
    assert os.listdir(store.path / "staging") == os.listdir(store.path / "trash") == []
    assert not store.info(1).compacted
    assert torch.equal(store.load(1)["w"], values[1])


@pytest.mark.parametrize("form", ["encoded", "plain"])
def test_a_repair_says_which_checkpoint_it_passed_over_since_another_process_has_it(
    store: Store, tmp_path: Path, form: str, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (heal, plain_form):
        monkeypatch.setattr(module, "WAIT_S", 0.05)
    value = torch.randn(50_000, generator=torch.Generator().manual_seed(2))
    for step in range(3):
        store.save({"w": value * (step + 1) if step == 2 else value}, step=step)
    shutil.copytree(store.path, tmp_path / "backup")
    file = blob_of(store, 0)
    if form == "encoded":
        store.compact(keep_newest=1)
        file = forms_of(store, 1)[file]
    spoil_all(store.path, file, "flipped")
    holder = Holder(store, 1)

    said = run("verify", "0", "--repair-from", tmp_path / "backup", "--store", store.path)
    holder.let_go()

    assert said.exit_code == DamagedBlob.exit_status
    assert "main@1 was not repaired: " in said.stdout
    assert "is locked by another process" in said.stdout
    assert torch.equal(store.load(0)["w"], value)
    with pytest.raises(DamagedBlob):
        store.load(1)
    assert store.verify(repair=True).ok
    assert torch.equal(store.load(1)["w"], value)


def test_an_encoded_piece_is_healed_by_another_encoded_form_of_it(store: Store, tmp_path: Path) -> None:
    values = compacted(store, tmp_path / "backup")
    with Store.open(tmp_path / "backup") as backup:
        backup.delete(4, now=True)
        backup.compact(keep_newest=1)
        plain = blob_of(store, 0)
        assert forms_of(backup, 0)[plain] != forms_of(store, 0)[plain]
    spoil_all(store.path, forms_of(store, 0)[plain], "flipped")

    assert store.verify(repair_from=tmp_path / "backup").ok
    assert all(torch.equal(store.load(step)["w"], value) for step, value in enumerate(values))


def test_a_checkpoint_whose_last_encoded_piece_is_healed_is_plain_again(store: Store, tmp_path: Path) -> None:
    values = compacted(store, tmp_path / "backup")
    for file in forms_of(store, 0).values():
        spoil_all(store.path, file, "flipped")

    assert store.verify(repair_from=tmp_path / "backup").ok
    assert not store.info(0).compacted
    assert [path.name for path in checkpoint_dir(store.path, "main", 0).iterdir()].count("plain.json") == 0
    assert len(files_of(store, 0)) == 1
    assert torch.equal(store.load(0)["w"], values[0])


def test_an_encoded_file_is_replaced_by_its_plain_blob_in_a_deleted_checkpoint(store: Store, tmp_path: Path) -> None:
    values = compacted(store, tmp_path / "backup")
    store.compact(keep_newest=1)
    store.config.undo_by_hand_s = 3600
    (shared,) = encoded_files(store, 1) & encoded_files(store, 2)
    store.delete(2)
    spoil(blobs_dir(store.path, "main", 1) / shared, "flipped")
    assert store.verify(repair_from=tmp_path / "backup").ok
    shutil.rmtree(tmp_path / "backup")

    store.undo(2)

    assert torch.equal(store.load(2)["w"], values[2])
    report = store.verify(repair=True)
    assert (report.ok, report.repaired) == (True, ())


def encoded_files(store: Store, step: int) -> set[str]:
    """Return the names of the encoded files of a compacted checkpoint."""
    made = json.loads((checkpoint_dir(store.path, "main", step) / "manifest.json").read_bytes())["manifest"]
    return {made["files"][file][0] for _, _, file, _ in made["encoded"]}
