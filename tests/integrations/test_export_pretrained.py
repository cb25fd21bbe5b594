"""What is exported for `from_pretrained` is opened by transformers and PEFT themselves, with the same weights."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from ckstore import Store
from ckstore.errors import BadInput
from tests.integrations.tiny_trainer import make, model
from tests.support.requirements import require_transformers

pytestmark = [pytest.mark.integration, pytest.mark.filterwarnings("default")]  # those of frameworks are not ours


@pytest.fixture(autouse=True)
def _transformers() -> None:
    require_transformers()
    torch.set_num_threads(1)


def adapted() -> Any:
    peft = pytest.importorskip("peft")
    made = peft.get_peft_model(model(), peft.LoraConfig(target_modules=["c_attn"], r=2, fan_in_fan_out=True))
    torch.manual_seed(5)
    for name, parameter in made.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    return made


def assert_opens(path: Path, wanted: Any) -> None:
    from transformers import AutoModelForCausalLM

    opened: Any = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    found, told = opened
    assert not any(told.values()), told
    assert found.state_dict().keys() == wanted.state_dict().keys()
    for name, tensor in wanted.state_dict().items():
        assert torch.equal(found.state_dict()[name], tensor), name
    assert found.lm_head.weight is found.transformer.wte.weight


def tokenizer() -> Any:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    fast: Any = PreTrainedTokenizerFast
    made = Tokenizer(models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?"))
    made.pre_tokenizer = pre_tokenizers.Whitespace()
    return fast(tokenizer_object=made, unk_token="?", pad_token="?")


def test_a_checkpoint_of_the_trainer_is_a_model_again(tmp_path: Path) -> None:
    from transformers import AutoTokenizer, Trainer

    trainer = make(Trainer, tmp_path / "out", max_steps=2)
    trainer.processing_class = tokenizer()
    trainer.train()
    folder = tmp_path / "out" / "checkpoint-2"
    store = Store.init(tmp_path / "store", chunk_bytes=2**20)
    store.commit(folder)

    report = store.export(2, tmp_path / "model", format="pretrained")

    assert_opens(report.destination, trainer.model)
    assert AutoTokenizer.from_pretrained(report.destination)("b a x")["input_ids"] == [1, 0, 2]
    left_out = ["optimizer.pt", "rng_state.pth", "scheduler.pt", "trainer_state.json", "training_args.bin"]
    assert list(report.left_out) == [f"{name}: not part of the model" for name in left_out]
    names = sorted(os.listdir(tmp_path / "model"))
    assert sorted([*names, *left_out]) == sorted(os.listdir(folder))
    assert sorted(file.name for file in report.files) == names
    for name in names:
        assert (tmp_path / "model" / name).read_bytes() == (folder / name).read_bytes()
    (weights,) = (file for file in report.files if file.name == "model.safetensors")
    assert weights.tensor_count == len(load_file(folder / "model.safetensors"))

    small = store.export(2, tmp_path / "small", format="pretrained", max_shard_bytes=4000)

    assert sum(file.name.startswith("model-0000") for file in small.files) > 2
    assert "model.safetensors.index.json" in os.listdir(tmp_path / "small")
    assert_opens(small.destination, trainer.model)


def test_a_saved_state_dict_is_a_model_with_what_is_added(tmp_path: Path) -> None:
    made = model()
    made.config.save_pretrained(tmp_path / "config")
    (tmp_path / "config" / "model.safetensors").write_bytes(b"of a directory no weights are taken")
    tokenizer().save_pretrained(tmp_path / "config")
    store = Store.init(tmp_path / "store")
    store.save({"model": made, "optimizer": {"lr": 0.1}}, step=1)

    report = store.export(1, tmp_path / "out", format="pretrained", select="model", add=[tmp_path / "config"])
    sharded = store.export(
        1,
        tmp_path / "sharded",
        format="pretrained",
        select="model",
        add=[tmp_path / "config" / "config.json"],
        max_shard_bytes=4000,
    )

    assert_opens(report.destination, made)
    assert report.tied == {"lm_head.weight": "transformer.wte.weight"}
    assert {"config.json", "tokenizer.json", "model.safetensors"} <= set(os.listdir(tmp_path / "out"))
    assert "state.json" not in os.listdir(tmp_path / "out")
    assert_opens(sharded.destination, made)


def test_weights_that_were_pickled_become_safetensors(tmp_path: Path) -> None:
    made = model()
    folder = tmp_path / "old"
    made.config.save_pretrained(folder)
    torch.save(made.state_dict(), folder / "pytorch_model.bin")
    store = Store.init(tmp_path / "store")
    store.commit(folder, step=1)

    report = store.export(1, tmp_path / "out", format="pretrained")

    assert sorted(os.listdir(tmp_path / "out")) == ["config.json", "model.safetensors"]
    assert report.tied == {"lm_head.weight": "transformer.wte.weight"}
    assert_opens(report.destination, made)


def test_an_adapter_is_exported_for_peft(tmp_path: Path) -> None:
    import peft

    made = adapted()
    own = peft.get_peft_model_state_dict(made)
    made.save_pretrained(tmp_path / "adapter")
    store = Store.init(tmp_path / "store")
    store.commit(tmp_path / "adapter", step=1)
    torch.save(own, tmp_path / "adapter" / "adapter_model.bin")
    (tmp_path / "adapter" / "adapter_model.safetensors").unlink()
    store.commit(tmp_path / "adapter", step=2)
    store.save({"adapter": own, "model": made}, step=3)

    reports = [store.export(step, tmp_path / str(step), format="peft") for step in (1, 2)]
    config = [tmp_path / "adapter" / "adapter_config.json"]
    reports.append(store.export(3, tmp_path / "3", format="peft", select="adapter", add=config))

    for report in reports:
        found = peft.PeftModel.from_pretrained(model(), report.destination)
        assert peft.get_peft_model_state_dict(found).keys() == own.keys()
        for name, tensor in peft.get_peft_model_state_dict(found).items():
            assert torch.equal(tensor, own[name]), name
    with pytest.raises(BadInput, match=r"no model\.safetensors") as caught:
        store.export(1, tmp_path / "out", format="pretrained")
    assert caught.value.hint == "it has adapter_model files: format='peft'"
    with pytest.raises(BadInput, match="adapters in it") as caught:
        store.export(3, tmp_path / "out", format="peft", select="model", add=config)
    assert "get_peft_model_state_dict" in (caught.value.hint or "")
    assert not (tmp_path / "out").exists()
