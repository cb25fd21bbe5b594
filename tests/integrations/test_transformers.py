"""The Trainer with ckstore: killed, rolled back, damaged, with a limit of one, on two processes, with PEFT."""

from __future__ import annotations

import os
import signal
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ckstore import Best, CkstoreWarning, NoSuchRef, RetentionPolicy, Store
from tests.integrations import tiny_trainer
from tests.integrations.marks import TRAINS
from tests.support.damage import flip
from tests.support.docblocks import blocks
from tests.support.look import directory_of, files_of
from tests.support.requirements import require_transformers
from tests.support.torch_versions import has_argument

ROOT = Path(__file__).parents[2]
pytestmark = TRAINS


@pytest.fixture(autouse=True)
def _transformers() -> None:
    require_transformers()
    torch.set_num_threads(1)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store with the run ``whole``, trained without a stop; made once, then only read or copied."""
    require_transformers()
    folder = tmp_path_factory.mktemp("trained")
    store = Store.init(folder / "store", run="whole")
    tiny_trainer.make(tiny_trainer.mixed(), folder / "out", store).train()
    assert [info.step for info in store.checkpoints()] == [2, 4, 6]
    return folder / "store"


def last(store: Store, ref: str) -> dict[str, torch.Tensor]:
    """Return all tensors of the weights and of the optimizer, by file and name."""
    state = store.load(ref, select=["model\\.safetensors*", "optimizer\\.pt*"])
    found: dict[str, torch.Tensor] = {}

    def walk(value: Any, path: str) -> None:
        if isinstance(value, torch.Tensor):
            found[path] = value
        elif isinstance(value, dict):
            for name, part in value.items():
                walk(part, f"{path}/{name}")

    walk(state, "")
    assert len(found) > 20
    return found


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def program(
    warm: Path, store: Path, out: Path, resume: str = "", kill_at: int = 0, **environment: str
) -> subprocess.Popen[str]:
    words = [str(warm / "python"), "-m", "tests.integrations.tiny_trainer", str(store), str(out), resume, str(kill_at)]
    return subprocess.Popen(
        words, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env={**os.environ, **environment}
    )


@pytest.mark.whole  # on two processes in test_killed_trainings
def test_a_run_that_was_killed_in_a_save_goes_on_bit_for_bit(tmp_path: Path, trained: Path, warm: Path) -> None:
    store = Store.init(tmp_path / "store")
    killed = program(warm, store.path, tmp_path / "out", kill_at=4)
    output = killed.communicate(timeout=280)[0]
    assert killed.returncode == -signal.SIGKILL, output
    assert [info.step for info in store.checkpoints()] == [2]

    again = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", Store.open(store.path))
    again.train(resume_from_checkpoint="auto")

    assert [info.step for info in store.checkpoints()] == [2, 4, 6]
    assert again.resumed_inexactly == ()
    assert same(last(store, "6"), last(Store.open(trained, readonly=True), "whole@6"))


def test_a_resume_passes_over_a_damaged_newest_and_replaces_it(tmp_path: Path, trained: Path) -> None:
    store = Store.init(tmp_path / "store")
    source = Store.open(trained, readonly=True)
    for step in (2, 4, 6):
        source.checkout(f"whole@{step}", tmp_path / str(step))
        store.commit(tmp_path / str(step), step)
    blobs = [blob for blob in (directory_of(store, 6) / "blobs").iterdir() if blob.stat().st_nlink == 2]
    largest = max(blobs, key=lambda blob: blob.stat().st_size)
    flip(largest, largest.stat().st_size // 2)
    again = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", store)

    with pytest.warns(CkstoreWarning, match="has no record of the conditions under which it was saved"):
        again.train(resume_from_checkpoint=True)

    assert store.info("latest").step == 6
    assert store.verify("latest").ok
    assert same(last(store, "6"), last(source, "whole@6"))


def test_a_limit_of_one_deletes_only_what_the_store_has_and_the_best_is_kept(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.config.retention = RetentionPolicy(keep_last=1, keep_best=Best("eval_loss"))
    out = tmp_path / "out"
    trainer = tiny_trainer.make(
        tiny_trainer.mixed(),
        out,
        store,
        save_total_limit=1,
        eval_strategy="steps",
        eval_steps=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
    )
    seen: list[tuple[set[str], list[int]]] = []
    commit = store.commit

    def committing(directory: Any, *arguments: Any, **options: Any) -> Any:
        info = commit(directory, *arguments, **options)
        seen.append((set(os.listdir(out)), [one.step for one in store.checkpoints()]))
        return info

    store.commit = committing  # type: ignore[method-assign,assignment]
    trainer.train()

    best = trainer.state.best_global_step
    assert [{"checkpoint-2"}, {"checkpoint-2", "checkpoint-4"}] == [there for there, _ in seen][:2]
    assert set(os.listdir(out)) == {f"checkpoint-{best}", "checkpoint-6"}
    assert {info.step for info in store.checkpoints()} == {best, 6}
    assert store.info("6").metrics["eval_loss"] > 0


def test_a_rollback_saves_its_steps_again_and_a_tagged_one_stays(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store = Store.init(tmp_path / "store")
    tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", store, learning_rate=1e-3).train()
    before = {info.step: info.id for info in store.checkpoints()}
    store.tag("good", 4)
    other = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", store, per_device_train_batch_size=2)

    with pytest.warns(CkstoreWarning):
        other.train(resume_from_checkpoint="ckstore:2")

    after = {info.step: info.id for info in store.checkpoints()}
    assert (after[2], store.info("good").id) == (before[2], before[4])
    assert all(after[step] != before[step] for step in (4, 6))
    assert "the older checkpoint of main@4 is kept: main@4 has the tag good" in caplog.text
    assert other.resumed_inexactly[0] == "the data loader has another batch size: 2 now, 4 in the checkpoint"
    learning_rate, samples = other.resumed_inexactly[1:]
    assert learning_rate.startswith("learning_rate is ")
    assert samples == "4 samples of the data will be read a second time"


def test_the_callback_is_one_line_and_a_missing_random_state_is_named(tmp_path: Path) -> None:
    from transformers import Trainer

    from ckstore.integrations.transformers import CkstoreCallback, conditions, directory_to_resume

    store = Store.init(tmp_path / "store")
    trainer = tiny_trainer.make(Trainer, tmp_path / "out", callbacks=[CkstoreCallback(store)], save_total_limit=1)
    trainer.train()
    assert [info.step for info in store.checkpoints()] == [2, 4, 6]
    assert store.info("6").metrics["loss"] > 0
    assert os.listdir(tmp_path / "out") == ["checkpoint-6"]
    (tmp_path / "out" / "checkpoint-6" / "rng_state.pth").unlink()
    store.commit(tmp_path / "out" / "checkpoint-6", metadata=store.info("6").metadata, if_exists="replace")

    now = conditions(trainer.args, trainer.train_dataset)
    with pytest.warns(CkstoreWarning, match="no random states"):
        path, told = directory_to_resume(store, tmp_path / "out", now=now)

    assert told == ("the checkpoint holds no random states: numbers drawn from here on will differ",)
    assert path is not None
    Trainer(model=tiny_trainer.model(), args=trainer.args, train_dataset=trainer.train_dataset).train(path)
    assert directory_to_resume(store, tmp_path / "out", run="none", or_none=True) == (None, ())


def test_the_resume_that_the_page_shows_begins_in_an_empty_store_and_goes_on_later(tmp_path: Path) -> None:
    from transformers import Trainer

    from ckstore.integrations.transformers import CkstoreCallback, directory_to_resume

    page = (ROOT / "docs" / "how-to" / "transformers.md").read_text(encoding="utf-8")
    (block,) = (block.text for block in blocks(page) if "import directory_to_resume" in block.text)
    store = Store.init(tmp_path / "store")
    for steps in (2, 4):
        callbacks = [CkstoreCallback(store)]
        trainer = tiny_trainer.make(Trainer, tmp_path / "out", callbacks=callbacks, max_steps=steps)
        exec(block, {"trainer": trainer, "store": store, "arguments": trainer.args})  # noqa: S102 - our own

    assert [info.step for info in store.checkpoints()] == [2, 4]
    assert ".ckstore-resume-2" in os.listdir(tmp_path / "out")
    with pytest.raises(NoSuchRef, match=r"run 'other' has no checkpoints \(at the first start .*, or_none=True\)"):
        directory_to_resume(store, tmp_path / "out", run="other")


def test_every_rank_waits_for_the_best_checkpoint_also_one_that_sees_its_directory_already(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ckstore.integrations import transformers

    class Trainer:
        loaded = False

        def _load_best_model(self) -> None:
            self.loaded = True

    asked: list[Any] = []
    monkeypatch.setattr(transformers, "once_for_all", asked.append)
    trainer = type("Mixed", (transformers.CkstoreTrainerMixin, Trainer), {"ckstore": Store.init(tmp_path / "store")})()
    best = tmp_path / "out" / "checkpoint-2"
    best.mkdir(parents=True)
    trainer.state = SimpleNamespace(best_model_checkpoint=str(best))

    trainer._load_best_model()

    assert len(asked) == 1
    assert trainer.loaded
    asked[0]()  # there is nothing to do


def test_the_save_on_sigterm_is_committed(tmp_path: Path) -> None:
    from transformers import TrainingArguments

    if not has_argument(TrainingArguments, "enable_jit_checkpoint"):
        pytest.skip("transformers 4 does not save on SIGTERM")
    store = Store.init(tmp_path / "store")
    trainer = tiny_trainer.make(
        tiny_trainer.mixed(), tmp_path / "out", store, save_strategy="no", enable_jit_checkpoint=True
    )
    before = signal.getsignal(signal.SIGTERM)
    (callback,) = [one for one in trainer.callback_handler.callbacks if type(one).__name__ == "JITCheckpointCallback"]
    callback.jit_manager._enable_checkpoint()  # what the signal does after its grace time
    try:
        trainer.train()
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL if before is None else before)

    (info,) = store.checkpoints()
    assert info.step == 0  # it came before the first step of the optimizer
    assert "checkpoint-is-incomplete.txt" not in [file.path for file in files_of(store, info)]


def test_an_adapter_of_peft_goes_on_and_its_base_is_not_in_the_store(tmp_path: Path) -> None:
    from peft import LoraConfig, get_peft_model

    store = Store.init(tmp_path / "store")

    def adapted() -> Any:
        torch.manual_seed(5)
        return get_peft_model(tiny_trainer.model(), LoraConfig(r=2, target_modules=["c_attn"], fan_in_fan_out=True))

    whole = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", store, made=adapted())
    whole.train()
    weights = {name: tensor.clone() for name, tensor in whole.model.state_dict().items()}
    again = tiny_trainer.make(tiny_trainer.mixed(), tmp_path / "out", store, made=adapted())
    again.train(resume_from_checkpoint="ckstore:4")

    assert "adapter_model.safetensors" in [file.path for file in files_of(store, 6)]
    assert all(torch.equal(tensor, again.model.state_dict()[name]) for name, tensor in weights.items())
