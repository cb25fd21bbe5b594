#!/bin/sh
# zipnn 0.5.4 with torch 2.13.0: `ZipNN.compress` changes the tensor that it is given.
#
# For float32 and bfloat16 it rearranges the bits in the caller's memory and does not put them back. What it returns decodes to the right
# values. So compressing the state_dict of a model that is training replaces its weights by noise, without an error, and compressing the
# same tensor twice gives two different checkpoints. float16 tensors and NumPy arrays are left alone. Give it a clone.
#
# Seen: every weight of a Linear differs after its state_dict was compressed; the first stream decodes to the old weights, a second one
# to the noise.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'zipnn==0.5.4'
cat > "$dir/try.py" <<'PY'
import torch
from zipnn import ZipNN

torch.manual_seed(0)


def compress_state(dtype):
    model = torch.nn.Linear(64, 64, bias=False, dtype=dtype)
    weight, before = model.state_dict()["weight"], model.weight.detach().clone()
    coder = ZipNN(input_format="torch")
    first = coder.compress(weight)
    changed = (model.weight != before).float().mean().item()
    second = coder.compress(weight)
    rights = [torch.equal(coder.decompress(stream), before) for stream in (first, second)]
    print(f"{dtype}: {changed:.0%} of the model's weights changed; the two streams give the old weights: {rights}")
    return changed > 0.99, rights


for dtype, changes in ((torch.float32, True), (torch.bfloat16, True), (torch.float16, False)):
    assert compress_state(dtype) == (changes, [True, not changes]), dtype
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
