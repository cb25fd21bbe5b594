#!/bin/sh
# orbax-checkpoint 0.12.8: one NaN metric makes a CheckpointManager with `best_fn` delete the best checkpoint.
#
# The manager sorts the checkpoints by their metric. NaN is neither less nor greater than a number, so the order breaks: the checkpoint
# with NaN counts as better than the earlier ones, and every later one, however bad, as better than NaN. The one with the lowest loss is
# deleted and cannot be restored. Nothing is logged. Let `best_fn` return infinity (mode "min") or minus infinity for NaN.
#
# Seen, with losses 1, 2, NaN, 3, mode "min" and max_to_keep=1: step 0 is kept until the NaN, then only step 2, then only step 3, which
# `best_step()` returns. With 1, NaN, 2, 3 and max_to_keep=2, step 0 is deleted by the save after the NaN.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'orbax-checkpoint==0.12.8' 'jax==0.10.2'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import orbax.checkpoint as ocp


def kept(place, losses, keep):
    options = ocp.CheckpointManagerOptions(max_to_keep=keep, best_fn=lambda metrics: metrics["loss"], best_mode="min")
    seen = []
    with ocp.CheckpointManager(place, options=options) as manager:
        for step, loss in enumerate(losses):
            manager.save(step, args=ocp.args.StandardSave({"w": np.ones(2)}), metrics={"loss": loss})
            manager.wait_until_finished()
            seen.append(sorted(manager.all_steps()))
        best = manager.best_step()
    print(f"losses {losses}, max_to_keep={keep}: kept {seen}, best {best}")
    return seen, best


nan = float("nan")
assert kept(f"{sys.argv[1]}/a", (1.0, 2.0, 4.0, 3.0), 1) == ([[0]] * 4, 0)
assert kept(f"{sys.argv[1]}/b", (1.0, 2.0, nan, 3.0), 1) == ([[0], [0], [2], [3]], 3)
assert kept(f"{sys.argv[1]}/c", (1.0, nan, 2.0, 3.0), 2) == ([[0], [0, 1], [1, 2], [2, 3]], 2)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
