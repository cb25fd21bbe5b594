#!/bin/sh
# nflows 0.14 and pfrl 0.4.0 with torch 2.13.0: a layer that was used in eval mode computes with a cached matrix or scale from before the load.
#
# The linear transforms of nflows have `using_cache=True`, which stores the matrix and its determinant at the first use in eval mode. Only `train()`
# empties the cache, `load_state_dict` does not. So a model that was evaluated and then gets a checkpoint, such as the best one, continues with the
# old matrix in this layer and the new weights in all others, and its likelihoods belong to no checkpoint. `EmpiricalNormalization` of pfrl, which
# normalizes observations, stores the inverse deviation in the same way: after a load it has the new mean and the old deviation. A load into a new
# model is right, so a test in a fresh process passes. There is no error or warning. For nflows call `train()` and then `eval()` after each load, for
# pfrl set `_cached_std_inverse` to `None`.
#
# Guess: after `load_state_dict` a module computes with the loaded weights, also in eval mode.
# Seen, 2026-11-30: LULinear, QRLinear and SVDLinear give the outputs from before the load, and after train() and eval() the right ones. Without the
# cache they are always right. EmpiricalNormalization divides by 1.0 instead of 20.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'nflows==0.14' 'pfrl==0.4.0'
cat > "$dir/try.py" <<'PY'
from importlib.metadata import version

import torch
from nflows.transforms.lu import LULinear
from nflows.transforms.qr import QRLinear
from nflows.transforms.svd import SVDLinear
from pfrl.nn import EmpiricalNormalization

print("nflows", version("nflows"), "pfrl", version("pfrl"), "torch", torch.__version__)
rows = torch.linspace(-1, 1, 20).reshape(5, 4)
kinds = {
    "LULinear": lambda cache: LULinear(4, using_cache=cache, identity_init=False),
    "QRLinear": lambda cache: QRLinear(4, num_householder=2, using_cache=cache),
    "SVDLinear": lambda cache: SVDLinear(4, num_householder=2, using_cache=cache, identity_init=False),
}
for name, make in kinds.items():
    for cache in (True, False):
        torch.manual_seed(1)
        saved, layer, fresh = (make(cache).eval() for _ in range(3))
        for module in (saved, layer):
            for parameter_name, parameter in module.named_parameters():  # some begin with zeros
                if parameter_name != "bias":  # it is not in the cache
                    torch.nn.init.normal_(parameter, std=0.5)
        expected, before = saved(rows)[0], layer(rows)[0]
        layer.load_state_dict(saved.state_dict())
        fresh.load_state_dict(saved.state_dict())
        found = layer(rows)[0]
        kept = "the old ones" if torch.equal(found, before) else "new"
        print(name, "with a cache:" if cache else "without a cache:", "outputs after a load are", kept)
        assert torch.allclose(found, before if cache else expected) and not torch.allclose(before, expected)
        layer.train().eval()
        assert torch.allclose(layer(rows)[0], expected) and torch.allclose(fresh(rows)[0], expected)

torch.manual_seed(1)
saved, layer, fresh = (EmpiricalNormalization(1) for _ in range(3))
saved(torch.randn(1000, 1) * 20 + 5)
layer(torch.randn(1000, 1))
row = torch.tensor([[25.0]])
expected = saved(row, update=False).item()
for module in (layer, fresh):
    module.load_state_dict(saved.state_dict())
found = layer(row, update=False).item()
print(f"EmpiricalNormalization: 25 becomes {found:.2f} after a load, and {expected:.2f} in a new module. Its deviation is {layer.std.item():.1f}")
assert abs(found - 20) < 2 and abs(expected - 1) < 0.1 and fresh(row, update=False).item() == expected
layer._cached_std_inverse = None
assert layer(row, update=False).item() == expected
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
