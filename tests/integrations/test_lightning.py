"""Lightning with ckstore: killed, damaged, rolled back, the retention of ModelCheckpoint."""

from __future__ import annotations

import errno
import functools
import importlib.util
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import BadInput, CkstoreWarning, NoSuchRef, Store
from ckstore.fs import dirfd_stat, files
from ckstore.fs.dirfd_stat import AnyPath
from tests.integrations.marks import ROOT, TRAINS, kill_in_a_save
from tests.integrations.tiny_lightning import fit
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.requirements import require
from tests.support.states import assert_same
from tests.support.stores import check_store

pytestmark = TRAINS


@pytest.fixture
def store(tmp_path: Path) -> Store:
    require(importlib.util.find_spec("lightning") is not None, "needs lightning")
    torch.set_num_threads(1)
    return Store.init(tmp_path / "store")


def test_a_run_that_was_killed_in_a_save_and_whose_newest_is_damaged_goes_on_bit_for_bit(
    tmp_path: Path, store: Store, warm: Path
) -> None:
    whole, _ = fit(Store.init(tmp_path / "whole"), tmp_path / "one")
    kill_in_a_save(warm, "tiny_lightning", store.path, tmp_path / "two", "", "6")
    assert [info.step for info in store.checkpoints()] == [2, 4]
    assert len(list((tmp_path / "two" / "ckpt").glob("*.ckpt"))) == 2
    (blob,) = [path for path in (directory_of(store, 4) / "blobs").iterdir() if path.stat().st_nlink == 2]
    flip(blob, 0)

    with pytest.warns(CkstoreWarning, match="main@4"):
        again, _ = fit(store, tmp_path / "two", "ckstore:latest-valid")

    assert torch.equal(whole.layer.weight, again.layer.weight)
    assert [info.step for info in store.checkpoints()] == [2, 4, 6, 8]
    assert store.load(8)["hyper_parameters"] == {"width": 8}


def test_model_checkpoint_keeps_the_best_and_the_last_and_resumes_by_its_names(tmp_path: Path, store: Store) -> None:
    model, callback = fit(store, tmp_path, monitor="loss", save_top_k=1, save_last=True)
    names = sorted(os.listdir(tmp_path / "ckpt"))

    assert names == [Path(callback.best_model_path).name, "last.ckpt"]
    assert store.best("loss") == store.latest()
    last = store.info("latest")
    assert last.name == "main@8"
    assert last.metrics["loss"] == pytest.approx(float(callback.best_model_score))
    assert torch.equal(store.load(last)["state_dict"]["layer.weight"], model.layer.weight)
    again, _ = fit(store, tmp_path, str(tmp_path / "ckpt" / "last.ckpt"), save_last=True)
    assert torch.equal(again.layer.weight, model.layer.weight)


def test_a_training_with_a_last_checkpoint_that_was_killed_resumes_by_the_recipe(
    tmp_path: Path, store: Store, warm: Path
) -> None:
    whole, _ = fit(Store.init(tmp_path / "whole"), tmp_path / "one", save_last=True)
    kill_in_a_save(warm, "tiny_lightning", store.path, tmp_path / "two", "", "6", "save_last")

    resume = "ckstore:latest-valid" if store.latest() is not None else None
    again, _ = fit(store, tmp_path / "two", resume, save_last=True)

    assert torch.equal(whole.layer.weight, again.layer.weight)
    assert {info.run for info in store.checkpoints(superseded=True)} == {"main"}


def test_a_resume_with_other_settings_is_named_as_inexact(tmp_path: Path, store: Store) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    fit(store, tmp_path, options={"max_steps": 4})
    io, again = CkstoreCheckpointIO(store), CkstoreCheckpointIO(store)

    with pytest.warns(CkstoreWarning, match="resuming from ckstore:latest: .*batch size: 8 now, 4 in") as told:
        fit(store, tmp_path, "ckstore:latest", io=io, lr=0.5, batch_size=8, options={"gradient_clip_val": 0.5})
    fit(store, tmp_path, "ckstore:4", io=again)

    assert len([one for one in told if "resuming from" in str(one.message)]) == 1
    assert io.resumed_inexactly == (
        "the data loader has another batch size: 8 now, 4 in the checkpoint",
        "gradient_clip_val is 0.5 now, None in the checkpoint",
        "optimizer[0].param_groups[0]['lr'] is 0.01 as in the checkpoint, your program gave 0.5",
    )
    assert again.resumed_inexactly == ()
    fit(store, tmp_path, io=again, options={"max_steps": 0})  # no save: it resumes nothing
    check_store(store.path)


def test_a_checkpoint_of_an_older_ckstore_says_not_under_which_settings_it_was_saved(
    tmp_path: Path, store: Store
) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    fit(Store.init(tmp_path / "other"), tmp_path, options={"max_steps": 4})
    store.save(Store.open(tmp_path / "other").load(4), 4)
    io = CkstoreCheckpointIO(store)
    fit(store, tmp_path, "ckstore:4", io=io)

    assert io.resumed_inexactly == ("main@4 has no record of the conditions under which it was saved",)


def test_hyperparameters_that_cannot_be_stored_end_no_training(tmp_path: Path, store: Store) -> None:
    more = {"make": functools.partial(torch.optim.AdamW, lr=0.1), "act": torch.nn.GELU, "depth": 2}

    with pytest.warns(
        CkstoreWarning, match=r"hyper_parameters\.more\.make \(functools\.partial, kept as text\)"
    ) as told:
        model, _ = fit(store, tmp_path, more=more)
    assert len([one for one in told if one.category is CkstoreWarning]) == 1
    kept = store.load(8)["hyper_parameters"]["more"]
    assert (kept["act"], kept["depth"]) == ("torch.nn.modules.activation.GELU", 2)
    with pytest.warns(CkstoreWarning):
        again, _ = fit(store, tmp_path / "again", "ckstore:6", more=more)
    assert torch.equal(again.layer.weight, model.layer.weight)


def test_a_function_in_a_scheduler_is_left_out_and_the_scheduler_keeps_its_own(tmp_path: Path, store: Store) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))])
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
    scheduler.warm = torch.sqrt  # type: ignore[attr-defined]
    io = CkstoreCheckpointIO(store)

    with pytest.warns(CkstoreWarning, match=r"lr_schedulers\[0\]\.warm \(.*, left out\)"):
        io.save_checkpoint({"global_step": 1, "lr_schedulers": [scheduler.state_dict()]}, tmp_path / "a-step=1.ckpt")
    scheduler.load_state_dict(store.load(1)["lr_schedulers"][0])

    assert scheduler.warm is torch.sqrt  # type: ignore[attr-defined]


def test_in_the_background_nothing_is_removed_before_the_next_is_durable(tmp_path: Path, store: Store) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    whole, _ = fit(Store.init(tmp_path / "whole"), tmp_path / "one")
    there: list[set[int]] = []
    remove = CkstoreCheckpointIO._remove

    def removing(io: CkstoreCheckpointIO, place: Path) -> None:
        there.append({info.step for info in store.checkpoints()})
        remove(io, place)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(CkstoreCheckpointIO, "_remove", removing)
        fit(store, tmp_path / "two", background=True, save_top_k=1, monitor="step", mode="max")

    assert [max(there[0]) > 2, max(there[1]) > 4, max(there[2]) > 6] == [True] * 3  # what is removed is 2, 4, 6
    assert [info.step for info in store.checkpoints()] == [8]
    (marker,) = (tmp_path / "two" / "ckpt").iterdir()
    assert marker.name.endswith("step=8.ckpt")
    assert torch.equal(store.load(8)["state_dict"]["layer.weight"], whole.layer.weight)
    again, _ = fit(store, tmp_path / "three", str(marker), background=True)
    assert torch.equal(again.layer.weight, whole.layer.weight)


def test_what_a_save_in_the_background_raises_is_raised_at_the_next(tmp_path: Path, store: Store) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    io = CkstoreCheckpointIO(store, background=True)
    paths = [tmp_path / "ckpt" / f"step={step}.ckpt" for step in (2, 4, 6)]
    io.save_checkpoint({"global_step": 2}, paths[0])
    assert io.load_checkpoint(paths[0])["global_step"] == 2
    store.tag("good", 2)

    io.save_checkpoint({"global_step": 2, "other": 1}, paths[0])
    io.remove_checkpoint(paths[0])  # waits its turn, or finds that the save has ended already
    io.teardown()
    assert os.listdir(tmp_path / "ckpt") == []
    assert [info.id for info in store.checkpoints()] == [store.info("good").id]

    io.save_checkpoint({"global_step": 4}, paths[1])
    pending = io._to_do[0][1]
    assert pending is not None
    assert pending.exception() is None
    pending._error = NoSuchRef("of this test")
    with pytest.raises(NoSuchRef, match="of this test"):
        io.save_checkpoint({"global_step": 6}, paths[2])
    assert not paths[1].exists()


def test_a_file_that_lightning_itself_wrote_is_loaded_as_a_state_and_into_the_model(
    tmp_path: Path, store: Store
) -> None:
    model, callback = fit(None, tmp_path, save_top_k=1)
    (path,) = (tmp_path / "ckpt").iterdir()
    store.commit(path, step=8)
    fresh, optimizer = type(model)(), torch.optim.Adam(model.parameters())

    found = store.load(8, file=path.name)
    store.load_into({"state_dict": fresh}, 8, file=path.name, select="state_dict")
    store.load_into({"optimizer_states": [optimizer]}, 8, file=path.name, select="optimizer_states")

    assert_same(torch.load(path, weights_only=False), found)
    assert callback.best_model_path == str(path)
    assert torch.equal(fresh.layer.weight, model.layer.weight)
    assert_same(found["optimizer_states"][0]["state"], optimizer.state_dict()["state"])


def test_a_rollback_leaves_what_a_marker_names_and_a_tagged_checkpoint_is_not_deleted(
    tmp_path: Path, store: Store
) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    fit(store, tmp_path)
    first = store.info("main@6").id
    old = next((tmp_path / "ckpt").glob("*step=6.ckpt"))
    before = store.load(6)
    fit(store, tmp_path / "b", "ckstore:4")
    assert store.info("main@6").id != first
    io = CkstoreCheckpointIO(store)
    assert_same(io.load_checkpoint(old), before)
    io.remove_checkpoint(old)
    with pytest.raises(NoSuchRef):
        store.info(first)
    new = next((tmp_path / "b" / "ckpt").glob("*step=6.ckpt"))
    store.tag("good", 6)
    io.remove_checkpoint(new)
    io.remove_checkpoint(new)  # it is gone
    assert not new.exists()
    assert store.info("good").step == 6
    with pytest.raises(BadInput, match="not a marker"):
        io.load_checkpoint(new)
    with pytest.raises(BadInput, match="storage_options"):
        io.save_checkpoint({"global_step": 1}, new, storage_options={})


def test_a_tagged_checkpoint_stays_superseded_and_a_marker_of_another_store_is_refused(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    io = CkstoreCheckpointIO(store)
    path = tmp_path / "ckpt" / "epoch=0-step=6.ckpt"
    io.save_checkpoint({"global_step": 6, "way": "first"}, path)
    store.tag("good", 6)
    (path.parent / f".{path.name}.tmp").write_text("of a process that died")

    io.save_checkpoint({"global_step": 6, "way": "second"}, path)
    assert "the older checkpoint of main@6 is kept: main@6 has the tag good" in caplog.text
    assert io.load_checkpoint(path)["way"] == "second"
    assert store.load("good")["way"] == "first"
    io.save_checkpoint({"global_step": 8, "way": "second"}, path)
    assert io.load_checkpoint(path)["way"] == "second"
    assert os.listdir(path.parent) == [path.name]

    other = Store.init(tmp_path / "other")
    other.save({"way": "another"}, step=8)
    with pytest.raises(NoSuchRef, match=r"names main@8 of .*store, not of .*other"):
        CkstoreCheckpointIO(other).load_checkpoint(path)


@pytest.mark.crossed
@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("refused", ["marker", "folder"])
def test_what_a_marker_that_cannot_be_read_may_name_is_kept(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch, code: int, refused: str
) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    io = CkstoreCheckpointIO(store)
    one, two = (tmp_path / "ckpt" / f"{name}-step=2.ckpt" for name in ("best", "weights"))
    io.save_checkpoint({"global_step": 2}, one)
    shutil.copy(one, two)
    (tmp_path / "ckpt" / "of another plugin.ckpt").mkdir()
    (tmp_path / "ckpt" / "dangling.ckpt").symlink_to("nothing")
    os.mkfifo(tmp_path / "ckpt" / "pipe.ckpt")  # opened as a file, it would be waited for

    with monkeypatch.context() as patch:
        _refuse(patch, two if refused == "marker" else two.parent, code)
        with pytest.warns(CkstoreWarning, match=rf"kept checkpoint .*, since not every marker .*{os.strerror(code)}"):
            io.remove_checkpoint(one)

    assert not one.exists()
    assert io.load_checkpoint(two)["global_step"] == 2
    io.remove_checkpoint(two)
    assert store.checkpoints() == []


def test_a_file_of_lightning_itself_is_kept_and_ends_no_training(store: Store, tmp_path: Path) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    io, path = CkstoreCheckpointIO(store), tmp_path / "before-step=1.ckpt"
    written = {"global_step": 1, "pytorch-lightning_version": "2.6.6"}
    torch.save(written, path)

    with pytest.raises(BadInput, match="not a marker"):
        io.load_checkpoint(path)
    with pytest.warns(CkstoreWarning, match=r"kept .*before-step=1.ckpt"):
        io.remove_checkpoint(path)

    assert torch.load(path) == written


def test_what_is_no_checkpoint_of_a_trainer_is_a_file_of_lightning(store: Store, tmp_path: Path) -> None:
    from ckstore.integrations.lightning import CkstoreCheckpointIO

    io, path = CkstoreCheckpointIO(store), tmp_path / "w" / ".temp.ckpt"
    weights = {"global_step": torch.tensor(3), "layer.weight": torch.ones(2)}

    io.save_checkpoint(weights, path)

    assert_same(torch.load(path), weights)
    other = CkstoreCheckpointIO(store)  # that of the main process
    assert_same(other.load_checkpoint(path), weights)
    other.remove_checkpoint(path)
    assert not path.exists()
    assert store.checkpoints() == []
    path.write_bytes(b"no file of torch")
    with pytest.raises(BadInput, match="not a marker"):
        other.load_checkpoint(path)


@pytest.mark.crossed
@pytest.mark.parametrize("strategy", ["ddp_spawn", "ddp_notebook"])
@pytest.mark.parametrize("background", [False, True])
def test_a_training_in_processes_that_lightning_starts_itself_ends_as_without_a_store(
    tmp_path: Path, store: Store, strategy: str, background: bool
) -> None:
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    words = ["-m", "tests.integrations.spawned_lightning", store.path, tmp_path / "out", strategy, int(background)]
    environment = {**os.environ, "TMPDIR": str(temporary), "GLOO_SOCKET_IFNAME": "lo"}

    done = subprocess.run(
        [sys.executable, *map(str, words)], env=environment, cwd=ROOT, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stdout + done.stderr
    (info,) = store.checkpoints()
    assert info.name == "main@2"
    trained = torch.load(tmp_path / "out" / "weights.pt")
    assert_same(dict(store.load(info)["state_dict"]), trained)
    assert list(temporary.rglob("*.ckpt")) == []
    check_store(store.path)


def _refuse(patch: pytest.MonkeyPatch, place: Path, code: int) -> None:
    """Let the system refuse to open a file, or to list a directory."""
    opened, listed = dirfd_stat.open_at, os.listdir

    def opening(path: AnyPath, *rest: Any, **options: Any) -> Any:
        if str(path) == str(place):
            raise OSError(code, os.strerror(code), str(path))
        return opened(path, *rest, **options)

    def listing(path: Any = ".") -> Any:
        if path == place:
            raise OSError(code, os.strerror(code), str(path))
        return listed(path)

    patch.setattr(files, "open_at", opening)
    patch.setattr(os, "listdir", listing)


def test_a_model_that_fabric_has_set_up_is_filled_where_it_lies(store: Store) -> None:
    from lightning.fabric import Fabric

    from ckstore.tensors.targets.module_parts import parts_of

    fabric = Fabric(accelerator="cpu", devices=1)
    saved, target = torch.nn.Linear(2, 2), fabric.setup(torch.nn.Linear(2, 2))
    store.save({"model": fabric.setup(saved)}, step=1)
    place = target.weight.data_ptr()

    store.load_into({"model": target}, 1)

    assert parts_of(target).loaders == {}
    assert target.weight.data_ptr() == place
    assert_same(dict(saved.state_dict()), dict(target.state_dict()))
