"""What the Trainer of transformers writes goes in and comes back, and training goes on from what came back."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from ckstore import CannotLoad, Store
from tests.integrations.marks import TRAINS
from tests.support.docblocks import blocks
from tests.support.requirements import representatives, require_transformers
from tests.support.states import assert_same
from tests.support.stores import disk_bytes
from tests.support.trees import look

pytestmark = TRAINS
MIB = 2**20
STEPS, SAVE_EVERY = 6, 2


def model(*, frozen: bool) -> Any:
    """A small GPT-2 from its config; `frozen`: only the head is trained, which is tied to nothing."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    config = GPT2Config(n_layer=3, n_embd=192, n_head=4, vocab_size=600, n_positions=64, tie_word_embeddings=not frozen)
    made = GPT2LMHeadModel(config)
    if frozen:
        made.transformer.requires_grad_(False)
    return made


def trainer(folder: Path, *, frozen: bool) -> Any:
    from transformers import Trainer, TrainingArguments

    generator = torch.Generator().manual_seed(2)
    rows = [torch.randint(0, 600, (32,), generator=generator) for _ in range(64)]
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=STEPS,
        save_steps=SAVE_EVERY,
        per_device_train_batch_size=4,
        logging_steps=2,
        report_to=[],
        use_cpu=True,
        seed=3,
        disable_tqdm=True,
    )
    return Trainer(
        model=model(frozen=frozen),
        args=arguments,
        train_dataset=[{"input_ids": row, "labels": row} for row in rows],
    )


@pytest.fixture(autouse=True)
def _transformers(monkeypatch: pytest.MonkeyPatch) -> None:
    require_transformers()
    for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
        monkeypatch.setenv(name, "1")
    torch.set_num_threads(1)


@pytest.mark.parametrize("frozen", representatives([False, True], True), ids=["full", "frozen"])
def test_a_run_of_the_trainer_comes_back_and_goes_on_bit_for_bit(tmp_path: Path, frozen: bool) -> None:
    source = tmp_path / "trained"
    whole = trainer(source, frozen=frozen)
    whole.train()
    directories = sorted(source.glob("checkpoint-*"))
    assert [path.name for path in directories] == ["checkpoint-2", "checkpoint-4", "checkpoint-6"]
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)

    infos = [store.commit(path) for path in directories]

    assert [info.step for info in infos] == [2, 4, 6]
    back = tmp_path / "back"
    back.mkdir()
    for info, path in zip(infos, directories, strict=True):
        store.checkout(info, back / path.name)
        assert look(back / path.name) == look(path)
    check_files_as_states(store, directories[-1], whole)

    again = trainer(tmp_path / "again", frozen=frozen)
    again.train(resume_from_checkpoint=str(back / "checkpoint-4"))

    for name, tensor in whole.model.state_dict().items():
        assert torch.equal(tensor, again.model.state_dict()[name]), name
    last = store.load(6)
    resumed = store.load(store.commit(tmp_path / "again" / "checkpoint-6", run="again"))
    for file in ("model.safetensors", "optimizer.pt"):
        assert last[file].keys() == resumed[file].keys()
        assert all(torch.equal(tensor, resumed[file][name]) for name, tensor in last[file].items()), file


def check_files_as_states(store: Store, directory: Path, whole: Any) -> None:
    """What the Trainer wrote is loaded as torch loads it, and into the model and the optimizer that wrote it."""
    for name in ("optimizer.pt", "scheduler.pt"):
        assert_same(torch.load(directory / name, weights_only=True), store.load("latest", file=name))
    # With NumPy's state in it, which torch takes only from whom it trusts.
    assert_same(torch.load(directory / "rng_state.pth", weights_only=False), store.load("latest", file="rng_state.pth"))
    with pytest.raises(CannotLoad, match="TrainingArguments"):
        store.load("latest", file="training_args.bin")
    frozen = not any(parameter.requires_grad for parameter in whole.model.transformer.parameters())
    fresh = model(frozen=frozen)
    fresh.lm_head.weight.data.zero_()
    optimizer = torch.optim.AdamW([{"params": group["params"]} for group in whole.optimizer.param_groups])

    report = store.load_into(fresh, "latest", file="model.safetensors", strict=False)
    store.load_into(optimizer, "latest", file="optimizer.pt")

    assert (report.unexpected, dict(report.not_loaded)) == ((), {})
    assert_same(dict(whole.model.state_dict()), dict(fresh.state_dict()))
    assert_same(whole.optimizer.state_dict()["state"], optimizer.state_dict()["state"])


def test_what_is_frozen_is_stored_once_whatever_file_it_is_in(tmp_path: Path) -> None:
    source = tmp_path / "trained"
    training = trainer(source, frozen=True)
    training.train()
    state = training.model.state_dict()
    frozen = {name: tensor for name, tensor in state.items() if name.startswith("transformer.")}
    frozen_bytes = sum(tensor.nbytes for tensor in frozen.values())
    trained_bytes = sum(tensor.nbytes for tensor in state.values()) - frozen_bytes
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)

    store.commit(source / "checkpoint-2")
    torch.save(state, tmp_path / "model.pt")
    as_pt = store.commit(tmp_path / "model.pt", run="pt")
    as_state = store.save({"model": training.model}, run="state")
    for step in (4, 6):
        store.commit(source / f"checkpoint-{step}")

    # The head of three steps, with two moments of AdamW each, and what else a trainer writes (its arguments, logs).
    assert disk_bytes(store.path) <= 1.02 * (frozen_bytes + 3 * 3 * trained_bytes) + 100_000
    assert as_pt.new_bytes <= trained_bytes + 0.02 * frozen_bytes
    assert as_state.new_bytes <= 0.02 * frozen_bytes
    loaded = store.load(4)["model.safetensors"]
    assert all(torch.equal(loaded[name], tensor) for name, tensor in frozen.items())
    assert os.listdir(store.path / "staging") == []


def test_the_callback_of_the_page_on_files_commits_what_the_trainer_has_written(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    page = (Path(__file__).parents[2] / "docs" / "how-to" / "files.md").read_text(encoding="utf-8")
    (block,) = (one.text for one in blocks(page) if "TrainerCallback" in one.text)
    store = Store.init(tmp_path / "store", chunk_bytes=MIB)
    names: dict[str, Any] = {"TrainerCallback": TrainerCallback, "Path": Path, "store": store}
    exec(block, names)  # noqa: S102 - the page is ours
    training = trainer(tmp_path / "trained", frozen=True)
    training.add_callback(names["Commit"]())
    training.train()

    assert [info.step for info in store.checkpoints()] == [2, 4, 6]
    for info in store.checkpoints():
        store.checkout(info, tmp_path / str(info.step))
        assert look(tmp_path / str(info.step)) == look(tmp_path / "trained" / f"checkpoint-{info.step}")
