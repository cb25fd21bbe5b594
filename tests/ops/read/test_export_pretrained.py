from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError, DamagedBlob
from tests.support.damage import MIB, blobs_by_size, flip

WEIGHTS = {"a.weight": torch.arange(6.0).reshape(2, 3), "b.bias": torch.ones(3)}


@pytest.fixture
def committed(store: Store, tmp_path: Path) -> Path:
    """A directory as a trainer leaves it, committed as step 1."""
    folder = tmp_path / "checkpoint-1"
    (folder / "templates" / "deep").mkdir(parents=True)
    save_file(WEIGHTS, folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text('{"model_type": "tiny"}')
    (folder / "templates" / "deep" / "chat.jinja").write_text("{{ messages }}")
    (folder / "modeling_tiny.py").write_text("# code")
    for name in ("optimizer.pt", "scheduler.pt", "rng_state_0.pth", "training_args.bin", "global_step1/x.pt", "latest"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_bytes(b"for a resume")
    (folder / "vocab.txt").symlink_to("templates/deep/chat.jinja")
    (folder / "gone").symlink_to("../elsewhere")
    store.commit(folder, step=1)
    return folder


def paths_in(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


def test_what_a_resume_needs_is_left_out_and_told(store: Store, tmp_path: Path, committed: Path) -> None:
    told: list[tuple[int, int]] = []

    report = store.export(1, tmp_path / "out", format="pretrained", progress=lambda *done: told.append(done))

    wanted = ["config.json", "model.safetensors", "modeling_tiny.py", "templates/deep/chat.jinja", "vocab.txt"]
    assert paths_in(tmp_path / "out") == wanted
    assert sorted(file.name for file in report.files) == wanted
    assert not (tmp_path / "out" / "vocab.txt").is_symlink()
    assert [what.partition(":")[0] for what in report.left_out] == [
        "global_step1/x.pt",
        "gone",
        "latest",
        "optimizer.pt",
        "rng_state_0.pth",
        "scheduler.pt",
        "training_args.bin",
    ]
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (committed / "model.safetensors").read_bytes()
    assert report.nbytes == sum(path.stat().st_size for path in (tmp_path / "out").rglob("*") if path.is_file())
    assert told[-1] == (2 * report.nbytes,) * 2


def test_what_is_added_stands_beside_and_replaces_nothing(store: Store, tmp_path: Path, committed: Path) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "tokenizer.json").write_text("{}")
    (mine / "model.safetensors").write_text("weights of another model")
    (mine / "below").mkdir()

    store.export(1, tmp_path / "out", format="pretrained", add=[mine, committed / "latest"])

    assert {"tokenizer.json", "latest"} <= set(os.listdir(tmp_path / "out"))
    assert load_file(tmp_path / "out" / "model.safetensors").keys() == WEIGHTS.keys()
    with pytest.raises(BadInput, match=r"config\.json cannot be added: main@1 already has config\.json"):
        store.export(1, tmp_path / "no", format="pretrained", add=[committed / "config.json"])
    (tmp_path / "templates").write_text("a file where the model has a directory")
    with pytest.raises(BadInput, match="templates cannot be added: main@1 already has templates"):
        store.export(1, tmp_path / "no", format="pretrained", add=[tmp_path / "templates"])
    with pytest.raises(BadInput, match="two files to add are named latest"):
        store.export(1, tmp_path / "no", format="pretrained", add=[committed / "latest"] * 2)
    with pytest.raises(BadInput, match="missing, which is to be added, cannot be read: No such file"):
        store.export(1, tmp_path / "no", format="pretrained", add=[tmp_path / "missing"])
    wrong: Any = "config.json"
    with pytest.raises(BadInput, match="add must be a list"):
        store.export(1, tmp_path / "no", format="pretrained", add=wrong)
    with pytest.raises(BadInput, match="add must be a list"):
        store.export(1, tmp_path / "no", format="pretrained", add=[3])  # type: ignore[list-item]
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BadInput, match="neither a file nor a directory"):
        store.export(1, tmp_path / "no", format="pretrained", add=[tmp_path / "pipe"])
    with pytest.raises(BadInput, match="add= copies files next to a model"):
        store.export(1, tmp_path / "no", add=[committed / "latest"])
    assert not (tmp_path / "no").exists()


def test_a_path_to_add_with_a_nul_is_refused_by_name(store: Store, tmp_path: Path, committed: Path) -> None:
    with pytest.raises(BadInput, match=r"'a\\x00b', which is to be added, contains a NUL"):
        store.export(1, tmp_path / "out", format="pretrained", add=["a\0b"])
    assert not (tmp_path / "out").exists()


def test_a_directory_with_the_name_of_the_weights_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "odd"
    (folder / "model.safetensors").mkdir(parents=True)
    (folder / "model.safetensors" / "notes.txt").write_text("of a user")
    torch.save(WEIGHTS, folder / "pytorch_model.bin")
    (folder / "config.json").write_text("{}")
    store.commit(folder, step=1)

    with pytest.raises(BadInput, match=r"main@1 has its own model\.safetensors"):
        store.export(1, tmp_path / "out", format="pretrained")
    assert not (tmp_path / "out").exists()


def test_what_is_added_is_what_was_looked_at_and_a_symlink_is_what_it_leads_to(
    store: Store, tmp_path: Path, committed: Path
) -> None:
    mine = tmp_path / "mine"
    mine.mkdir()
    (tmp_path / "blob").write_text("{}")
    (mine / "tokenizer.json").symlink_to("../blob")
    (mine / "empty.txt").touch()
    os.mkfifo(mine / "pipe")

    def changing(*_: int) -> None:  # to another size: times may be too coarse
        (tmp_path / "blob").write_text("[1, 2]")

    def vanishing(*_: int) -> None:
        (mine / "empty.txt").unlink(missing_ok=True)

    with pytest.raises(BadInput, match=r"tokenizer\.json, which is to be added, was changed while"):
        store.export(1, tmp_path / "out", format="pretrained", add=[mine], progress=changing)
    with pytest.raises(BadInput, match=r"empty\.txt, which is to be added, was changed while"):
        store.export(1, tmp_path / "out", format="pretrained", add=[mine], progress=vanishing)
    assert not [name for name in os.listdir(tmp_path) if "out" in name]

    store.export(1, tmp_path / "out", format="pretrained", add=[mine])
    assert not (tmp_path / "out" / "tokenizer.json").is_symlink()
    assert (tmp_path / "out" / "tokenizer.json").read_text() == "[1, 2]"
    (tmp_path / "blob").unlink()
    (mine / "loop").symlink_to("loop")
    with pytest.raises(BadInput, match="blob, which is to be added, cannot be read: No such file"):
        store.export(1, tmp_path / "no", format="pretrained", add=[mine])
    with pytest.raises(BadInput, match="loop, which is to be added, is neither a file nor a directory"):
        store.export(1, tmp_path / "no", format="pretrained", add=[mine / "loop"])


def test_an_index_without_its_files_is_no_weights_and_a_directory_no_configuration(
    store: Store, tmp_path: Path
) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text("{}")
    store.commit(folder, step=1)
    (folder / "config.json").mkdir()
    (folder / "config.json" / "inner").write_text("{}")
    torch.save(WEIGHTS, folder / "pytorch_model.bin")
    store.commit(folder, step=2)

    with pytest.raises(BadInput, match=r"main@1 has no model\.safetensors or pytorch_model\.bin at its top"):
        store.export(1, tmp_path / "out", format="pretrained")
    with pytest.raises(BadInput, match=r"needs config\.json, but main@2 has none"):
        store.export(2, tmp_path / "out", format="pretrained")
    (folder / "config.json" / "inner").unlink()
    (folder / "config.json").rmdir()
    (folder / "config.json").write_text("{}")
    store.commit(folder, step=3)

    report = store.export(3, tmp_path / "out", format="pretrained")

    assert paths_in(tmp_path / "out") == ["config.json", "model.safetensors"]
    assert report.left_out == ("model.safetensors.index.json: not part of the model",)


def test_weights_in_several_files_stay_as_they_were(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "sharded"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    names = [f"model-0000{i}-of-00002.safetensors" for i in (1, 2)]
    for name, key in zip(names, WEIGHTS, strict=True):
        save_file({key: WEIGHTS[key]}, folder / name)
    index = {"metadata": {}, "weight_map": dict(zip(WEIGHTS, names, strict=True))}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    (folder / "pytorch_model.bin").write_text("the same once more")
    store.commit(folder, step=1)

    report = store.export(1, tmp_path / "out", format="pretrained")

    assert paths_in(tmp_path / "out") == ["config.json", *names, "model.safetensors.index.json"]
    assert report.tensor_count == 2
    assert report.left_out == ("pytorch_model.bin: not part of the model",)
    with pytest.raises(BadInput, match="in several files are not split again"):
        store.export(1, tmp_path / "no", format="pretrained", max_shard_bytes=100)


def test_a_single_file_beside_shards_is_refused_with_both_names(store: Store, tmp_path: Path) -> None:
    """`from_pretrained` would read the single file, which an earlier save may have left."""
    folder = tmp_path / "hf"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    for name in ("model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"):
        save_file({name: torch.zeros(4)}, folder / name)
    store.commit(folder, 1)
    with pytest.raises(BadInput, match=r"model\.safetensors and in model-00001-of-00002\.safetensors") as raised:
        store.export(1, tmp_path / "out", format="pretrained")
    assert "empty directory" in raised.value.hint
    assert not (tmp_path / "out").exists()


def test_a_state_that_is_no_state_dict_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    add = [tmp_path / "config.json"]
    store.save({"model": WEIGHTS, "optimizer": {"m": torch.ones(2)}, "lr": 0.1, "one": torch.ones(1)}, step=1)
    store.save(WEIGHTS, step=2)
    store.save({"text": "only"}, step=3)
    store.save(torch.ones(2), step=4)

    for step, options, match in [
        (1, {"add": add}, "lr is not a tensor of one"),
        (1, {"add": add, "select": ["model", "optimizer"]}, "no common prefix"),
        (1, {"select": "model"}, r"from_pretrained needs config\.json, but main@1 has none"),
        (1, {"add": add, "select": lambda name: name.startswith("model")}, r"model\.a\.weight is not a tensor of one"),
        (1, {"add": add, "select": "model", "strip_prefix": True}, "strip_prefix works only with safetensors"),
        (3, {"add": add}, "text is not a tensor of one"),
        (4, {"add": add}, "the state is not a tensor of one"),
    ]:
        with pytest.raises(BadInput, match=match):
            store.export(step, tmp_path / "out", format="pretrained", **options)  # type: ignore[arg-type]
        assert not (tmp_path / "out").exists()

    store.export(1, tmp_path / "of-a-part", format="pretrained", select="model", add=add)
    store.export(2, tmp_path / "of-all", format="pretrained", add=add)
    for name in ("of-a-part", "of-all"):
        found = load_file(tmp_path / name / "model.safetensors")
        assert all(torch.equal(found[key], tensor) for key, tensor in WEIGHTS.items())


def test_files_that_are_no_model_are_refused_with_what_there_is(store: Store, tmp_path: Path, committed: Path) -> None:
    folder = tmp_path / "other"
    folder.mkdir()
    torch.save({"model": WEIGHTS}, folder / "pytorch_model.bin")
    store.commit(folder, step=2)

    for step, form, options, match in [
        (1, "peft", {}, r"no adapter_model\.safetensors or adapter_model\.bin at its top"),
        (1, "pretrained", {"select": "a"}, "select names no part"),
        (1, "peft", {"max_shard_bytes": 5}, "does not work with peft, which is one file"),
        (2, "pretrained", {}, r"model\.a\.weight is not a tensor of one"),
    ]:
        with pytest.raises(BadInput, match=match):
            store.export(step, tmp_path / "out", format=form, **options)  # type: ignore[arg-type]
    assert not (tmp_path / "out").exists()


@pytest.mark.crossed
@pytest.mark.parametrize("most", [50 * 10**9, MIB])
@pytest.mark.parametrize("gone", [False, True])
def test_damage_is_named_and_nothing_is_left(tmp_path: Path, gone: bool, most: int) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a.weight": torch.ones(MIB), "b.bias": torch.ones(3)}, folder / "model.safetensors")
    store = Store.init(tmp_path / "store")
    store.commit(folder, step=1)
    blob = blobs_by_size(store, 1)[-1]
    if gone:
        blob.unlink()
    else:
        flip(blob, keep_time=True)

    with pytest.raises(DamagedBlob):
        Store.open(store.path, readonly=True).export(1, tmp_path / "out", format="pretrained", max_shard_bytes=most)

    assert not [name for name in os.listdir(tmp_path) if "out" in name]


def test_a_copy_that_reads_back_otherwise_is_not_published(
    store: Store, tmp_path: Path, committed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fsync, size = os.fsync, (committed / "modeling_tiny.py").stat().st_size

    def fsync_and_rot(fd: int) -> None:
        fsync(fd)
        if os.fstat(fd).st_size == size:
            os.pwrite(fd, b"!", 0)

    monkeypatch.setattr(os, "fsync", fsync_and_rot)

    with pytest.raises(CkstoreError, match=r"modeling_tiny\.py does not read back"):
        store.export(1, tmp_path / "out", format="pretrained")

    assert not [name for name in os.listdir(tmp_path) if "out" in name]
