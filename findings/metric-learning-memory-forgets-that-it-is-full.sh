#!/bin/sh
# pytorch-metric-learning 2.9.0 with torch 2.13.0: a resumed `CrossBatchMemory` has its embeddings and does not use them.
#
# The memory is a ring of earlier embeddings. They and their labels are buffers, and the state dict contains both. The position in the ring and
# whether it is full are plain attributes that no state contains. After a load the ring counts as empty and is filled from its start, so the
# loss is computed with the newest batches only until it is full again, without a warning. Copy `queue_idx` and `has_been_filled` separately.
#
# Guess: since embeddings and labels are saved, the loss continues exactly.
# Seen, 2026-11-29: the loaded buffers are equal. The losses of 7 batches differ, and those of the next 5 agree.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'pytorch-metric-learning==2.9.0'
cat > "$dir/try.py" <<'PY'
import copy

import pytorch_metric_learning
import torch
from pytorch_metric_learning.losses import ContrastiveLoss, CrossBatchMemory

torch.set_num_threads(1)
torch.manual_seed(0)
batches = [(torch.randn(8, 4), torch.randint(0, 3, (8,))) for _ in range(24)]


def memory():
    return CrossBatchMemory(ContrastiveLoss(), embedding_size=4, memory_size=64)


print("pytorch-metric-learning", pytorch_metric_learning.__version__)
first = memory()
for embeddings, labels in batches[:12]:
    first(embeddings, labels)
second = memory()
print(second.load_state_dict(copy.deepcopy(first.state_dict())), list(first.state_dict()))
assert all(map(torch.equal, first.state_dict().values(), second.state_dict().values()))
for name in ("queue_idx", "has_been_filled"):
    print(name, getattr(first, name), "after the load:", getattr(second, name))
assert (first.queue_idx, first.has_been_filled) == (32, True)
assert (second.queue_idx, second.has_been_filled) == (0, False)
differ = []
for embeddings, labels in batches[12:]:
    one, two = first(embeddings, labels), second(embeddings, labels)
    differ.append(not torch.isclose(one, two, rtol=1e-4))
    print(round(one.item(), 5), round(two.item(), 5))
assert differ == [True] * 7 + [False] * 5
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
