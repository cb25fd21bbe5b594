#!/bin/sh
# transformers 5.23.0 and accelerate 1.15.0: after a second save into the same folder, the weights of the first one are loaded.
#
# `save_pretrained` deletes shards of an earlier save, but not a `model.safetensors`. If the model was saved in one file, and then, larger or with
# a smaller `max_shard_size`, in several, the folder has both. `from_pretrained` prefers the single file. So training that continued seems to
# have had no effect, without a warning. `Accelerator.save_model` with `load_checkpoint_in_model` does the same. `save_torch_model` of
# huggingface_hub deletes the old file. The other order, first several files and then one, is right in all three.
#
# Seen: 1.0 was saved first and 2.0 second; the load gives 1.0.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'transformers==5.23.0' 'accelerate==1.15.0' 'huggingface_hub==2.4.0'
cat > "$dir/try.py" <<'PY'
import os
import tempfile

import torch
import transformers
from accelerate import Accelerator, load_checkpoint_in_model
from huggingface_hub import load_torch_model, save_torch_model
from transformers import GPT2Config, GPT2LMHeadModel

transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
CONFIG = GPT2Config(n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=32, bos_token_id=1, eos_token_id=1)


def filled(model, value):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.fill_(value)
    return model


def layers():
    return torch.nn.Sequential(*[torch.nn.Linear(50, 50) for _ in range(10)])


def of_transformers(folder, value=None, **size):
    if value is not None:
        return filled(GPT2LMHeadModel(CONFIG), value).save_pretrained(folder, **size)
    return GPT2LMHeadModel.from_pretrained(folder)


def of_accelerate(folder, value=None, **size):
    if value is not None:
        return Accelerator(cpu=True).save_model(filled(layers(), value), folder, **size)
    model = layers()
    load_checkpoint_in_model(model, folder)
    return model


def of_huggingface_hub(folder, value=None, **size):
    if value is not None:
        return save_torch_model(filled(layers(), value), folder, **size)
    model = layers()
    load_torch_model(model, folder)
    return model


one, several = {}, {"max_shard_size": "40KB"}
for library, stale in ((of_transformers, True), (of_accelerate, True), (of_huggingface_hub, False)):
    for sizes in ((one, several), (several, one)):
        folder = tempfile.mkdtemp(dir=os.environ["DIR"])
        for value, size in enumerate(sizes, start=1):
            library(folder, float(value), **size)
        found = {weight.flatten()[0].item() for weight in library(folder).parameters()}
        files = sorted(name for name in os.listdir(folder) if name.endswith(".safetensors"))
        print(f"{library.__name__}: saved 1.0 with {sizes[0]}, then 2.0 with {sizes[1]}; loaded {found} from {files}")
        assert found == ({1.0} if stale and sizes == (one, several) else {2.0})
PY
DIR="$dir" "$dir/venv/bin/python" -W ignore "$dir/try.py"
