#!/bin/sh
# torch-geometric 2.8.1 with torch 2.13.0: in a batch, values of any attribute whose name contains "index" or "batch" are shifted, also ids and prices.
#
# A batch joins graphs into one, so the node numbers in `edge_index` are shifted by the number of nodes before. This is done for each attribute whose
# name contains "index", wherever: `sample_index`, `price_index`, also for a float. Values of a name that contains "batch", such as `minibatch`, are
# shifted by the largest one before, plus one. With a batch size of 1, in `dataset[i]`, and for the first graph of each batch the values are right. A
# target or a sample id is thus wrong for the rest of a batch, and sample ids of a log name other samples. `get_example` and `to_data_list` shift
# back. There is no error or warning. Choose other names, or override `Data.__inc__`.
#
# Guess: only `edge_index`, or integer attributes of the size of edges, are shifted.
# Seen, 2026-11-30: 4 graphs of 3 nodes with the values 0, 1, 2, 3. sample_index and the float price_index become 0, 4, 8, 12, and minibatch becomes
# 0, 2, 5, 9. sample_id and price stay. A loader with batch size 1 shows all as they are.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'torch-geometric==2.8.1'
cat > "$dir/try.py" <<'PY'
import torch
import torch_geometric
from torch_geometric.data import Data
from torch_geometric.loader import DataLoader

VALUES = [0, 1, 2, 3]
EXPECTED = {
    "sample_id": VALUES, "price": VALUES, "face_id": VALUES,
    "sample_index": [0, 4, 8, 12], "price_index": [0, 4, 8, 12], "indexed": [0, 4, 8, 12],
    "minibatch": [0, 2, 5, 9], "batch_of_day": [0, 2, 5, 9],
}


def graph(value):
    """A graph of 3 nodes with a number of each name. Prices are floats."""
    numbers = {name: torch.tensor([float(value) if "price" in name else value]) for name in EXPECTED}
    return Data(x=torch.zeros(3, 1), **numbers)


print("torch-geometric", torch_geometric.__version__, "torch", torch.__version__)
graphs = [graph(value) for value in VALUES]
(batch,) = DataLoader(graphs, batch_size=4)
single = list(DataLoader(graphs, batch_size=1))
for name, expected in EXPECTED.items():
    print(f"{name}: in a batch {batch[name].tolist()}, with batch size 1 {[each[name].item() for each in single]}")
    assert batch[name].tolist() == expected
    assert [each[name].item() for each in single] == VALUES
    assert [each[name].item() for each in batch.to_data_list()] == VALUES
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
