#!/bin/sh
# stable_baselines3 2.9.2 with torch 2.13.0: after a resume, `EvalCallback` overwrites the earlier evaluations and the best model.
#
# `EvalCallback` appends each evaluation to lists, and writes them to `evaluations.npz` in `log_path`. A new callback begins with empty lists and
# a best reward of minus infinity, and does not read the file, also with `learn(reset_num_timesteps=False)`, which continues the count of
# steps. So the first evaluation after a restart deletes all earlier ones, and its model replaces `best_model.zip`, without a warning. Use
# another folder for each restart, or set `best_mean_reward` and the lists from the file.
#
# Guess: the file is appended to, since the count of steps continues.
# Seen, 2026-11-29: evaluations at 32 to 128 steps with reward 10, then a resume with reward 1. The file has steps 160 and later only, and the
# best model is the one of step 160.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'gymnasium==1.4.0' pandas
"$dir/venv/bin/pip" -q install --no-deps 'stable_baselines3==2.9.2'
cat > "$dir/try.py" <<'PY'
import sys

import gymnasium
import numpy
import stable_baselines3
import torch
from stable_baselines3 import PPO
from stable_baselines3.common.callbacks import EvalCallback

torch.set_num_threads(1)
FOLDER = sys.argv[1]


class Constant(gymnasium.Env):
    """Episodes of one step with a given reward."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def __init__(self, reward):
        self.reward = float(reward)

    def reset(self, *, seed=None, options=None):
        return numpy.zeros(1, "float32"), {}

    def step(self, action):
        return numpy.zeros(1, "float32"), self.reward, True, False, {}


def train(model, reward):
    """Train for 128 steps. Returns the steps and rewards in the file, and the step of the best model."""
    evaluate = EvalCallback(Constant(reward), eval_freq=32, log_path=FOLDER, best_model_save_path=FOLDER, verbose=0)
    model.learn(128, callback=evaluate, reset_num_timesteps=False)
    model.save(f"{FOLDER}/last")
    with numpy.load(f"{FOLDER}/evaluations.npz") as file:
        steps, rewards = file["timesteps"].tolist(), file["results"].mean(1).tolist()
    return steps, rewards, PPO.load(f"{FOLDER}/best_model", device="cpu").num_timesteps


print("stable_baselines3", stable_baselines3.__version__)
model = PPO("MlpPolicy", Constant(0), n_steps=32, batch_size=32, n_epochs=1, device="cpu")
found = train(model, 10)
print("first part: ", found)
assert found == ([32, 64, 96, 128], [10.0] * 4, 32)
resumed = PPO.load(f"{FOLDER}/last", Constant(0), device="cpu")
assert resumed.num_timesteps == 128
found = train(resumed, 1)
print("second part:", found)
assert found == ([160, 192, 224, 256], [1.0] * 4, 160)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
