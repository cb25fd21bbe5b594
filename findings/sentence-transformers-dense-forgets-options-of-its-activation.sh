#!/bin/sh
# sentence-transformers 6.2.0 with torch 2.13.0: a saved `Dense` module with `LeakyReLU(0.5)` is loaded with `LeakyReLU(0.01)`.
#
# `Dense` is a layer after the pooling of an embedding model. Its configuration file has only the class of the activation, such as
# "torch.nn.modules.activation.LeakyReLU", and `load` creates it without arguments. Its options return to their defaults: the slope of LeakyReLU, the
# approximation of GELU, `beta` of Softplus, `alpha` of ELU. The weights are exact, no key is missing, and nothing is raised or logged. So the loaded
# or published model computes other embeddings than the evaluated one. An activation with weights, such as PReLU, has them in the weights file and is
# right. Use an activation with its default options, or set `model[i].activation_function` after each load. A subclass of the activation without
# arguments also works if it can be imported where the model is loaded.
#
# Guess: the options are saved, or an activation with options is refused.
# Seen, 2026-12-01: LeakyReLU(0.5), GELU("tanh"), Softplus(beta=3) and ELU(0.2) are loaded as LeakyReLU(0.01), GELU("none"), Softplus(beta=1) and
# ELU(1.0), alone and in a SentenceTransformer. The embeddings differ. Tanh and PReLU(init=0.7) give equal embeddings.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'sentence-transformers==6.2.0' 'torch==2.13.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import os
import sys

os.environ["HF_HUB_OFFLINE"] = "1"
import sentence_transformers
import torch
from sentence_transformers import SentenceTransformer, models
from torch import nn

torch.set_num_threads(1)
torch.manual_seed(0)
print("sentence-transformers", sentence_transformers.__version__, "torch", torch.__version__)
features = torch.randn(5, 4)


def embeddings(dense):
    with torch.no_grad():
        return dense({"sentence_embedding": features.clone()})["sentence_embedding"]


activations = [nn.Tanh(), nn.PReLU(init=0.7), nn.LeakyReLU(0.5), nn.GELU("tanh"), nn.Softplus(beta=3), nn.ELU(0.2)]
for index, activation in enumerate(activations):
    dense = models.Dense(4, 4, activation_function=activation)
    model = SentenceTransformer(modules=[models.BoW(["a", "b", "c", "d"]), dense], device="cpu")
    folders = f"{sys.argv[1]}/dense{index}", f"{sys.argv[1]}/model{index}"
    os.makedirs(folders[0])
    dense.save(folders[0])
    model.save(folders[1], create_model_card=False)
    expected = embeddings(dense)
    whole = SentenceTransformer(folders[1], device="cpu")
    for loaded in (models.Dense.load(folders[0]), whole[1]):
        assert torch.equal(loaded.linear.weight, dense.linear.weight) and torch.equal(loaded.linear.bias, dense.linear.bias)
        difference = (embeddings(loaded) - expected).abs().max()
        print(f"{activation} is loaded as {loaded.activation_function}: largest difference of the embeddings {difference:.2g}")
        assert type(loaded.activation_function) is type(activation)
        if index < 2:
            assert difference == 0
        else:
            assert difference > 1e-5 and repr(loaded.activation_function) == repr(type(activation)())
    first, second = model.encode(["a b c", "b d"]), whole.encode(["a b c", "b d"])
    print(f"  sentences: largest difference {abs(first - second).max():.2g}")
    assert (abs(first - second).max() == 0) == (index < 2)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
