#!/bin/sh
# gymnasium 1.4.0 with mujoco 4.0.0: a pickled MuJoCo environment has its step count, but the simulation starts again.
#
# The environments of `gymnasium.envs.mujoco` are pickled as the arguments of their constructor. The wrappers around them, which `gymnasium.make`
# adds, are pickled with their attributes. So a checkpoint of an environment, or a `copy.deepcopy` of it for a search, contains the number of
# steps of the episode and "has been reset", and `step` works without an error. But the simulation is at the initial pose, which no `reset` returns, and
# the random generator of the resets is a new one. CartPole and other classic environments are pickled with everything, so a test with them passes.
# Save the state of the simulation and the generator separately, as below.
#
# Guess: the copy continues as that of CartPole does, or pickle raises an error.
# Seen, 2026-11-29: 10 steps before the copy and 60 after it. The copies of CartPole and Pendulum give the observations of the original, resets
# included. Those of InvertedPendulum and HalfCheetah differ from the first step on, and HalfCheetah ends its episode at the same step. With the
# state and the generator they are equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'gymnasium==1.4.0' 'mujoco==4.0.0' imageio packaging numpy
cat > "$dir/try.py" <<'PY'
import copy
import pickle

import gymnasium
import mujoco
import numpy

KINDS = mujoco.mjtState.mjSTATE_INTEGRATION


def pickled(environment):
    return pickle.loads(pickle.dumps(environment))


def with_state(environment):
    """A pickled environment with the state of the simulation and the generator of the resets."""
    found = pickled(environment)
    inner, loaded = environment.unwrapped, found.unwrapped
    state = numpy.empty(mujoco.mj_stateSize(inner.model, KINDS))
    mujoco.mj_getState(inner.model, inner.data, state, KINDS)
    mujoco.mj_setState(loaded.model, loaded.data, state, KINDS)
    mujoco.mj_forward(loaded.model, loaded.data)
    loaded.np_random = copy.deepcopy(inner.np_random)
    return found


def steps(environment, actions):
    """The observations of the actions and of the resets, and the number of the first action that ended an episode."""
    observations, end = [], None
    for number, action in enumerate(actions):
        observation, _, terminated, truncated, _ = environment.step(action)
        observations.append(observation.tolist())
        if terminated or truncated:
            end = number if end is None else end
            observations.append(environment.reset()[0].tolist())
    return observations, end


print("gymnasium", gymnasium.__version__, "mujoco", mujoco.__version__)
for name, equal in (("CartPole-v1", True), ("Pendulum-v1", True), ("InvertedPendulum-v5", False), ("HalfCheetah-v5", False)):
    environment = gymnasium.make(name, max_episode_steps=50)
    environment.reset(seed=1)
    environment.action_space.seed(1)
    still = numpy.zeros(environment.action_space.shape, environment.action_space.dtype)
    for number in range(10):
        environment.step(number % 2 if name == "CartPole-v1" else still)
    copies = [pickled(environment), copy.deepcopy(environment)]
    if not equal:
        copies.append(with_state(environment))
    actions = [environment.action_space.sample() if number < 5 else still for number in range(60)]
    found = [steps(each, actions) for each in (environment, *copies)]
    print(name, "same steps as the original:", [each[0] == found[0][0] for each in found[1:]], "end of the episode:", [each[1] for each in found])
    assert [each[0] == found[0][0] for each in found[1:3]] == [equal, equal]
    assert all(each[0] == found[0][0] for each in found[3:])
    if name == "HalfCheetah-v5":
        assert [each[1] for each in found] == [39, 39, 39, 39]
        first = [each[0][0][:3] for each in found]
        print("first observation of the original:", first[0], "of the copy:", first[1], "of the copy with the state:", first[3])
PY
cd "$dir" # MuJoCo writes a log to the current folder
"$dir/venv/bin/python" -W ignore "$dir/try.py"
