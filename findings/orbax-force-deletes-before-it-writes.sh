#!/bin/sh
# orbax-checkpoint 0.12.8: `save(path, state, force=True)` deletes the old checkpoint first, also if it then refuses the new state.
#
# "force" replaces an existing checkpoint. The old one is removed before the new state is checked or written, so a state with a string or a
# zero-size array, which Orbax refuses, or any other error of the save leaves no checkpoint at all. New checkpoints are otherwise written
# beside the old ones and renamed. Save to a new path, or with a CheckpointManager, which keeps the old step if a save fails.
#
# Seen: `StandardCheckpointer` (both states) and `PyTreeCheckpointer` (the array) raise ValueError and the path is gone; the manager, with
# max_to_keep=1, raises it as well and still restores step 1.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'orbax-checkpoint==0.12.8' 'jax==0.10.2'
cat > "$dir/try.py" <<'PY'
import logging
import pathlib
import sys
import tempfile

import numpy as np
import orbax.checkpoint as ocp

logging.getLogger("absl").setLevel(logging.CRITICAL)  # a thread reports the refused save as well, at length
GOOD = {"w": np.ones(2)}


def left_by_force(kind, refused):
    path = pathlib.Path(tempfile.mkdtemp(dir=sys.argv[1])) / "checkpoint"
    with kind() as checkpointer:
        checkpointer.save(path, GOOD)
        if kind is ocp.StandardCheckpointer:
            checkpointer.wait_until_finished()
        assert np.array_equal(checkpointer.restore(path)["w"], GOOD["w"])
        try:
            checkpointer.save(path, {"w": refused}, force=True)
        except ValueError as error:
            print(f"{kind.__name__}: {str(error)[:50]}…; the old checkpoint exists: {path.exists()}")
            return path.exists()
    raise AssertionError("it was saved")


def left_by_manager(refused):
    with ocp.CheckpointManager(tempfile.mkdtemp(dir=sys.argv[1]), options=ocp.CheckpointManagerOptions(max_to_keep=1)) as manager:
        manager.save(1, args=ocp.args.StandardSave(GOOD))
        manager.wait_until_finished()
        try:
            manager.save(2, args=ocp.args.StandardSave({"w": refused}))
        except ValueError:
            return np.array_equal(manager.restore(1)["w"], GOOD["w"])
    raise AssertionError("it was saved")


kinds = ocp.StandardCheckpointer, ocp.PyTreeCheckpointer
states = "a name", np.zeros((0, 3))
kept = [left_by_force(kind, state) for kind in kinds for state in (states if kind is kinds[0] else states[1:])]
by_manager = left_by_manager(states[1])
print("kept:", kept, "by the manager:", by_manager)
assert not any(kept) and by_manager
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
