"""Sums of exports: every format, what differs and of which checkpoint, hostile sums, names that are taken, kills."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError, DamagedBlob, NewerFormat
from ckstore.fs import files, links
from ckstore.ops.read import export_files, regions
from ckstore.ops.read.export_sums import ExportSums, FileSum
from tests.support.crashing import run_and_kill
from tests.support.damage import flip
from tests.support.requirements import CRASH_FULL
from tests.support.stores import check_store

_SEAM = {
    os: ("mkdir", "open", "pwrite", "fsync", "fchmod", "link"),
    links: ("rename",),
    files: ("sync_directory",),
}
FORMATS = ("safetensors", "torch", "dcp", "pretrained", "peft")


def model() -> dict[str, torch.Tensor]:
    torch.manual_seed(0)
    whole = torch.randn(40, 30)
    return {
        "a.weight": torch.randn(64, 8),
        "b.weight": whole.t(),
        "c.weight": whole[:, ::3],
        "d.weight": torch.randn(4, 3, 2, 2).to(memory_format=torch.channels_last),
        "empty": torch.zeros(0, 3),
    }


def exported(store: Store, folder: Path, kind: str, **options: Any) -> Path:
    """Export step 1 with sums, and return the directory or file."""
    if kind in {"pretrained", "peft"}:
        config = folder / ("config.json" if kind == "pretrained" else "adapter_config.json")
        config.write_text("{}", encoding="utf-8")
        options |= {"select": "model", "add": [config]}
    return store.export(1, folder / "out", format=kind, sums=True, **options).destination  # type: ignore[arg-type]


def sums_of(out: Path) -> Path:
    return out / "SHA256SUMS" if out.is_dir() else out.with_name(f"{out.name}.sha256")


def sha256sum(out: Path) -> int:
    """Return the exit status of the program that others check with."""
    sums = sums_of(out)
    return subprocess.run(
        ["sha256sum", "--check", "--strict", "--quiet", sums.name], cwd=sums.parent, check=False, capture_output=True
    ).returncode


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("small", [False, True])
def test_every_file_has_a_sum_that_others_can_check(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, small: bool
) -> None:
    if small:  # so that tensors with strides are written in many parts that lie between each other
        monkeypatch.setattr(regions, "RANGE_BYTES", 64)
        monkeypatch.setattr(export_files, "RANGE_BYTES", 64)
        monkeypatch.setattr(export_files, "_READ_BYTES", 50)
    info = store.save({"model": model(), "lr": 0.1}, step=1)

    out = exported(store, tmp_path, kind, **({} if kind in {"torch", "peft"} else {"max_shard_bytes": 5000}))
    check = Store.verify_export(out)

    names = {path.name for path in out.iterdir()} if out.is_dir() else {"out", "out.ckstore-export.json"}
    listed = {line[66:] for line in sums_of(out).read_text().splitlines()}
    assert listed == names - {"SHA256SUMS"}
    assert sha256sum(out) == 0
    assert check.ok
    assert (check.name, check.checkpoint_id, check.file_count) == ("main@1", info.id, len(listed))
    assert check.checked_bytes == sum((sums_of(out).parent / name).stat().st_size for name in listed)
    assert str(check).startswith(f"export of main@1 ({info.id}): ")
    check_store(store.path)


@pytest.mark.parametrize("kind", FORMATS)
def test_a_flipped_byte_is_found_with_its_tensor_and_its_checkpoint(store: Store, tmp_path: Path, kind: str) -> None:
    tensors = {"a.weight": torch.full((50, 20), 2.0), "b.weight": torch.full((50, 20), 3.0)}
    info = store.save({"model": tensors}, step=1)
    out = exported(store, tmp_path, kind)
    (file,) = [out] if out.is_file() else [path for path in out.iterdir() if path.stat().st_size > 5000]
    at = file.read_bytes().index(tensors["b.weight"].numpy().tobytes()) + 1000

    flip(file, at=at)

    check = Store.verify_export(out)
    (damage,) = check.damage
    (name,) = damage.names
    assert not check.ok
    assert damage.file == file.name
    assert name.endswith("b.weight")
    assert (check.name, check.checkpoint_id) == ("main@1", info.id)
    assert f"damaged  {file.name}  {name}: its SHA-256 is " in str(check)
    assert "1 file damaged" in str(check)
    assert sha256sum(out) == 1


def test_weights_that_were_committed_are_named_by_tensor(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}", encoding="utf-8")
    save_file({"a": torch.full((999,), 2.0), "b": torch.full((999,), 3.0)}, folder / "model.safetensors")
    store.commit(folder, step=1)
    out = store.export(1, tmp_path / "out", format="pretrained", sums=True).destination
    assert sha256sum(out) == 0

    flip(out / "model.safetensors", at=os.path.getsize(out / "model.safetensors") - 1)

    assert [one.names for one in Store.verify_export(out).damage] == [("model.safetensors.b",)]


def test_damage_outside_tensors_names_none(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    out = exported(store, tmp_path, "safetensors")

    flip(out / "model.safetensors", at=20)

    (damage,) = Store.verify_export(out).damage
    assert (damage.file, damage.names) == ("model.safetensors", ())
    assert damage.what.endswith("outside its tensors")


def test_files_that_are_gone_cut_or_no_files_are_damage(store: Store, tmp_path: Path) -> None:
    store.save({"model": model(), "lr": 0.1}, step=1)
    out = exported(store, tmp_path, "safetensors")
    file = out / "state.json"
    content = file.read_bytes()

    def found() -> str:
        (damage,) = Store.verify_export(out).damage
        assert damage.file == "state.json"
        return damage.what

    file.unlink()
    assert found() == "it is missing"
    file.write_bytes(content[:-1])
    assert found().startswith("its SHA-256 is ")
    file.unlink()
    os.mkfifo(file)
    assert "is not a regular file" in found()
    file.unlink()
    (tmp_path / "same").write_bytes(content)
    file.symlink_to(tmp_path / "same")
    assert "is not a regular file" in found()


@pytest.mark.parametrize("lost", ["model.safetensors", "state.json", "ckstore-export.json"])
def test_an_exported_file_that_lost_its_sum_is_damage(store: Store, tmp_path: Path, lost: str) -> None:
    store.save({"model": model(), "lr": 0.1}, step=1)
    out = exported(store, tmp_path, "safetensors")
    lines = sums_of(out).read_text().splitlines(keepends=True)
    sums_of(out).write_text("".join(line for line in lines if not line.endswith(f"  {lost}\n")), encoding="utf-8")

    check = Store.verify_export(out)

    assert [(one.file, one.what) for one in check.damage] == [(lost, "it has no sum in SHA256SUMS")]
    assert check.file_count == len(lines) - 1


def test_a_damaged_record_is_damage_and_not_believed(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    out = exported(store, tmp_path, "safetensors")
    record = out / "ckstore-export.json"
    record.write_text(record.read_text().replace("main@1", "main@7"), encoding="utf-8")

    check = Store.verify_export(out)

    assert [one.file for one in check.damage] == ["ckstore-export.json"]
    assert (check.name, check.checkpoint_id) == ("", "")
    assert str(check).splitlines()[-1].startswith("export of an unknown checkpoint: ")


def resum(out: Path) -> None:
    """Make sums that fit the files, as someone does who changed both."""
    names = [path.name for path in out.iterdir() if path.name != "SHA256SUMS"]
    done = subprocess.run(["sha256sum", "--", *names], cwd=out, check=True, capture_output=True)
    (out / "SHA256SUMS").write_bytes(done.stdout)


def test_a_record_that_is_damaged_or_newer_is_refused(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    out = exported(store, tmp_path, "safetensors")
    record = out / "ckstore-export.json"
    document = json.loads(record.read_bytes())

    endless = {"model.safetensors": {"nbytes": float("inf"), "regions": []}}
    changed = ({"format": "x"}, {"version": True}, {"files": [1]}, {"files": endless})
    texts = ("[]", "{", "{}", "[" * 200_000, *(json.dumps({**document, **change}) for change in changed))
    for text in texts:
        record.write_text(text, encoding="utf-8")
        resum(out)
        with pytest.raises(DamagedBlob, match=r"ckstore-export\.json"):
            Store.verify_export(out)
    record.write_text(json.dumps({**document, "version": 2}), encoding="utf-8")
    resum(out)
    with pytest.raises(NewerFormat, match="version 2"):
        Store.verify_export(out)
    record.unlink()
    resum(out)
    assert Store.verify_export(out).ok  # sums of another program


def test_sums_lead_to_no_file_outside_the_export(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    out = exported(store, tmp_path, "safetensors")

    for name in ("../store/store.json", "/etc/passwd", "a/../../b"):
        (out / "SHA256SUMS").write_text(f"{'0' * 64}  {name}\n", encoding="utf-8")
        with pytest.raises(BadInput, match="a name in"):
            Store.verify_export(out)
    (out / "SHA256SUMS").write_text(f"{'0' * 64}  sub/file\n", encoding="utf-8")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").write_text("secret", encoding="utf-8")
    (out / "sub").symlink_to(tmp_path / "other")
    check = Store.verify_export(out)
    found = [(one.file, one.what) for one in check.damage]
    assert found[0] == ("sub/file", "it cannot be opened: its directory is a symlink")
    assert found[1:] == [("ckstore-export.json", "it has no sum in SHA256SUMS")]
    assert check.checked_bytes == 0


def test_an_error_of_the_system_is_one_of_ckstore(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    out = exported(store, tmp_path, "safetensors")

    with pytest.raises(CkstoreError, match="verify export failed: Not a directory"):
        Store.verify_export(out / "model.safetensors" / "state.pt")


def test_what_has_no_sums_is_said_so(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    store.export(1, tmp_path / "plain")

    with pytest.raises(BadInput, match="has no sums") as raised:
        Store.verify_export(tmp_path / "plain")
    assert "sums=True" in raised.value.hint
    (tmp_path / "plain" / "SHA256SUMS").write_text("no sum\n", encoding="utf-8")
    with pytest.raises(DamagedBlob, match="line 1 of"):
        Store.verify_export(tmp_path / "plain")


def test_names_are_escaped_as_sha256sum_does(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    (folder / "sub\\dir").mkdir(parents=True)
    (folder / "config.json").write_text("{}", encoding="utf-8")
    (folder / "back\\slash.jinja").write_text("x", encoding="utf-8")
    save_file({"a": torch.ones(9)}, folder / "model.safetensors")
    store.commit(folder, step=1)

    out = store.export(1, tmp_path / "out", format="pretrained", sums=True).destination

    assert "back\\slash.jinja" in os.listdir(out)
    assert sha256sum(out) == 0
    assert Store.verify_export(out).ok


def test_names_that_are_taken_are_refused_before_anything_is_written(store: Store, tmp_path: Path) -> None:
    store.save({"model": model()}, step=1)
    for name in ("out.sha256", "out.ckstore-export.json"):
        (tmp_path / name).write_text("mine", encoding="utf-8")
        with pytest.raises(BadInput, match=f"{name} exists"):
            store.export(1, tmp_path / "out", format="torch", sums=True)
        assert not (tmp_path / "out").exists()
        assert (tmp_path / name).read_text() == "mine"
        (tmp_path / name).unlink()
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "SHA256SUMS").write_text("", encoding="utf-8")
    add = [tmp_path / "config.json", tmp_path / "SHA256SUMS"]
    with pytest.raises(BadInput, match="SHA256SUMS cannot be added"):
        store.export(1, tmp_path / "out", format="pretrained", select="model", add=add, sums=True)


@pytest.mark.parametrize("number", [errno.EEXIST, errno.ENOSPC])
def test_a_torch_file_whose_sums_get_no_name_is_reported_as_there(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    store.save({"model": model()}, step=1)
    link = os.link

    def failing(source: Any, destination: Any, **options: Any) -> None:
        if str(destination).endswith(".sha256"):
            raise OSError(number, os.strerror(number))
        link(source, destination, **options)

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", failing)
        with pytest.raises(CkstoreError, match=r"out is complete, but .*out\.sha256 cannot be created") as raised:
            store.export(1, tmp_path / "out", format="torch", sums=True)

    assert raised.type is CkstoreError
    assert (tmp_path / "out").exists()
    assert [name for name in os.listdir(tmp_path) if "ckstore-" in name] == ["out.ckstore-export.json"]


def test_an_export_that_was_committed_gets_sums_of_its_own(store: Store, tmp_path: Path) -> None:
    store.save({"model": {"a.weight": torch.ones(99)}}, step=1)
    first = exported(store, tmp_path, "pretrained")
    store.commit(first, step=2)

    report = store.export(2, tmp_path / "again", format="pretrained", sums=True)

    assert [one for one in report.left_out if "earlier" in one] == [
        "SHA256SUMS: about an earlier export",
        "ckstore-export.json: about an earlier export",
    ]
    check = Store.verify_export(report.destination)
    assert (check.ok, check.name) == (True, "main@2")
    with safe_open(report.destination / "model.safetensors", framework="pt") as file:
        assert list(file.keys()) == ["a.weight"]


@pytest.mark.crash
def test_a_kill_at_any_step_leaves_no_sums_without_their_file(store: Store, tmp_path: Path) -> None:
    store.save({"a": torch.arange(9.0)}, step=1)
    out = tmp_path / "out.pt"
    names = [out, tmp_path / "out.pt.ckstore-export.json", tmp_path / "out.pt.sha256"]
    reader = Store.open(store.path, readonly=True)
    at = 1

    def export() -> None:
        reader.export(1, out, format="torch", sums=True)

    while run_and_kill(export, at=at, before=True, seam=_SEAM, may_fail=False):
        there = [path.exists() for path in names]
        assert there == sorted(there, reverse=True)  # the file first, its sums last
        if all(there):
            assert Store.verify_export(out).ok
        for path in names:
            path.unlink(missing_ok=True)
        export()
        assert Store.verify_export(out).ok
        for path in names:
            path.unlink()
        at += 1 if CRASH_FULL else 5

    assert at > 20


# ------------------------------------------------------------------------------- OpenSSF model signing


def test_the_statement_is_the_one_of_model_signing() -> None:
    """The order of files and the digest of all of them are those of model-signing 1.1.1 for the same directory."""
    sums = ExportSums(signs=True)
    for name in ("z", "a-b", "a.b", "B", "a/b"):
        found = FileSum(())
        found.add(0, memoryview(name.encode()))
        sums.add(name, len(name), found, ())

    said = json.loads(sums.statement("model"))

    assert [one["name"] for one in said["predicate"]["resources"]] == ["B", "a/b", "a-b", "a.b", "z"]
    assert said["predicate"]["resources"][0] == {
        "name": "B",
        "algorithm": "sha256",
        "digest": "df7e70e5021544f4834bbee64a9e3789febc4be81470df629cad6ddb03320a5c",
    }
    root = "64289cde867ebe852bc2a3daa1c4fcf1c10977627d5c734a85c2b12f0b4a2c7e"
    assert said["subject"] == [{"name": "model", "digest": {"sha256": root}}]
    assert said["_type"] == "https://in-toto.io/Statement/v1"
    assert said["predicateType"] == "https://model_signing/signature/v1.0"


@pytest.mark.parametrize("kind", ["safetensors", "dcp", "pretrained"])
def test_the_statement_names_every_other_file_of_the_export(store: Store, tmp_path: Path, kind: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    options: dict[str, Any] = {"add": [tmp_path / "config.json"]} if kind == "pretrained" else {}
    store.save(model(), step=1)
    report = store.export(1, tmp_path / "out", format=kind, sums="model-signing", **options)  # type: ignore[arg-type]

    said = json.loads((tmp_path / "out" / "model.intoto.json").read_text())

    files = {path.relative_to(tmp_path / "out").as_posix(): path for path in (tmp_path / "out").rglob("*")}
    del files["model.intoto.json"]
    assert {one["name"]: one["digest"] for one in said["predicate"]["resources"]} == {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in files.items()
    }
    assert "SHA256SUMS" in files
    assert said["subject"][0]["name"] == "out"
    assert report.files[-1].name == "model.intoto.json"
    assert sha256sum(tmp_path / "out") == 0
    assert Store.verify_export(tmp_path / "out").ok


def test_a_statement_is_for_directories_and_sums_are_no_other_word(store: Store, tmp_path: Path) -> None:
    store.save(model(), step=1)
    with pytest.raises(BadInput, match="covers a directory") as refused:
        store.export(1, tmp_path / "out.pt", format="torch", sums="model-signing")
    assert refused.value.command_hint == "pass --sums"
    for kind in ("safetensors", "dcp"):
        with pytest.raises(BadInput, match="sums must be True, False or 'model-signing', got 'md5'"):
            store.export(1, tmp_path / "out", format=kind, sums="md5")  # type: ignore[arg-type]

    assert not [path for path in tmp_path.iterdir() if path.name.startswith("out")]
