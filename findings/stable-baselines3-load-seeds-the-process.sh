#!/bin/sh
# stable_baselines3 2.9.2 with torch 2.13.0: loading a model seeds Python, numpy, torch and the environment with the seed of the first run.
#
# `save` stores the argument `seed`, and `load` uses it as the constructor does. So a resumed training does not continue with new
# episodes. Each restart begins with the first episode of the run, and draws the same random numbers as the restart before it. A `load` in the
# middle of a training, for example to compare with the best model, also resets the generators of that training. There is no warning.
# Pass `seed=None` to `load`, or another seed at each restart.
#
# Guess: `load` restores parameters, and leaves the generators of the process alone.
# Seen, 2026-11-29: after a load, `torch.rand`, `numpy.random` and `random` return the same numbers whatever seeds were set before. Two runs
# resumed with different seeds start at the first observation of the first run and take the same 32 actions. With `seed=None` they differ.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'gymnasium==1.4.0' pandas
"$dir/venv/bin/pip" -q install --no-deps 'stable_baselines3==2.9.2'
cat > "$dir/try.py" <<'PY'
import random
import sys

import gymnasium
import numpy
import stable_baselines3
import torch
from stable_baselines3 import PPO

torch.set_num_threads(1)
FILE = sys.argv[1] + "/model"


def seed(number):
    random.seed(number)
    numpy.random.seed(number)
    torch.manual_seed(number)


def draws():
    return random.random(), numpy.random.rand(), torch.rand(1).item()


def rollout(model):
    """The first observation and the actions of the newest rollout."""
    return model.rollout_buffer.observations[0, 0].tolist(), model.rollout_buffer.actions.ravel().tolist()


print("stable_baselines3", stable_baselines3.__version__)
model = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), n_steps=32, batch_size=32, n_epochs=1, seed=0, device="cpu")
model.learn(32)
first = rollout(model)
model.learn(64, reset_num_timesteps=False)
model.save(FILE)

for options in ({}, {"seed": None}):
    numbers, resumed = [], []
    for number in (1, 2):
        seed(number)
        PPO.load(FILE, device="cpu", **options)
        numbers.append(draws())
        seed(number)
        again = PPO.load(FILE, gymnasium.make("CartPole-v1"), device="cpu", **options)
        again.learn(32, reset_num_timesteps=False)
        resumed.append(rollout(again))
    start = [observation == first[0] for observation, _ in resumed]
    print(options, "same draws:", numbers[0] == numbers[1], "same rollouts:", resumed[0] == resumed[1], "start of the first run:", start)
    seeded = not options
    assert (numbers[0] == numbers[1]) == seeded
    assert (resumed[0] == resumed[1]) == seeded
    assert start == [seeded, seeded]
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
