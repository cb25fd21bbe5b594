#!/bin/sh
# orbax-checkpoint 0.12.8: after a return to an older step, `latest_step()` differs between the writing process and the next one.
#
# With `force=True` a CheckpointManager saves a step below the newest. It appends the step to its list, so `latest_step()` returns it and
# `max_to_keep` counts it as the newest. A manager that is opened later sorts the list, and `latest_step()` returns the step that the run had
# abandoned. A run that is rolled back and later restarted resumes from the branch that it had left. Delete the newer steps first.
#
# Seen: steps 10, 20, 30, then 15 with `force=True`, max_to_keep=2. The writer lists [30, 15] and returns 15 as the latest; a fresh manager
# returns 30 and refuses to save step 16.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'orbax-checkpoint==0.12.8' 'jax==0.10.2'
cat > "$dir/try.py" <<'PY'
import sys

import numpy as np
import orbax.checkpoint as ocp

PLACE = f"{sys.argv[1]}/run"


def opened():
    return ocp.CheckpointManager(PLACE, options=ocp.CheckpointManagerOptions(max_to_keep=2))


def save(manager, step, **how):
    done = manager.save(step, args=ocp.args.StandardSave({"w": np.ones(2)}), **how)
    manager.wait_until_finished()
    return done


with opened() as writer:
    for step in (10, 20, 30):
        save(writer, step)
    assert save(writer, 15, force=True)
    here = list(writer.all_steps()), writer.latest_step()
with opened() as fresh:
    later = sorted(fresh.all_steps()), fresh.latest_step()
    refused = not save(fresh, 16)
print("the writer:", here, "a fresh manager:", later, "refuses 16:", refused)
assert here == ([30, 15], 15) and later == ([15, 30], 30) and refused
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
