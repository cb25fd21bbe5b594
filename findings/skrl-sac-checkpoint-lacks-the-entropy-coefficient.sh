#!/bin/sh
# skrl 2.1.1 with torch 2.13.0: a resumed SAC agent begins again with the first entropy coefficient, but with the old state of its optimizer.
#
# SAC learns how much the entropy of its actions counts. Each checkpoint of the agent has the optimizer of this coefficient, all networks and their
# optimizers. The coefficient itself is a tensor outside of any module, and the checkpoint lacks it. So `load` restores the moments of a number that
# it does not restore, and the coefficient is `initial_entropy_value` again. Critic and policy then train with another objective. Neither `save` nor
# `load` reports anything, and the actions of the loaded policy are the same. Save `log_entropy_coefficient` yourself, copy it into the tensor of the
# new agent in place, and set `_entropy_coefficient`.
#
# Guess: a checkpoint with the optimizer of the coefficient also has the coefficient.
# Seen, 2026-11-30: after 200 updates the coefficient is 0.164, and after a load 0.2. After 20 further updates it is 0.161 without a stop, and 0.196
# after a load. With the coefficient copied, the policy is then equal to that of an agent without a stop. Otherwise it differs.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'skrl==2.1.1' 'gymnasium==1.0.0'
cat > "$dir/try.py" <<'PY'
import sys
from importlib.metadata import version

import numpy as np
import torch
from gymnasium.spaces import Box
from skrl.agents.torch.sac import SAC, SAC_CFG
from skrl.memories.torch import RandomMemory
from skrl.models.torch import DeterministicMixin, GaussianMixin, Model

torch.set_num_threads(1)
STATES, ACTIONS = Box(-1, 1, (3,), np.float32), Box(-1, 1, (1,), np.float32)
SPACES = {"observation_space": STATES, "action_space": ACTIONS, "device": "cpu"}


class Policy(GaussianMixin, Model):
    def __init__(self):
        Model.__init__(self, **SPACES)
        GaussianMixin.__init__(self)
        self.net = torch.nn.Linear(3, 1)
        self.spread = torch.nn.Parameter(torch.zeros(1))

    def compute(self, inputs, role):
        return torch.tanh(self.net(inputs["observations"])), {"log_std": self.spread}


class Critic(DeterministicMixin, Model):
    def __init__(self):
        Model.__init__(self, **SPACES)
        DeterministicMixin.__init__(self)
        self.net = torch.nn.Linear(4, 1)

    def compute(self, inputs, role):
        return self.net(torch.cat([inputs["observations"], inputs["taken_actions"]], 1)), {}


def build():
    """An agent with a memory of 256 fixed transitions."""
    torch.manual_seed(0)
    names = ("critic_1", "critic_2", "target_critic_1", "target_critic_2")
    models = {"policy": Policy(), **{name: Critic() for name in names}}
    memory = RandomMemory(memory_size=256, num_envs=1, device="cpu")
    configuration = SAC_CFG(batch_size=32, learning_rate=1e-3, initial_entropy_value=0.2)
    configuration.experiment.write_interval = configuration.experiment.checkpoint_interval = 0
    agent = SAC(models=models, memory=memory, cfg=configuration, observation_space=STATES, action_space=ACTIONS, device="cpu")
    agent.init()
    agent.enable_training_mode(True)  # without it no transition is recorded
    for number in range(256):
        row = torch.sin(torch.arange(3.0) * number)[None]
        none = torch.zeros(1, 1, dtype=torch.bool)
        agent.record_transition(
            observations=row, states=None, actions=row[:, :1], rewards=row[:, 1:2], next_observations=row.flip(1), next_states=None,
            terminated=none, truncated=none, infos={}, timestep=number, timesteps=256,
        )
    return agent


def train(agent, steps):
    """Update the agent, and return the weights of its policy."""
    for step in steps:
        torch.manual_seed(step)
        agent.enable_models_training_mode(True)
        agent.update(timestep=step, timesteps=1000)
    return torch.cat([parameter.detach().flatten() for parameter in agent.models["policy"].parameters()])


def loaded():
    agent = build()
    agent.load(f"{sys.argv[1]}/agent.pt")
    return agent


print("skrl", version("skrl"), "torch", torch.__version__)
agent = build()
train(agent, range(200))
agent.save(f"{sys.argv[1]}/agent.pt")
saved = torch.load(f"{sys.argv[1]}/agent.pt", weights_only=False)
learned = agent.log_entropy_coefficient.detach().clone()
print("parts of the checkpoint:", *saved)
assert "entropy_optimizer" in saved and saved["entropy_optimizer"]["state"]
again, repaired = loaded(), loaded()
repaired.log_entropy_coefficient.data.copy_(learned)
repaired._entropy_coefficient = learned.exp()
after_load = again.log_entropy_coefficient.exp().item()
print(f"entropy coefficient: {learned.exp().item():.3f} at the save, {after_load:.3f} after a load")
expected, found, copied = (train(each, range(200, 220)) for each in (agent, again, repaired))
ends = [each.log_entropy_coefficient.exp().item() for each in (agent, again)]
print(f"after 20 further updates: {ends[0]:.3f} without a stop, {ends[1]:.3f} after a load")
assert abs(learned.exp().item() - 0.2) > 0.02 and abs(after_load - 0.2) < 1e-6
assert torch.equal(expected, copied) and not torch.allclose(expected, found, rtol=1e-6, atol=0)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
