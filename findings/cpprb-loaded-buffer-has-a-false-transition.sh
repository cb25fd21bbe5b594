#!/bin/sh
# cpprb 11.0.0 with numpy 2.4.6: a full replay buffer with `next_of` is loaded with a false transition, and continues at the wrong place.
#
# With `next_of="obs"` the buffer stores each observation once, and takes the next observation from the next entry. For the newest entry it
# keeps it separately. `save_transitions` writes the ring as it lies in memory. `load_transitions` adds it from the first entry on, so the newest entry
# of a full ring is followed by the oldest one, whose observation becomes its next observation. An agent then learns from a transition that never happened.
# The load also begins at position 0, with or without `next_of`, so that new transitions overwrite other ones than the oldest. A `PrioritizedReplayBuffer`
# loses its priorities: every entry has the same one after the load. Nothing is raised or logged, and a test with a buffer that is not full passes.
# Store the transitions from the oldest to the newest yourself, and add them to a new buffer, as below.
#
# Guess: a loaded buffer has the transitions of the saved one, and continues as it does.
# Seen, 2026-11-30: 9 transitions in a ring of 6. The next observation of state 8 is 9 before the save and 3 after the load. The next added
# transition overwrites state 6 instead of state 3. An entry with 100 times the priority of 7 others gets 12 % of the samples instead of 93 %.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'cpprb==11.0.0' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
from importlib.metadata import version

import numpy
from cpprb import PrioritizedReplayBuffer, ReplayBuffer

FILE = f"{sys.argv[1]}/transitions.npz"


def ring():
    return ReplayBuffer(6, {"obs": {}}, next_of="obs")


def add(buffer, states):
    for state in states:
        buffer.add(obs=state, next_obs=state + 1)


def transitions(buffer):
    """The pairs of a state and the next state."""
    found = buffer.get_all_transitions()
    return sorted(zip(found["obs"].ravel().astype(int).tolist(), found["next_obs"].ravel().astype(int).tolist(), strict=True))


print("cpprb", version("cpprb"), "numpy", numpy.__version__)
for count, exact in ((4, True), (9, False)):
    saved, loaded = ring(), ring()
    add(saved, range(count))
    saved.save_transitions(FILE)
    loaded.load_transitions(FILE)
    before, after = transitions(saved), transitions(loaded)
    print(f"{count} transitions in a ring of 6: saved {before}, loaded {after}")
    assert all(next_state == state + 1 for state, next_state in before)
    assert (after == before) == exact
assert dict(before)[8] == 9 and dict(after)[8] == 3

in_order = saved.get_all_transitions()
order = numpy.roll(numpy.arange(6), -saved.get_next_index())
repaired = ring()
for number in order:
    repaired.add(obs=in_order["obs"][number], next_obs=in_order["next_obs"][number])
assert transitions(repaired) == before
for buffer in (saved, loaded, repaired):
    add(buffer, [9])
states = [[state for state, _ in transitions(buffer)] for buffer in (saved, loaded, repaired)]
print(f"states after the next one: without a stop {states[0]}, loaded {states[1]}, added from the oldest to the newest {states[2]}")
assert states[0] == states[2] == [4, 5, 6, 7, 8, 9] and states[1] == [3, 4, 5, 7, 8, 9]

shares = []
saved, loaded = (PrioritizedReplayBuffer(8, {"obs": {}}, alpha=1.0) for _ in range(2))
for state in range(8):
    saved.add(obs=state)
saved.update_priorities(numpy.arange(8), numpy.array([100.0] + [1.0] * 7))
saved.save_transitions(FILE)
loaded.load_transitions(FILE)
for buffer in (saved, loaded):
    shares.append(float((buffer.sample(10_000)["obs"] == 0).mean()))
print(f"share of the entry with priority 100 in the samples: saved {shares[0]:.3f}, loaded {shares[1]:.3f}")
assert shares[0] > 0.9 and shares[1] < 0.2
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
