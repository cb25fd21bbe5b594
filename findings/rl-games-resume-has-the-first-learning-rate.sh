#!/bin/sh
# rl-games 1.6.5 with torch 2.13.0: a resumed run with an adaptive learning rate begins with the rate of the configuration.
#
# With `lr_schedule: adaptive`, the agent raises and lowers its learning rate by the KL divergence. The rate is in the checkpoint, in the
# state of the optimizer, and the load restores it. But the agent also has a copy, `last_lr`, which is not saved. After the first step of a
# resumed run, the rate of the optimizer is set from the copy. So the rate that training has adapted is lost, and the schedule begins again.
# There is no warning. Set `learning_rate` in the configuration to the rate in the checkpoint.
#
# Guess: the optimizer has the rate of the checkpoint, and the schedule continues from it.
# Seen, 2026-11-30: the rate rises from 0.0003 to 0.01 in 20 epochs. The resumed run has 0.0003 before the schedule acts in epoch 21, and
# 0.0015 after epoch 24, where the run without a resume has 0.01. With the saved rate in the configuration it has 0.01 from 21 on.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'rl-games==1.6.5' 'gymnasium==1.4.0'
cat > "$dir/try.py" <<'PY'
import contextlib
import importlib.metadata
import io
import sys
from pathlib import Path

import numpy
import torch
from gymnasium.spaces import Box
from rl_games.algos_torch.a2c_continuous import A2CAgent
from rl_games.common import env_configurations, vecenv
from rl_games.common.ivecenv import IVecEnv
from rl_games.torch_runner import Runner

torch.set_num_threads(1)


class Environment(IVecEnv):
    """Random observations. The reward is highest for the action 0."""

    def __init__(self, count):
        self.count, self.random, self.steps = count, numpy.random.default_rng(0), 0

    def reset(self):
        return self.random.standard_normal((self.count, 2)).astype("float32")

    def step(self, actions):
        self.steps += 1
        return self.reset(), -numpy.square(actions[:, 0]), numpy.full(self.count, self.steps % 8 == 0), {}

    def get_number_of_agents(self):
        return 1

    def get_env_info(self):
        return {"observation_space": Box(-1, 1, (2,)), "action_space": Box(-1, 1, (1,))}


vecenv.register("TOY", lambda name, count, **more: Environment(count))
env_configurations.register("toy", {"vecenv_type": "TOY", "env_creator": None})


def parameters(name, epochs, rate):
    continuous = {
        "mu_activation": "None",
        "sigma_activation": "None",
        "mu_init": {"name": "default"},
        "sigma_init": {"name": "const_initializer", "val": 0},
        "fixed_sigma": True,
    }
    mlp = {"units": [8], "activation": "elu", "initializer": {"name": "default"}}
    network = {"name": "actor_critic", "separate": False, "space": {"continuous": continuous}, "mlp": mlp}
    config = {
        "name": name,
        "full_experiment_name": name,
        "train_dir": sys.argv[1],
        "env_name": "toy",
        "device": "cpu",
        "torch_compile": False,
        "num_actors": 4,
        "horizon_length": 8,
        "minibatch_size": 32,
        "mini_epochs": 1,
        "max_epochs": epochs,
        "save_frequency": epochs,
        "print_stats": False,
        "learning_rate": rate,
        "lr_schedule": "adaptive",
        "schedule_type": "standard",
        "kl_threshold": 0.008,
        "reward_shaper": {"scale_value": 1.0},
        "normalize_input": False,
        "normalize_advantage": True,
        "gamma": 0.9,
        "tau": 0.9,
        "e_clip": 0.2,
        "clip_value": True,
        "critic_coef": 1,
        "entropy_coef": 0.0,
        "bounds_loss_coef": 0.0001,
        "grad_norm": 1.0,
    }
    algorithm = {"algo": {"name": "a2c_continuous"}, "model": {"name": "continuous_a2c_logstd"}}
    return {"params": {"seed": 1, **algorithm, "network": network, "config": config}}


rates = {}
update = A2CAgent.update_lr


def recorded(agent, rate):
    """Record the rate of the optimizer before and after the schedule acts."""
    before = agent.optimizer.param_groups[0]["lr"]
    update(agent, rate)
    rates[agent.epoch_num] = before, round(agent.optimizer.param_groups[0]["lr"], 6)


A2CAgent.update_lr = recorded


def trained(name, epochs, rate=0.0003, checkpoint=None):
    rates.clear()
    runner = Runner()
    with contextlib.redirect_stdout(io.StringIO()) as log:
        runner.load(parameters(name, epochs, rate))
        runner.run({"train": True, "play": False, "checkpoint": checkpoint})
    assert "warn" not in log.getvalue().lower(), log.getvalue()
    return dict(rates)


print("rl-games", importlib.metadata.version("rl-games"), "torch", torch.__version__)
trained("first", 20)
checkpoint = str(next(Path(sys.argv[1], "first", "nn").glob("last_first_ep_20_*.pth")))
saved = torch.load(checkpoint, weights_only=False)["optimizer"]["param_groups"][0]["lr"]
whole = trained("whole", 24)
resumed = trained("resumed", 24, checkpoint=checkpoint)
right = trained("right", 24, saved, checkpoint)
print("rate in the checkpoint:", saved)
for name, seen in (("not resumed", whole), ("resumed", resumed), ("rate set", right)):
    print(name, "rates before and after the schedule acts:", {epoch: seen[epoch] for epoch in range(21, 25)})
assert saved == 0.01
assert whole[21] == whole[24] == (0.01, 0.01)
assert resumed[21][0] == 0.0003
assert resumed[24][1] < 0.002
assert right[21] == right[24] == (0.01, 0.01)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
