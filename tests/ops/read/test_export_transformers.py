"""What is exported is what transformers reads: one file or shards, tied embeddings tied again."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import torch

from tests.support.requirements import require

if TYPE_CHECKING:
    from ckstore import Store

# Their warnings are theirs.
pytestmark = pytest.mark.filterwarnings("default")


@pytest.fixture
def transformers(monkeypatch: pytest.MonkeyPatch) -> Any:
    require(importlib.util.find_spec("transformers"), "needs the package transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    import transformers  # type: ignore[import-not-found, unused-ignore]

    return transformers


def config_of(kind: str, transformers: Any) -> Any:
    """Return the configuration of a tiny model whose head is tied to its embedding."""
    if kind == "GPT2":
        return transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=100, n_positions=16)
    return transformers.LlamaConfig(
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        hidden_size=32,
        intermediate_size=48,
        vocab_size=100,
        tie_word_embeddings=True,
    )


@pytest.mark.crossed
@pytest.mark.slow
@pytest.mark.parametrize("max_shard_bytes", ["50GB", "20KB"], ids=["single", "sharded"])
@pytest.mark.parametrize("kind", ["GPT2", "Llama"])
def test_a_model_is_loaded_from_its_export(
    kind: str, max_shard_bytes: str, transformers: Any, store: Store, tmp_path: Path
) -> None:
    torch.manual_seed(0)
    of_kind = transformers.GPT2LMHeadModel if kind == "GPT2" else transformers.LlamaForCausalLM
    model = of_kind(config_of(kind, transformers)).eval()
    optimizer = torch.optim.AdamW(model.parameters())
    tokens = torch.arange(10).reshape(1, 10)
    model(tokens, labels=tokens).loss.backward()
    optimizer.step()
    store.save({"model": model, "optimizer": optimizer, "step": 1})
    out = tmp_path / "out"

    report = store.export_safetensors("latest", out, select="model", strip_prefix=True, max_shard_bytes=max_shard_bytes)
    model.config.save_pretrained(out)
    loaded, info = of_kind.from_pretrained(out, output_loading_info=True)
    loaded.eval()

    assert list(report.tied) == ["lm_head.weight"]
    assert len(report.files) == 1 or max_shard_bytes == "20KB"
    assert not any(info[problem] for problem in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    wanted, found = model.state_dict(), loaded.state_dict()
    assert wanted.keys() == found.keys()
    assert all(torch.equal(wanted[name], found[name]) for name in wanted)
    assert loaded.get_output_embeddings().weight is loaded.get_input_embeddings().weight
    assert torch.equal(loaded(tokens).logits, model(tokens).logits)


@pytest.mark.slow
@pytest.mark.parametrize("max_shard_bytes", ["5GB", "20KB"], ids=["single", "sharded"])
def test_the_files_are_those_of_the_hub(max_shard_bytes: str, transformers: Any, store: Store, tmp_path: Path) -> None:
    from huggingface_hub import save_torch_state_dict  # type: ignore[import-not-found, unused-ignore]

    torch.manual_seed(0)
    model = transformers.GPT2LMHeadModel(config_of("GPT2", transformers))
    store.save({"model": model})
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    theirs.mkdir()

    store.export_safetensors("latest", ours, select="model", strip_prefix=True, max_shard_bytes=max_shard_bytes)
    save_torch_state_dict(
        model.state_dict(), theirs, max_shard_size=max_shard_bytes, shared_tensors_to_discard=["lm_head.weight"]
    )

    assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}
    for path in ours.iterdir():
        if path.suffix == ".json":
            assert json.loads(path.read_bytes()) == json.loads((theirs / path.name).read_bytes())
        else:
            assert tensors_of(path) == tensors_of(theirs / path.name)


def tensors_of(path: Path) -> tuple[Any, bytes]:
    """Return the header without metadata, and the bytes of the tensors."""
    data = path.read_bytes()
    start = 8 + int.from_bytes(data[:8], "little")
    header = json.loads(data[8:start])
    header.pop("__metadata__")
    return header, data[start:]
