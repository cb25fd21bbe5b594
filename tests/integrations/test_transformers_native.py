"""The Trainer whose state is saved itself, without files in between, also in the background."""

from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ckstore import BadInput, Best, CkstoreWarning, RetentionPolicy, SaveFailed, Store
from ckstore.integrations.trainer_state import write_directory
from tests.integrations import tiny_trainer
from tests.integrations.marks import TRAINS, kill_in_a_save
from tests.support.damage import blobs_by_size, flip
from tests.support.requirements import representatives, require_transformers

pytestmark = TRAINS


@pytest.fixture(autouse=True)
def _transformers() -> None:
    require_transformers()
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The weights, by name, of a run of transformers alone, without a stop."""
    from transformers import Trainer

    trainer = tiny_trainer.make(Trainer, tmp_path_factory.mktemp("whole"))
    trainer.train()
    return {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}


def assert_is(trainer: Any, whole: dict[str, torch.Tensor]) -> None:
    state = trainer.model.state_dict()
    assert state.keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in state.items())


@pytest.mark.parametrize("saves", representatives(["state", "background"], "state"))
def test_a_run_that_was_killed_in_a_save_goes_on_bit_for_bit_with_one_checkpoint(
    tmp_path: Path, whole: Any, saves: str, warm: Path
) -> None:
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=1)
    kill_in_a_save(warm, "tiny_trainer", store.path, tmp_path / "out", "", "4", saves)
    deadline = time.monotonic() + 120
    while store.savers() and time.monotonic() < deadline:  # one whose trainer died makes what it has, or gives it up
        time.sleep(0.05)
    (there,) = store.checkpoints()
    assert there.step == 2 or (saves, there.step) == ("background", 4)
    again = tiny_trainer.make(tiny_trainer.native(saves), tmp_path / "out", Store.open(store.path))

    again.train(resume_from_checkpoint="auto")

    assert_is(again, whole)
    assert [info.step for info in store.checkpoints()] == [6]
    assert again.ckstore_last.step == 6
    assert again.resumed_inexactly == ()
    assert set(os.listdir(tmp_path / "out")) <= {f".ckstore-resume-{there.step}", f"checkpoint-{there.step}"}


def test_what_is_saved_are_tensors_by_name_and_small_files_as_they_are(tmp_path: Path, whole: Any) -> None:
    from transformers import AutoModelForCausalLM, Trainer

    store = Store.init(tmp_path / "store")
    trainer = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "out", store)
    trainer.train()
    files = tiny_trainer.make(Trainer, tmp_path / "files")
    files.train()

    state = store.load(6)
    assert state["model"].keys() == whole.keys()
    assert all(torch.equal(tensor, whole[name]) for name, tensor in state["model"].items())
    assert state["optimizer"].keys() == {"state", "param_groups"}
    there = set(os.listdir(tmp_path / "files" / "checkpoint-6")) - {"model.safetensors", "optimizer.pt"}
    assert state["files"].keys() == there
    assert store.info(6).metrics["loss"] > 0
    assert os.listdir(tmp_path / "out") == []

    (tmp_path / "config.json").write_bytes(state["files"]["config.json"])
    store.export(6, tmp_path / "model", format="pretrained", select="model", add=[tmp_path / "config.json"])
    opened: Any = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    assert all(torch.equal(tensor, whole[name]) for name, tensor in opened.state_dict().items())


def test_a_damaged_newest_is_passed_over_and_the_best_is_loaded_at_the_end(tmp_path: Path, whole: Any) -> None:
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=2, keep_best=Best("eval_loss"))
    options: dict[str, Any] = {
        "eval_strategy": "steps",
        "eval_steps": 2,
        "load_best_model_at_end": True,
        "metric_for_best_model": "eval_loss",
        "learning_rate": 1.0,  # so that the last one is hardly the best
    }
    trainer = tiny_trainer.make(tiny_trainer.native("background"), tmp_path / "out", store, **options)
    trainer.train()
    best = trainer.state.best_global_step
    assert best in {info.step for info in store.checkpoints()}
    saved = store.load(best)["model"]
    assert all(torch.equal(tensor, saved[name]) for name, tensor in trainer.model.state_dict().items())

    newest = store.info("latest")
    own = [blob for blob in blobs_by_size(store, newest.step) if blob.stat().st_nlink == 2]
    flip(own[-1], own[-1].stat().st_size // 2)
    again = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "again", store, **options)
    with pytest.warns(CkstoreWarning, match=f"main@{newest.step}"):
        again.train(resume_from_checkpoint=True)
    assert store.verify("latest").ok


BEST: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "load_best_model_at_end": True,
    "metric_for_best_model": "eval_loss",
    "greater_is_better": True,
    "learning_rate": 1.0,  # so that the first one has the greatest loss
}


@pytest.fixture
def trained(tmp_path: Path) -> tuple[Store, dict[str, torch.Tensor]]:
    """A store with a run whose best checkpoint is the first, and the weights at the end of the training: the best."""
    store = Store.init(tmp_path / "store")
    trainer = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "out", store, **BEST)
    trainer.train()
    assert trainer.state.best_global_step == 2
    weights = {name: tensor.clone() for name, tensor in trainer.model.state_dict().items()}
    assert all(torch.equal(tensor, weights[name]) for name, tensor in store.load(2)["model"].items())
    assert not torch.equal(store.load(6)["model"]["transformer.wte.weight"], weights["transformer.wte.weight"])
    shutil.rmtree(tmp_path / "out")  # it goes on with another disk
    return store, weights


@pytest.mark.parametrize("saves", representatives(["files", "state", "background"], "background"))
@pytest.mark.parametrize("resumes", [1, 2])
def test_the_best_of_before_a_resume_is_loaded_at_the_end(
    tmp_path: Path, trained: tuple[Store, dict[str, torch.Tensor]], saves: str, resumes: int
) -> None:
    store, best = trained
    for number in range(resumes):
        again = tiny_trainer.make(tiny_trainer.native(saves), tmp_path / f"disk {number}", store, **BEST)
        again.train(resume_from_checkpoint="ckstore:4")

        assert again.state.best_global_step == 2
        assert again.resumed_inexactly == ()
        assert_is(again, best)


def test_the_best_of_before_a_resume_that_only_has_the_callback_is_loaded_at_the_end(
    tmp_path: Path, trained: tuple[Store, dict[str, torch.Tensor]]
) -> None:
    from transformers import Trainer

    from ckstore.integrations.transformers import CkstoreCallback, directory_to_resume

    store, best = trained
    again = tiny_trainer.make(Trainer, tmp_path / "disk", callbacks=[CkstoreCallback(store)], **BEST)
    again.train(directory_to_resume(store, tmp_path / "disk", "4")[0])

    assert_is(again, best)


@pytest.mark.parametrize("case", ["gone", "of another training", "superseded"])
def test_a_best_of_before_a_resume_is_the_same_one_or_it_is_said(
    tmp_path: Path, trained: tuple[Store, dict[str, torch.Tensor]], case: str
) -> None:
    store, best = trained
    if case == "superseded":
        store.pin(2, "evaluated")
    if case == "gone":
        store.delete(2)
    else:
        store.save({"model": {}}, 2, metrics={"eval_loss": 0.1}, if_exists="replace")
    again = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "disk", store, **BEST)

    if case == "superseded":
        again.train(resume_from_checkpoint="ckstore:4")
        assert_is(again, best)
        return
    with pytest.warns(
        CkstoreWarning, match="the best model so far, of step 2 with eval_loss .*, is not in the run main"
    ):
        again.train(resume_from_checkpoint="ckstore:4")
    (sentence,) = again.resumed_inexactly
    assert "step 2" in sentence


@pytest.mark.parametrize("saves", representatives(["state", "background"], "background"))
def test_a_rollback_saves_its_steps_again_and_a_tagged_one_stays(
    tmp_path: Path, saves: str, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.init(tmp_path / "store")
    tiny_trainer.make(tiny_trainer.native(saves), tmp_path / "out", store, learning_rate=1e-3).train()
    before = {info.step: info.id for info in store.checkpoints()}
    store.tag("good", 4)
    other = tiny_trainer.make(tiny_trainer.native(saves), tmp_path / "out", store, per_device_train_batch_size=2)

    with pytest.warns(CkstoreWarning):
        other.train(resume_from_checkpoint="ckstore:2")

    after = {info.step: info.id for info in store.checkpoints()}
    assert (after[2], store.info("good").id) == (before[2], before[4])
    assert all(after[step] != before[step] for step in (4, 6))
    assert "the older checkpoint of main@4 is kept: main@4 has the tag good" in caplog.text
    assert store.info("latest").id == after[6] == other.ckstore_last.id
    store.close()


def test_the_best_model_is_that_of_this_training_whatever_another_saved_at_its_step(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    options: dict[str, Any] = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    options |= {"load_best_model_at_end": True, "metric_for_best_model": "eval_loss", "greater_is_better": True}
    trainer = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "out", store, **options)
    load, seen = trainer._load_best_model, []

    def another_saves_first() -> None:
        best = store.info(int(trainer.state.best_model_checkpoint.rpartition("-")[2]))
        store.tag("mine", best)
        store.save({"another": 1}, best.step, best.run, if_exists="replace")
        seen.append(store.load("mine"))
        load()

    trainer._load_best_model = another_saves_first
    trainer.train()

    (mine,) = seen
    assert all(torch.equal(tensor, mine["model"][name]) for name, tensor in trainer.model.state_dict().items())
    store.close()


def test_an_adapter_of_peft_is_saved_alone_and_goes_on(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model, get_peft_model_state_dict

    store = Store.init(tmp_path / "store")

    def adapted() -> Any:
        torch.manual_seed(5)
        return get_peft_model(tiny_trainer.model(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))

    whole = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "out", store, made=adapted())
    whole.train()
    weights = {name: tensor.clone() for name, tensor in whole.model.state_dict().items()}
    again = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "out", store, made=adapted())
    again.train(resume_from_checkpoint="ckstore:4")

    assert store.load(6)["adapter"].keys() == get_peft_model_state_dict(whole.model).keys()
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in weights.items())


def test_what_cannot_be_saved_natively_is_refused_before_training(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    trainer = tiny_trainer.make(tiny_trainer.native("state"), tmp_path / "out", store, save_total_limit=1)

    with pytest.raises(BadInput, match="save_total_limit") as caught:
        trainer.train()
    assert "RetentionPolicy(keep_last=N)" in (caught.value.hint or "")
    trainer.args.save_total_limit = None
    trainer.is_fsdp_enabled = True
    with pytest.raises(BadInput, match="with FSDP rank 0 does not have"):
        trainer.train()
    trainer.is_fsdp_enabled = False
    trainer.args.push_to_hub = True
    with pytest.raises(BadInput, match="push_to_hub"):
        trainer.train()
    trainer.args.push_to_hub = False
    store.save({"something": 1}, step=2)
    with pytest.raises(BadInput, match="main@2 is a saved state, but not of a Trainer"):
        trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 0


def test_what_a_training_that_failed_was_saving_is_waited_for_by_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.integrations import trainer_state, transformers

    class Trainer:
        def train(self, _path: str | None) -> Any:
            return self.ckstore_last  # type: ignore[attr-defined]

        def add_callback(self, _callback: Any) -> None:
            pass

        remove_callback = add_callback

    def raise_error() -> Any:
        raise SaveFailed("of this test")

    store = Store.init(tmp_path / "store")
    made = type("Mixed", (transformers.CkstoreTrainerMixin, Trainer), {"ckstore_saves": "background", "ckstore": store})
    trainer: Any = made()
    trainer.args = SimpleNamespace(save_total_limit=None)
    monkeypatch.setattr(trainer_state, "check_suits", lambda _: None)
    trainer._pending = store.save_async({"x": 1}, step=2, run="another")

    assert trainer.train().step == 2
    trainer._pending = SimpleNamespace(ended=raise_error)
    with pytest.raises(SaveFailed, match="of this test"):
        trainer.train()
    assert trainer.train().step == 2
    store.close()


@pytest.mark.parametrize("name", ["../outside", "/tmp/outside", "a/../../outside", ""])
def test_a_state_from_elsewhere_writes_no_file_outside_the_directory_to_resume_from(tmp_path: Path, name: str) -> None:
    store = Store.init(tmp_path / "store")
    info = store.save({"model": {"w": torch.ones(2)}, "files": {name: b"x", "trainer_state.json": b"{}"}}, step=1)

    with pytest.raises(BadInput, match="a file of main@1 must"):
        write_directory(store, info, tmp_path / "out" / "resume")

    assert not list(tmp_path.glob("**/outside"))
    assert not (tmp_path / "out").exists()


def test_a_directory_to_resume_from_is_whole_or_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store.init(tmp_path / "store")
    files = {"trainer_state.json": b"{}"}
    info = store.save({"adapter": {"w": torch.ones(2)}, "optimizer": {"state": {}}, "files": files}, step=1)
    best = tmp_path / "out" / "checkpoint-1"
    best.parent.mkdir()

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(torch, "save", interrupt)
        with pytest.raises(KeyboardInterrupt):
            write_directory(store, info, best)
        assert os.listdir(best.parent) == []
        patch.setattr(shutil, "rmtree", lambda *_, **__: None)  # as if it was killed
        with pytest.raises(KeyboardInterrupt):
            write_directory(store, info, best)
    assert not best.exists()

    write_directory(store, info, best)

    assert os.listdir(best.parent) == ["checkpoint-1"]
    assert set(os.listdir(best)) == {"adapter_model.safetensors", "optimizer.pt", "trainer_state.json"}
