#!/bin/sh
# mosaicml-streaming 0.13.0 with torch 2.13.0: `StreamingDataLoader` counts the columns of a sample, or packed rows, as samples.
#
# The loader measures each batch by itself to know its position: the length of the first value of a dict, and `len(batch[0])` of a list.
# If `collate_fn` returns the list of samples, which are dicts, it counts the columns. If it packs the samples of a batch into one row, it
# counts one. `state_dict` then contains another position than the real one. A resume continues there without a warning: it repeats
# samples of the interrupted epoch, or skips samples that were never read. If it counts too few, a save at the end of an epoch also
# repeats a part of it. Return a dict whose first value has one entry per sample.
#
# Guess: the loader knows its batch size and the sampler's position, so a resume is exact with any `collate_fn`.
# Seen, 2026-11-30: 64 samples, a save after 5 batches of 4. A batch of tensors: position 20, a resume reads the other 44. Packed:
# position 5, a resume reads 59 samples and repeats 15 of them. A list of samples with 6 columns: position 30, and 10 samples are never
# read. After the epoch with packed batches, a resume repeats 48 of its samples.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.1.3'
"$dir/venv/bin/pip" -q install 'transformers==4.57.6' 'catalogue==2.0.10' 'zstd==1.5.7.2' 'python-snappy==0.7.3' 'xxhash==3.8.2' \
    'brotli==1.2.1' 'pillow==13.0.0'
# Its other dependencies are clients of clouds and torchvision, which would replace torch by another build.
"$dir/venv/bin/pip" -q install --no-deps 'mosaicml-streaming==0.13.0'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys
import types

import torch
import transformers.feature_extraction_utils
import transformers.tokenization_utils_base

# Only its data sets of images need torchvision, and transformers is imported before, since it would look for it.
for name in ("torchvision", "torchvision.datasets", "torchvision.transforms", "torchvision.transforms.functional"):
    sys.modules[name] = types.ModuleType(name)
sys.modules["torchvision.datasets"].VisionDataset = object
sys.modules["torchvision.transforms.functional"].to_tensor = None
from streaming import MDSWriter, StreamingDataLoader, StreamingDataset

torch.set_num_threads(1)
columns = ["number", "a", "b", "c", "d", "e"]


def stacked(samples):
    return {name: torch.tensor([sample[name] for sample in samples]) for name in columns}


def packed(samples):
    return {name: torch.tensor([[sample[name] for sample in samples]]) for name in columns}


def listed(samples):
    return samples


def numbers(batch):
    return [sample["number"] for sample in batch] if isinstance(batch, list) else batch["number"].flatten().tolist()


def loader(collate):
    data = StreamingDataset(local=sys.argv[1] + "/data", batch_size=4, shuffle=True, shuffle_seed=1, num_canonical_nodes=1)
    return StreamingDataLoader(data, batch_size=4, collate_fn=collate)


def resumed(collate):
    """The position in the state after 20 samples, how many a resume reads, how many of them were read before, how many are never read."""
    first = loader(collate)
    batches = iter(first)
    before = [number for _ in range(5) for number in numbers(next(batches))]
    state = first.state_dict()
    second = loader(collate)
    second.load_state_dict(state)
    after = [number for batch in second for number in numbers(batch)]
    assert len(set(before)) == 20 and len(set(after)) == len(after)
    return state["sample_in_epoch"], len(after), len(set(before) & set(after)), 64 - len(set(before) | set(after))


with MDSWriter(out=sys.argv[1] + "/data", columns=dict.fromkeys(columns, "int")) as writer:
    for number in range(64):
        writer.write(dict.fromkeys(columns, number))
print("mosaicml-streaming", importlib.metadata.version("mosaicml-streaming"), "torch", torch.__version__)
seen = {collate.__name__: resumed(collate) for collate in (stacked, packed, listed)}
print("position after 20 samples, read by a resume, repeated, never read:", seen)
assert seen == {"stacked": (20, 44, 0, 0), "packed": (5, 59, 15, 0), "listed": (30, 34, 0, 10)}
for collate, repeats in ((stacked, 0), (packed, 48)):
    ended = loader(collate)
    assert len(list(ended)) == 16
    state = ended.state_dict()
    again = loader(collate)
    again.load_state_dict(state)
    count = sum(len(numbers(batch)) for batch in again)
    print(f"{collate.__name__}: position after the epoch {state['sample_in_epoch']}, samples of it that a resume repeats: {count}")
    assert (state["epoch"], count) == (0, repeats)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
