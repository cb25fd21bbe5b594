"""`ExactResume`: a training of Lightning draws the same random numbers after a resume, or says what differs."""

from __future__ import annotations

import importlib.util
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CkstoreWarning, Store
from tests.integrations.exact_lightning import fit
from tests.integrations.marks import TRAINS
from tests.support.requirements import require
from tests.support.stores import check_store

pytestmark = TRAINS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    require(importlib.util.find_spec("lightning") is not None, "needs lightning")
    torch.set_num_threads(1)
    return tmp_path


def test_a_training_with_dropout_and_shuffle_continues_with_the_same_bits(folder: Path) -> None:
    whole, _ = fit(folder / "whole")
    fit(folder / "cut", stop_at=3)

    with warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        again, reported = fit(folder / "cut", resume=True, seed=5)

    assert reported == ()
    for name, weight in whole.state_dict().items():
        assert torch.equal(weight, again.state_dict()[name])


def test_a_save_without_the_callback_warns_once(folder: Path) -> None:
    with pytest.warns(CkstoreWarning, match=r"Lightning saves no random states; add ExactResume\(\)") as warned:
        fit(folder, exact=False)

    assert sum("no random states" in str(warning.message) for warning in warned) == 1


@pytest.mark.parametrize(
    "before, now, sentence",
    [
        ({}, {"batch_size": 6}, "the data loader has another batch size: 6 now, 4 in the checkpoint"),
        ({}, {"rate": 0.1}, "optimizer[0].param_groups[0]['lr'] is 0.01 as in the checkpoint, your program gave 0.1"),
        ({}, {"schedules": False}, "number of schedulers is 0 now, 1 in the checkpoint"),
        (
            {},
            {"exact": False},
            "the random states of the checkpoint are not set: add ExactResume() to the callbacks of the Trainer",
        ),
        ({"exact": False}, {}, "the checkpoint holds no random states: numbers drawn from here on will differ"),
        (
            {"every": 2, "stop_at": 2},
            {},
            "the data loader does not save its position in the data, so it begins an epoch",
        ),
    ],
    ids=[
        "batch size",
        "learning rate",
        "scheduler",
        "resumed without the callback",
        "without the callback",
        "inside an epoch",
    ],
)
def test_what_does_not_continue_exactly_is_one_warning(
    folder: Path, before: dict[str, Any], now: dict[str, Any], sentence: str
) -> None:
    fit(folder, **{"stop_at": 3, **before})

    with pytest.warns(CkstoreWarning, match="resuming from ckstore") as warned:
        _, reported = fit(folder, resume=True, **now)

    assert sentence in reported
    assert sum("resuming from ckstore" in str(warning.message) for warning in warned) == 1


def test_a_checkpoint_that_is_only_validated_sets_no_random_states(folder: Path) -> None:
    from lightning.pytorch import Trainer
    from lightning.pytorch.demos.boring_classes import BoringModel

    from ckstore.integrations.lightning import CkstoreCheckpointIO, ExactResume

    store = Store.open_or_init(folder / "store")
    callback = ExactResume()
    trainer = Trainer(
        default_root_dir=folder,
        max_steps=1,
        accelerator="cpu",
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        plugins=[CkstoreCheckpointIO(store)],
        callbacks=[callback],
    )
    model = BoringModel()
    trainer.fit(model)
    trainer.validate(model, ckpt_path="ckstore:latest-valid")
    torch.manual_seed(7)
    before = torch.get_rng_state()

    callback.on_fit_start(trainer, model)  # as the next fit does, which resumes nothing

    assert torch.equal(torch.get_rng_state(), before)
    check_store(store.path)
