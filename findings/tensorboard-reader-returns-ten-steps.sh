#!/bin/sh
# tensorboard 2.21.0 with tensorboardX 2.6.5: `EventAccumulator` returns 10 of 25,000 logged losses, chosen at random.
#
# `EventAccumulator` is the usual way to read losses out of event files. By default it keeps a random sample of each tag: 10,000 scalars, and 10
# tensors. tensorboardX and `torch.utils.tensorboard` log a loss as a scalar. `tensorboard.summary.Writer`, `tf.summary` and thus Keras log it as a
# tensor. The last step is always kept, so a look at the ends of a list finds nothing wrong. The best step or the last steps before a crash are mostly
# missing. There is no warning. A script that compares a resumed run with the one before finds other steps in each. Pass `size_guidance={"scalars": 0,
# "tensors": 0}`.
#
# Guess: the reader of the package returns all events.
# Seen, 2026-11-30: 25,000 steps, with the lowest loss at step 12,345. Tensors: 10 steps, the lowest is missing, and 1 of the last 1,000 steps is
# there. Scalars: 10,000 steps. With size_guidance of 0 all 25,000.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'tensorboard==2.21.0' 'tensorboardX==2.6.5' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
from importlib.metadata import version

import tensorboardX
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tensorboard.summary import Writer

STEPS, BEST = 25_000, 12_345


def loss(step):
    return 0.5 if step == BEST else 1 + 1 / (step + 1)


def steps(folder, kind, **options):
    reader = EventAccumulator(folder, **options)
    reader.Reload()
    return [event.step for event in getattr(reader, kind)("loss")]


print("tensorboard", version("tensorboard"), "tensorboardX", version("tensorboardX"))
for kind, writer, kept in (("Tensors", Writer, 10), ("Scalars", tensorboardX.SummaryWriter, 10_000)):
    folder = f"{sys.argv[1]}/{kind}"
    log = writer(folder)
    for step in range(STEPS):
        log.add_scalar("loss", loss(step), step)
    log.close()
    found = steps(folder, kind)
    every = steps(folder, kind, size_guidance={"scalars": 0, "tensors": 0})
    latest = sum(step >= STEPS - 1000 for step in found)
    print(f"{kind}: {len(found)} of {STEPS} steps, last {found[-1]}, best step found: {BEST in found}, {latest} of the last 1,000; with 0: {len(every)}")
    assert len(found) == kept and found[-1] == STEPS - 1 and every == list(range(STEPS))
    assert kind == "Scalars" or (BEST not in found and latest < 5)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" 2> "$dir/log" || { cat "$dir/log"; exit 1; }
