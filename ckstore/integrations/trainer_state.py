"""Save a Trainer of transformers as a state instead of files, and write a saved state as a directory for a resume.

The Trainer writes small files as usual: configuration, tokenizer, scheduler, random states of each rank, and
``trainer_state.json``. These files become a part of the saved state, and their directory is removed. Weights and the
optimizer are not written to files.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import Any

import torch

from ckstore.errors import BadInput
from ckstore.integrations.directories import remove
from ckstore.integrations.own_run import RESUME_PREFIX
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import check_path
from ckstore.store import Store

_OPTIMIZER, _SCHEDULER, _ARGUMENTS = "optimizer.pt", "scheduler.pt", "training_args.bin"
_MODEL, _ADAPTER = "model", "adapter"
_HINT = 'leave ckstore_saves at "files"'


def check_suits(trainer: Any) -> None:
    """Raise `BadInput` if rank 0 lacks a part of the weights or the optimizer, or if another feature needs files."""
    args = trainer.args
    sharded = {
        "FSDP": trainer.is_fsdp_enabled,
        "DeepSpeed": trainer.is_deepspeed_enabled,
        "tensor parallelism": getattr(trainer, "is_distributed_loading_by_transformers", False),
    }
    found = next((name for name, is_used in sharded.items() if is_used), None)
    if found is not None:
        msg = f"with {found} rank 0 does not have the whole state"
        raise BadInput(msg, hint=f"{_HINT}, so that each rank writes its own part")
    if args.push_to_hub:
        raise BadInput("push_to_hub needs the files of a checkpoint, and a state has none", hint=_HINT)
    if args.save_total_limit:
        msg = "save_total_limit deletes directories, and a state has none"
        raise BadInput(msg, hint="store.config.retention = RetentionPolicy(keep_last=N) keeps N checkpoints")
    adapters = getattr(_model(trainer), "peft_config", {})
    if _is_peft(trainer) and list(adapters) != ["default"]:
        raise BadInput(f"a model with the adapters {', '.join(adapters)} cannot be saved as one state", hint=_HINT)


def write_small_files(trainer: Any, directory: str) -> None:
    """Write the files of `Trainer.save_model` without the weights."""
    model = _model(trainer)
    if _is_peft(trainer):
        model.peft_config["default"].save_pretrained(directory)
    elif hasattr(getattr(model, "config", None), "save_pretrained"):
        model.config.save_pretrained(directory)
        if getattr(model, "generation_config", None) is not None and model.can_generate():
            model.generation_config.save_pretrained(directory)
    named = trainer.processing_class or getattr(trainer.data_collator, "tokenizer", None)
    if named is not None:
        named.save_pretrained(directory)
    # Use the format of the Trainer. ckstore only stores this file and never unpickles it.
    torch.save(trainer.args, os.path.join(directory, _ARGUMENTS))


def write_scheduler(trainer: Any, directory: str) -> None:
    """Write the file of the scheduler as the Trainer does."""
    torch.save(trainer.lr_scheduler.state_dict(), os.path.join(directory, _SCHEDULER))


def state_of(trainer: Any, directory: Path) -> dict[str, Any]:
    """Return the whole state, including the small files that the Trainer wrote into `directory`."""
    model = _model(trainer)
    if _is_peft(trainer):
        from peft import get_peft_model_state_dict

        weights = {_ADAPTER: get_peft_model_state_dict(model)}
    else:
        weights = {_MODEL: model.state_dict()}
    optimizer = {} if trainer.args.save_only_model else {"optimizer": trainer.optimizer.state_dict()}
    found = sorted(path for path in directory.rglob("*") if path.is_file())
    files = {str(path.relative_to(directory)): path.read_bytes() for path in found}
    return {**weights, **optimizer, "files": files}


def write_directory(store: Store, info: CheckpointInfo, directory: Path) -> None:
    """Write a state as a directory for the Trainer to resume from. A checkpoint of files is written unchanged."""
    # For a state, the directory appears atomically, because the Trainer accepts any directory with the right name.
    # This function raises BadInput and writes nothing if a state was not saved from a Trainer, if the path of a file
    # leads outside the directory, or if leftovers of an earlier resume cannot be removed.
    with store.open_checkpoint(info) as checkpoint:
        is_of_files = bool(checkpoint.files())
    if is_of_files:
        store.checkout(info, directory, link="auto")
        return
    state = store.load(info, select=lambda name: not name.startswith((_MODEL, _ADAPTER)))
    files = state.get("files") if isinstance(state, dict) else None
    if not isinstance(files, dict) or not all(isinstance(data, bytes) for data in files.values()):
        msg = f"{info.name} is a saved state, but not of a Trainer"
        raise BadInput(msg, hint="store.load(ref) loads it")
    for name in files:  # the state may be from an untrusted store
        # A name that contains .. could lead outside the directory.
        check_path(name, f"a file of {info.name}")
    unfinished = directory.with_name(f"{RESUME_PREFIX}{directory.name}.unfinished")  # the next resume also removes it
    remove(unfinished)
    try:
        _write_state(store, info, unfinished, state)
        # Use the final name only for the complete directory. Otherwise, the Trainer might resume from a partial one
        # after a kill.
        unfinished.rename(directory)
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise


def _write_state(store: Store, info: CheckpointInfo, directory: Path, state: dict[str, Any]) -> None:
    """Write the weights from the store, and the other values from `state`, which has been loaded."""
    with store.open_checkpoint(info) as checkpoint:
        names = {leaf.name.partition(".")[0] for leaf in checkpoint.leaves()}
    kind = _ADAPTER if _ADAPTER in names else _MODEL
    store.export(info, directory, select=kind, strip_prefix=True)
    if kind == _ADAPTER:
        (directory / "model.safetensors").rename(directory / "adapter_model.safetensors")
    if "optimizer" in state:
        torch.save(state["optimizer"], directory / _OPTIMIZER)
    for name, data in state["files"].items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _model(trainer: Any) -> Any:
    return trainer.accelerator.unwrap_model(trainer.model, keep_torch_compile=False)


def _is_peft(trainer: Any) -> bool:
    try:
        from peft import PeftModel
    except ModuleNotFoundError:
        return False
    return isinstance(_model(trainer), PeftModel)
