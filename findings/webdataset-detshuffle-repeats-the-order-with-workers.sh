#!/bin/sh
# webdataset 1.0.2 with torch 2.13.0: with worker processes, `detshuffle` gives each epoch the same order.
#
# `detshuffle` shuffles by a seed and a count of its epochs, so that a run can be repeated and epochs differ. The count is an attribute of
# the stage. The workers of a `DataLoader` are started for each epoch with copies of the data set, count in the copy and end. The count in
# the main process remains at its start. So every epoch has the order of the first one, without a warning. Without workers, or with
# `persistent_workers=True`, the orders differ, so a test with `num_workers=0` passes. A resumed process begins with the order of the first
# epoch in each case.
#
# Guess: epochs have different orders, whatever the number of workers.
# Seen, 2026-11-29: three epochs have three orders with 0 workers and with 2 persistent ones, and one order with 2 workers.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'webdataset==1.0.2'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import sys

import webdataset
from torch.utils.data import DataLoader

folder = sys.argv[1]


def number(sample):
    return int(sample["cls"])


def orders(**how):
    """How many different orders three epochs have."""
    data = webdataset.DataPipeline(
        webdataset.SimpleShardList(folder + "/shard-{0..5}.tar"), webdataset.detshuffle(10), webdataset.split_by_worker,
        webdataset.tarfile_to_samples(), webdataset.detshuffle(20), webdataset.map(number),
    )  # fmt: skip
    loader = DataLoader(data, batch_size=None, **how)
    epochs = [tuple(loader) for _ in range(3)]
    assert all(sorted(epoch) == list(range(60)) for epoch in epochs)
    return len({*epochs})


if __name__ == "__main__":
    for shard in range(6):
        with webdataset.TarWriter(f"{folder}/shard-{shard}.tar") as writer:
            for index in range(10 * shard, 10 * shard + 10):
                writer.write({"__key__": f"{index:03}", "cls": index})
    print("webdataset", importlib.metadata.version("webdataset"))
    for how, expected in (({}, 3), ({"num_workers": 2, "persistent_workers": True}, 3), ({"num_workers": 2}, 1)):
        found = orders(**how)
        print(how, "orders of three epochs:", found)
        assert found == expected
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
