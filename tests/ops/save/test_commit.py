"""Commit: files come back byte for byte, cost what is new, and a half-written one is never taken."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from safetensors.torch import save_file

from ckstore import Store
from ckstore.errors import BadInput, CannotStore, CkstoreError, StateChanged, StepExists
from ckstore.fs.tree import Entry
from ckstore.objects.staging import Staging
from ckstore.ops.save.gather import step_in_name
from tests.support.crashing import run_and_kill
from tests.support.examples import examples
from tests.support.look import files_of, leaves_of
from tests.support.stores import check_store, disk_bytes
from tests.support.trees import Tree, look, make, trees

MIB = 2**20


def weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {
        "model.embed.weight": torch.randn(700, 600),
        "model.layers.0.weight": torch.randn(300, 33).to(torch.bfloat16),
        "model.norm": torch.ones(5),
        "big": torch.randn(900_001),
    }


def trainer_directory(folder: Path, seed: int = 0) -> Path:
    folder.mkdir(parents=True)
    save_file(weights(seed), folder / "model.safetensors", metadata={"format": "pt"})
    torch.save({"state": {0: {"exp_avg": torch.randn(300_000)}}, "param_groups": []}, folder / "optimizer.pt")
    (folder / "config.json").write_text('{"hidden": 600}')
    (folder / "rng_state.pth").write_bytes(os.urandom(5000))
    (folder / "logs").mkdir()
    (folder / "logs" / "events").write_bytes(b"")
    return folder


@pytest.mark.property
@settings(max_examples=examples(6), suppress_health_check=list(HealthCheck))
@given(tree=trees())
def test_any_tree_comes_back_as_it_was(tmp_path: Path, tree: Tree) -> None:
    place = tmp_path / str(len(list(tmp_path.iterdir())))
    place.mkdir()
    source = make(tree, place / "source")
    with Store.init(place / "store", chunk_bytes=MIB) as store:
        if not tree:
            with pytest.raises(BadInput, match="nothing to commit"):
                store.commit(source)
            return
        info = store.commit(source)
        store.checkout(info, place / "out")

        assert look(place / "out") == look(source)
        assert store.commit(source).new_bytes == 0
        assert store.verify(info).ok
    shutil.rmtree(place)


def test_a_checkpoint_directory_of_a_trainer_comes_back(store: Store, tmp_path: Path) -> None:
    source = trainer_directory(tmp_path / "checkpoint-500")

    info = store.commit(source, metrics={"loss": 2.0}, message="from the trainer", tags=["first"])

    assert (info.step, info.metrics, info.tags, info.warnings) == (500, {"loss": 2.0}, ("first",), ())
    assert info.logical_bytes == sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    store.checkout("first", tmp_path / "out")
    assert look(tmp_path / "out") == look(source)
    with store.open_checkpoint("first") as opened:
        assert opened.files() == files_of(store, "first")
        assert [file.path for file in opened.files() if file.kind == "file"] == [
            "config.json",
            "logs/events",
            "model.safetensors",
            "optimizer.pt",
            "rng_state.pth",
        ]


def test_the_same_weights_in_three_forms_are_stored_once(store: Store, tmp_path: Path) -> None:
    state = weights()
    nbytes = sum(tensor.nbytes for tensor in state.values())
    save_file(state, tmp_path / "model.safetensors")
    torch.save(state, tmp_path / "model.pt")

    store.commit(tmp_path / "model.safetensors")
    second = store.commit(tmp_path / "model.pt")
    third = store.save(state)

    assert second.new_bytes < 0.02 * nbytes
    assert third.new_bytes == 0
    assert disk_bytes(store.path) <= 1.02 * nbytes


def test_tensors_in_committed_files_are_found_by_name(store: Store, tmp_path: Path) -> None:
    state = weights()
    folder = trainer_directory(tmp_path / "run")
    torch.save(state, folder / "model.pt")

    info = store.commit(folder)

    loaded = store.load(info, select="model.safetensors")
    assert all(torch.equal(loaded["model.safetensors"][name], tensor) for name, tensor in state.items())
    with store.open_checkpoint(info) as opened:
        assert torch.equal(opened["model.pt.model.embed.weight"], state["model.embed.weight"])
        assert torch.equal(opened.slice("model.safetensors.big")[10:500_000], state["big"][10:500_000])
    mapped = store.load(info, mmap=True)
    assert torch.equal(mapped["model.safetensors"]["big"], mapped["model.pt"]["big"])
    changed = {**state, "model.norm": torch.zeros(5)}
    save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
    diff = store.diff(info, store.commit(folder))
    assert [change.name for change in diff.changed] == ["model.safetensors.model.norm"]


def test_a_file_that_is_one_tensor_is_found_by_its_own_name(store: Store, tmp_path: Path) -> None:
    torch.save(torch.arange(7), tmp_path / "x.pt")

    info = store.commit(tmp_path / "x.pt")

    assert [leaf.name for leaf in leaves_of(store, info)] == ["x.pt"]
    assert torch.equal(store.load(info)["x.pt"], torch.arange(7))


def test_a_checkpoint_of_files_without_tensors_says_so_when_it_is_loaded(store: Store, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("x")
    store.commit(tmp_path / "notes")

    with pytest.raises(BadInput, match="holds files, but no tensors that can be loaded by name"):
        store.load()


@pytest.mark.parametrize(
    "name, step",
    [
        ("checkpoint-500", 500),
        ("step-7", 7),
        ("step_7", 7),
        ("global_step90", 90),
        ("checkpoint_3", 3),
        ("iter_0000100", 100),
        ("epoch=1-step=400", 400),
        ("epoch=1-step=400.ckpt", 400),
        ("epoch=1-val_loss=0.32-step=400-v1.ckpt", 400),
        ("step=12-v2.ckpt", 12),
        ("checkpoint-500.5", 0),
        ("epoch=3", 0),
        ("best", 0),
        ("checkpoint-", 0),
        ("checkpoint-99999999999999999", 0),
    ],
)
def test_the_step_is_in_the_name_or_the_next(store: Store, tmp_path: Path, name: str, step: int) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / name / "f").write_text("x")

    assert store.commit(tmp_path / name).step == step
    assert store.commit(tmp_path / name, step=1000, run="other").step == 1000


def several(folder: Path, names: list[str]) -> list[Path]:
    for name in names:
        if name.endswith((".ckpt", ".json")):
            folder.mkdir(exist_ok=True)
            (folder / name).write_text(name)
        else:
            (folder / name).mkdir(parents=True)
            (folder / name / "f").write_text(name)
    return sorted(folder.iterdir())


@pytest.mark.parametrize(
    "names",
    [
        ["checkpoint-1000", "checkpoint-500"],
        ["global_step10", "global_step9", "latest.json"],
        ["epoch=1-step=400.ckpt", "epoch=2-step=800.ckpt", "last.ckpt"],
    ],
    ids=["transformers", "deepspeed", "lightning"],
)
def test_several_checkpoints_are_not_one(store: Store, tmp_path: Path, names: list[str]) -> None:
    out = tmp_path / "my out"
    paths = several(out, names)
    with pytest.raises(BadInput, match=rf"out holds 2 checkpoints, but one commit makes one: {names[0][:5]}") as of_one:
        store.commit(out)
    assert f"ckstore import-history '{out}' commits each" in of_one.value.command_hint
    with pytest.raises(BadInput, match="the paths are 2 checkpoints, but one commit makes one") as of_several:
        store.commit(paths)
    assert (
        "commit each separately, in the order of their steps, as ckstore.training.import_history does"
        in of_several.value.hint
    )
    ordered = sorted(
        (path for path in paths if re.search("[0-9]", path.name)), key=lambda path: step_in_name([path]) or 0
    )
    assert f"for d in {' '.join(map(shlex.quote, map(str, ordered)))}; do" in of_several.value.command_hint
    assert store.checkpoints() == []
    assert store.commit(out, step=7).step == 7
    assert store.commit(paths, step=8).step == 8


@pytest.mark.parametrize(
    "names", [["checkpoint-500"], ["global_step500", "config.json"], ["step-1.json", "step-2.json"]]
)
def test_one_checkpoint_in_a_directory_is_one(store: Store, tmp_path: Path, names: list[str]) -> None:
    several(tmp_path / "out", names)
    assert store.commit(tmp_path / "out").step == 0


def test_several_paths_keep_their_names(store: Store, tmp_path: Path) -> None:
    (tmp_path / "d" / "e").mkdir(parents=True)
    (tmp_path / "d" / "e" / "f").write_text("x")
    (tmp_path / "g").write_text("y")

    store.checkout(store.commit([tmp_path / "d", tmp_path / "g"]), tmp_path / "out")

    assert sorted(look(tmp_path / "out")) == ["d", "d/e", "d/e/f", "g"]


@pytest.mark.parametrize("there", [(), ("x",), ("d/x", "x")])
def test_paths_that_cannot_be_taken_are_refused(store: Store, tmp_path: Path, there: tuple[str, ...]) -> None:
    (tmp_path / "d").mkdir()
    (tmp_path / "d" / "x").touch()
    if len(there) == 2:
        (tmp_path / "x").touch()

    with pytest.raises(BadInput, match=r"at least one path|does not exist|two of the paths have the name x"):
        store.commit([tmp_path / name for name in there])
    assert store.checkpoints() == []


def test_a_path_that_is_a_symlink_is_followed_and_none_below_it(store: Store, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "link").symlink_to(secret)
    (folder / "up").symlink_to("..")
    (tmp_path / "latest").symlink_to("run")

    store.checkout(store.commit(tmp_path / "latest"), tmp_path / "out")

    assert os.readlink(tmp_path / "out" / "link") == str(secret)
    assert sorted(look(tmp_path / "out")) == ["link", "up"]
    assert not any(b"secret" in path.read_bytes() for path in (store.path / "blobs").rglob("xxh3-*"))


@pytest.mark.parametrize("kind", ["pipe", "socket"])
def test_what_is_no_file_is_refused(store: Store, tmp_path: Path, kind: str) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    if kind == "pipe":
        os.mkfifo(folder / "x")
    else:
        with socket.socket(socket.AF_UNIX) as one:
            os.chdir(folder)
            one.bind("x")

    with pytest.raises(CannotStore, match=f"x: it is a .*{kind}"):
        store.commit(folder)
    assert store.checkpoints() == []


def test_a_name_with_a_control_character_is_refused(store: Store, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a\nb").touch()

    with pytest.raises(CannotStore, match="control characters"):
        store.commit(tmp_path / "run")


@pytest.mark.parametrize("where", ["store", "store/checkpoints", "."])
def test_a_store_is_not_put_into_itself(store: Store, tmp_path: Path, where: str) -> None:
    with pytest.raises(BadInput, match="overlap"):
        store.commit(tmp_path / where)


@pytest.mark.parametrize(
    "name",
    [
        "checkpoint-is-incomplete.txt",
        "model.safetensors.incomplete",
        "tmp-checkpoint-500/x",
        "step-unfinished",
        "a.orbax-checkpoint-tmp-12/x",
        "dcp/__0_0.distcp",
        "model.safetensors.index.json",
    ],
)
def test_a_checkpoint_that_says_it_is_unfinished_is_refused(store: Store, tmp_path: Path, name: str) -> None:
    file = tmp_path / "run" / name
    file.parent.mkdir(parents=True)
    file.write_text('{"weight_map": {"w": "model-00001-of-00002.safetensors"}}')

    with pytest.raises(BadInput, match="not complete") as caught:
        store.commit(tmp_path / "run")
    assert "allow_incomplete=True" in caught.value.hint
    assert store.checkpoints() == []
    assert store.commit(tmp_path / "run", allow_incomplete=True).step == 0


def test_a_finished_distributed_checkpoint_is_taken(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "dcp"
    folder.mkdir()
    for name in ("__0_0.distcp", ".metadata"):
        (folder / name).write_bytes(b"x")

    assert len(store.commit(folder, step=1).id) > 6


def test_modification_times_are_kept_when_they_are_asked_for(store: Store, tmp_path: Path) -> None:
    folder = trainer_directory(tmp_path / "run")
    os.utime(folder / "config.json", ns=(1, 1_234_567_890_123_456_789))
    os.utime(folder / "logs", ns=(1, 987_654_321))

    store.checkout(store.commit(folder, times=True), tmp_path / "with")
    store.checkout(store.commit(folder), tmp_path / "without")

    assert (tmp_path / "with" / "config.json").stat().st_mtime_ns == 1_234_567_890_123_456_789
    assert (tmp_path / "with" / "logs").stat().st_mtime_ns == 987_654_321
    assert (tmp_path / "without" / "config.json").stat().st_mtime > 1_700_000_000


def test_the_same_files_at_the_same_step_are_no_error_and_others_are(store: Store, tmp_path: Path) -> None:
    folder = trainer_directory(tmp_path / "checkpoint-5")
    first = store.commit(folder)

    assert store.commit(folder).id == first.id
    (folder / "config.json").write_text("{}")
    with pytest.raises(StepExists):
        store.commit(folder)
    assert store.commit(folder, if_exists="replace").id != first.id


def test_a_file_that_only_looks_like_a_container_is_taken_with_a_warning(store: Store, tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", 2**63) + b"{}")

    info = store.commit(tmp_path / "model.safetensors")

    assert len(info.warnings) == 1
    assert "model.safetensors" in info.warnings[0]
    store.checkout(info, tmp_path / "out")
    assert (tmp_path / "out" / "model.safetensors").read_bytes() == (tmp_path / "model.safetensors").read_bytes()


# ------------------------------------------------------------------------------------------- changing files


def _append(folder: Path) -> None:
    with (folder / "rng_state.pth").open("ab") as file:
        file.write(b"x")


def _rewrite(folder: Path) -> None:
    status = (folder / "config.json").stat()
    (folder / "config.json").write_text('{"hidden": 601}')
    os.utime(folder / "config.json", ns=(status.st_atime_ns, status.st_mtime_ns))


def _to_symlink(folder: Path) -> None:
    (folder / "config.json").unlink()
    (folder / "config.json").symlink_to("rng_state.pth")


CHANGES: dict[str, Callable[[Path], object]] = {
    "append": _append,
    "rewrite in place, with its old time": _rewrite,
    "truncate": lambda folder: os.truncate(folder / "optimizer.pt", 100),
    "remove": lambda folder: (folder / "config.json").unlink(),
    "add": lambda folder: (folder / "new").touch(),
    "replace by a symlink": _to_symlink,
    "mode": lambda folder: (folder / "config.json").chmod(0o777),
}


@pytest.mark.crossed
@pytest.mark.parametrize("how", CHANGES)
@pytest.mark.parametrize("when", ["first read", "first blob", "last blob"])
def test_a_change_while_the_files_are_read_fails_the_commit(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, when: str
) -> None:
    folder = trainer_directory(tmp_path / "run")
    owner: Any = Entry if when == "first read" else Staging
    name = "read_into" if when == "first read" else "put"
    original = getattr(owner, name)
    calls = []

    def call(*args: Any, **kwargs: Any) -> Any:
        calls.append(1)
        if len(calls) == (5 if when == "last blob" else 1):
            CHANGES[how](folder)
        return original(*args, **kwargs)

    monkeypatch.setattr(owner, name, call)

    with pytest.raises(StateChanged, match=r"changed while"):
        store.commit(folder)
    assert store.checkpoints() == []
    assert os.listdir(store.path / "staging") == []


# ----------------------------------------------------------------------------------------------- collisions


def forged_pair(nbytes: int) -> tuple[bytes, bytes]:
    """Two messages with one XXH3: in two stripes the high half of a word makes the product 0, the low halves add up."""
    one = bytearray(np.random.default_rng(nbytes).bytes(nbytes))
    one[0:8] = struct.pack("<I", 7) + bytes.fromhex("23a44bbe")
    one[64:72] = struct.pack("<I", 9) + bytes.fromhex("f721ad1c")
    other = bytearray(one)
    other[0:4], other[64:68] = struct.pack("<I", 8), struct.pack("<I", 8)
    assert xxhash.xxh3_128_digest(one) == xxhash.xxh3_128_digest(other)
    assert one != other
    return bytes(one), bytes(other)


@pytest.mark.crossed
@pytest.mark.parametrize("nbytes", [300, 50_000, MIB, 3 * MIB, MIB + 400])
@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("fresh", [True, False])
def test_forged_files_with_one_digest_come_back_as_two_files(
    store: Store, tmp_path: Path, nbytes: int, together: bool, fresh: bool
) -> None:
    pair = forged_pair(nbytes)
    source = tmp_path / "source"
    source.mkdir()
    for name, data in zip("ab", pair, strict=True):
        (source / name).write_bytes(data)
        if not together:
            store.commit(source / name)
            if fresh:  # what it knows of the last save is gone
                store = Store.open(store.path)
    if together:
        store.commit(source)
    for info in [*store.checkpoints(), store.commit(source, run="again")]:
        store.checkout(info, tmp_path / "out")
        for path in (tmp_path / "out").iterdir():
            assert path.read_bytes() == (source / path.name).read_bytes()
        shutil.rmtree(tmp_path / "out")
        assert store.verify(info).ok
    assert store.commit(source, run="more").new_bytes == 0
    check_store(store.path)


# --------------------------------------------------------------------------------------------------- kills


def test_a_commit_that_is_killed_leaves_nothing_and_the_next_works(tmp_path: Path) -> None:
    source = trainer_directory(tmp_path / "checkpoint-9")
    other = trainer_directory(tmp_path / "checkpoint-8", seed=1)
    killed = 0
    for before in (True, False):
        for at in range(1, 80, 14):  # tests/faults kills it at every system call
            with Store.init(tmp_path / f"store-{before}-{at}", chunk_bytes=MIB) as store:
                store.commit(other)
                died = run_and_kill(lambda store=store: store.commit(source), at=at, before=before)  # type: ignore[misc]
                killed += died
                again = Store.open(store.path)
                assert [info.step for info in again.checkpoints()] in ([8], [8, 9])
                for info in [*again.checkpoints(), again.commit(source)]:
                    again.checkout(info, tmp_path / "out")
                    assert look(tmp_path / "out") == look(tmp_path / f"checkpoint-{info.step}")
                    shutil.rmtree(tmp_path / "out")
                check_store(store.path)
            shutil.rmtree(store.path)
            if not died:
                break

    print(f"{killed} kill points of a commit")
    assert killed > 3


def test_foreign_files_need_no_trust_with_blake3(tmp_path: Path) -> None:
    pytest.importorskip("blake3")
    store = Store.init(tmp_path / "store", hash="blake3", chunk_bytes=MIB)
    source = trainer_directory(tmp_path / "run")

    store.checkout(store.commit(source), tmp_path / "out")

    assert look(tmp_path / "out") == look(source)


def test_a_file_that_cannot_be_read_is_named(store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = trainer_directory(tmp_path / "run")

    def refuse(self: Entry, offset: int, out: memoryview) -> None:
        raise PermissionError(13, "Permission denied", str(self.where))

    monkeypatch.setattr(Entry, "read_into", refuse)

    with pytest.raises(CkstoreError, match=r"run/.* Permission denied|Permission denied"):
        store.commit(folder)
    assert store.checkpoints() == []
