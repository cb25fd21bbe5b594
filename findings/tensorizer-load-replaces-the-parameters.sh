#!/bin/sh
# tensorizer 2.12.1 with torch 2.13.0: `load_into_module` puts new parameters into the model, and an optimizer made before it trains the old ones.
#
# `load_state_dict` copies values into existing parameters. `load_into_module` replaces each parameter by a new one. So an optimizer that was created
# before the load updates tensors that no layer uses, and the model does not change, without an error. Tied weights are loaded as two
# separate parameters, which training then changes separately. Names, shapes and dtypes are not compared: a parameter that the file lacks keeps its random
# value, and one of another shape or dtype takes the place of the model's. The result is only the number of tensors. Pass the
# `TensorDeserializer` to `load_state_dict` instead, which does none of this.
#
# Guess: a load "into" a module copies values, and keeps ties and optimizers.
# Seen, 2026-11-29: after the load and a step the loss is unchanged, and the head is no longer the embedding. With `load_state_dict` the loss
# falls and the tie remains. A float16 model has float32 weights, and a parameter missing in the file is not reported.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'tensorizer==2.12.1'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys

import torch
from tensorizer import TensorDeserializer, TensorSerializer
from torch import nn

FILE = sys.argv[1] + "/model.tensors"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(5, 3)
        self.head = nn.Linear(3, 5, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens):
        return self.head(self.embedding(tokens))


def write(model):
    serializer = TensorSerializer(FILE)
    serializer.write_module(model)
    serializer.close()


def deserializer():
    return TensorDeserializer(FILE, device="cpu")


print("tensorizer", importlib.metadata.version("tensorizer"), "torch", torch.__version__)
torch.manual_seed(0)
tokens = torch.arange(5)
trained = Model()
write(trained)


def resumed(load):
    """Losses before and after a step of an optimizer that is older than the load, and whether the weights are tied."""
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    load(model)
    assert torch.equal(model(tokens), trained(tokens))
    losses = []
    for _ in range(2):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(tokens), tokens)
        losses.append(loss.item())
        loss.backward()
        optimizer.step()
    return losses, model.head.weight is model.embedding.weight


into = resumed(lambda model: deserializer().load_into_module(model))
copied = resumed(lambda model: model.load_state_dict(deserializer()))
print("load_into_module: losses", into[0], "tied:", into[1])
print("load_state_dict: losses", copied[0], "tied:", copied[1])
assert into[0][0] == into[0][1]
assert not into[1]
assert copied[0][0] > copied[0][1]
assert copied[1]

half = Model().half()
half.extra = nn.Parameter(torch.full((1,), 7.0))
print("tensors loaded:", deserializer().load_into_module(half), "dtype", half.embedding.weight.dtype, "extra", half.extra.item())
assert half.embedding.weight.dtype == torch.float32
assert half.extra.item() == 7
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
