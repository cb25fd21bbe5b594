"""accelerate with ckstore: killed, damaged, rolled back, with a limit of one."""

from __future__ import annotations

import importlib
import importlib.util
import os
import warnings
from pathlib import Path

import pytest
import torch

from ckstore import BadInput, CkstoreWarning, Store
from ckstore.training import capture
from tests.integrations.marks import TRAINS, kill_in_a_save
from tests.integrations.tiny_accelerate import train
from tests.support.damage import flip
from tests.support.look import directory_of
from tests.support.requirements import require
from tests.support.stores import check_store

pytestmark = TRAINS


@pytest.fixture
def store(tmp_path: Path) -> Store:
    require(importlib.util.find_spec("accelerate") is not None, "needs accelerate")
    torch.set_num_threads(1)
    return Store.init(tmp_path / "store")


def same(one: torch.nn.Module, other: torch.nn.Module) -> bool:
    return all(map(torch.equal, one.state_dict().values(), other.state_dict().values()))


def test_a_loop_that_was_killed_in_a_save_and_whose_newest_is_damaged_goes_on_bit_for_bit(
    tmp_path: Path, store: Store, warm: Path
) -> None:
    whole, _ = train(Store.init(tmp_path / "whole"), tmp_path / "one")
    kill_in_a_save(warm, "tiny_accelerate", store.path, tmp_path / "two", "", "2")
    assert [info.step for info in store.checkpoints()] == [0, 1]
    (largest, *_) = sorted(
        (path for path in (directory_of(store, 1) / "blobs").iterdir() if path.stat().st_nlink == 2),
        key=lambda path: -path.stat().st_size,
    )
    flip(largest)

    with pytest.warns(CkstoreWarning, match="damaged"):
        again, kept = train(store, tmp_path / "two", "latest-valid")

    assert same(whole, again)
    assert kept.resumed_inexactly == ()
    assert [info.step for info in store.checkpoints()] == [0, 1, 2, 3]
    assert store.verify().ok
    assert store.info(3).metrics["loss"] > 0


def test_a_limit_of_one_deletes_after_the_commit_and_a_rollback_and_changes_are_named(
    tmp_path: Path, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    train(store, tmp_path / "out", total_limit=1)
    assert os.listdir(tmp_path / "out" / "checkpoints") == ["checkpoint_3"]
    assert [info.step for info in store.checkpoints()] == [0, 1, 2, 3]
    before = {info.step: info.id for info in store.checkpoints()}
    store.tag("good", 2)

    with pytest.warns(CkstoreWarning, match="batch size"):
        _, kept = train(store, tmp_path / "out", "1", batch_size=8, total_limit=1)

    after = {info.step: info.id for info in store.checkpoints()}
    assert [before[step] == after[step] for step in range(4)] == [True, True, False, False]
    assert store.info("good").id == before[2]
    assert "the older checkpoint of main@2 is kept: main@2 has the tag good" in caplog.text
    assert kept.resumed_inexactly[0].startswith("the data loader has another batch size: 8 now, 4 in the checkpoint")


def test_settings_of_optimizers_and_the_precision_are_compared(tmp_path: Path, store: Store) -> None:
    train(store, tmp_path / "out")
    with pytest.warns(CkstoreWarning, match=r"param_groups\[0\]\['lr'\] is 0\.001 as in the checkpoint"):
        _, kept = train(store, tmp_path / "out", "1", lr=0.5)

    assert kept.resumed_inexactly == (
        "optimizer[0].param_groups[0]['lr'] is 0.001 as in the checkpoint, your program gave 0.5",
    )
    before = store.info(3).metadata["training"]["options"]
    assert before == {"mixed_precision": "no", "gradient_accumulation_steps": 1}
    about = {**store.info(1).metadata["training"], "options": {**before, "mixed_precision": "bf16"}}
    files = tmp_path / "files"
    store.checkout(1, files)
    store.commit(files, 9, parent="main@3", metadata={"training": about})
    with pytest.warns(CkstoreWarning, match="mixed_precision is 'no' now, 'bf16' in the checkpoint"):
        train(store, tmp_path / "again", "9")
    check_store(store.path)


def test_a_loader_that_keeps_no_place_is_named_at_the_first_save_inside_an_epoch_with_what_does(
    tmp_path: Path, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    from accelerate import Accelerator

    from ckstore.integrations.accelerate import install

    monkeypatch.setattr(importlib.import_module("ckstore.training.capture"), "_warned", set())
    accelerator = Accelerator(cpu=True)
    kept = install(accelerator, store)
    numbers = torch.utils.data.TensorDataset(torch.arange(12.0))
    loader = accelerator.prepare(torch.utils.data.DataLoader(numbers, batch_size=4, shuffle=True))

    batches = iter(loader)
    next(batches)
    with pytest.warns(
        CkstoreWarning, match=r"DataLoaderShard does not save its position.*use_stateful_dataloader=True"
    ):
        accelerator.save_state(str(tmp_path / "state-1"))
    with warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        accelerator.save_state(str(tmp_path / "state-2"))
        assert len([*batches]) == 2
        accelerator.save_state(str(tmp_path / "state-3"))
        accelerator.load_state("ckstore:3")

    assert kept.resumed_inexactly == ()
    with pytest.warns(CkstoreWarning, match="does not save its position in the data, so it begins an epoch"):
        accelerator.load_state("ckstore:2")


def test_a_loader_that_accelerate_prepared_is_refused_by_capture(store: Store) -> None:
    from accelerate import Accelerator

    numbers = torch.utils.data.TensorDataset(torch.arange(12.0))
    loader = Accelerator(cpu=True).prepare(torch.utils.data.DataLoader(numbers))

    with pytest.raises(BadInput, match="prepared by accelerate, and has no state"):
        capture(dataloader=loader)


def test_a_directory_without_a_number_takes_the_next_step_and_its_name_as_message(tmp_path: Path, store: Store) -> None:
    from accelerate import Accelerator

    from ckstore.integrations.accelerate import install

    accelerator = Accelerator(cpu=True)
    kept = install(accelerator, store)
    accelerator.save_state(str(tmp_path / "initial"))
    accelerator.save_state(str(tmp_path / "state"), step=7)
    accelerator.save_state(str(tmp_path / "final"))
    assert kept.last is not None
    assert [(info.step, info.message) for info in store.checkpoints()] == [(0, "initial"), (7, ""), (8, "final")]
    accelerator.load_state(str(tmp_path / "state"))
    accelerator.load_state("ckstore:0")


@pytest.mark.parametrize("resumed", [False, True])
def test_a_directory_of_which_the_store_knows_nothing_is_not_deleted(
    tmp_path: Path, store: Store, *, resumed: bool
) -> None:
    if resumed:
        train(store, tmp_path / "out")
        for step in (2, 3):  # such as by a policy of the store, while the project keeps its directory
            store.delete(f"main@{step}")
    lost = 3 if resumed else 0
    old = tmp_path / "out" / "checkpoints" / f"checkpoint_{lost}" / "model.safetensors"
    old.parent.mkdir(parents=True, exist_ok=True)
    old.write_bytes(b"of months")

    with pytest.warns(CkstoreWarning, match=f"checkpoint_{lost} is not in the store, and was moved to"):
        train(store, tmp_path / "out", "1" if resumed else "")

    (aside,) = (tmp_path / "out").glob(f".ckstore-replaced-*/checkpoint_{lost}/model.safetensors")
    assert aside.read_bytes() == b"of months"
    assert [info.step for info in store.checkpoints()] == [0, 1, 2, 3]
