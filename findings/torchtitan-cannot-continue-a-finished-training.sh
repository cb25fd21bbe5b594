#!/bin/sh
# torchtitan 0.3.0: a training that reached its last step cannot be continued with more steps, because only its weights were saved there.
#
# The default `last_save_model_only=True` leaves optimizer, scheduler and counters out of the checkpoint of the last step. When the same job
# is started again with a larger number of steps, the manager chooses the directory with the highest step, which is this one, and its load
# ends in `CheckpointException` (missing keys of the optimizer). The full checkpoint two steps before it is not tried. `load_step` has to
# name it.
#
# Seen: steps 2 and 4 are full, step 6 has only weights; load() raises CheckpointException; load(step=4) loads.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'torchtitan==0.3.0'
cat > "$dir/try.py" <<'PY'
import importlib.metadata
import logging
import os
import sys

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.api import CheckpointException
from torchtitan.components.checkpointer import CheckpointManager
from torchtitan.components.optimizer import LRSchedulersContainer, OptimizersContainer
from torchtitan.components.optimizer.optimizer import ParamGroupConfig

FOLDER = sys.argv[1]


class Counter:
    step = 0

    def state_dict(self):
        return {"step": torch.tensor(self.step)}

    def load_state_dict(self, state):
        self.step = int(state["step"])


class Job:
    def __init__(self, steps):
        self.model, self.counter, self.steps = torch.nn.Linear(3, 3), Counter(), steps
        group = ParamGroupConfig(pattern=".*", optimizer_name="AdamW", optimizer_kwargs={"lr": 0.1})
        optimizers = OptimizersContainer.Config(param_groups=[group], implementation="for-loop")
        self.optimizers = optimizers.build(model_parts=[self.model])
        schedule = LRSchedulersContainer.Config(warmup_steps=1)
        self.schedule = schedule.build(optimizers=self.optimizers, training_steps=steps)
        config = CheckpointManager.Config(enable=True, folder="checkpoint", interval=2)
        self.manager = config.build(
            dataloader=None,
            model_parts=[self.model],
            optimizers=self.optimizers,
            lr_schedulers=self.schedule,
            states={"train_state": self.counter},
            sd_adapter=None,
            base_folder=FOLDER,
        )

    def train(self):
        while self.counter.step < self.steps:
            self.optimizers.zero_grad()
            self.model(torch.ones(2, 3)).square().mean().backward()
            self.optimizers.step()
            self.schedule.step()
            self.counter.step += 1
            self.manager.save(self.counter.step, last_step=self.counter.step == self.steps)
        self.manager.close()


print("torchtitan", importlib.metadata.version("torchtitan"), "torch", torch.__version__)
logging.disable(logging.WARNING)
dist.init_process_group("gloo", init_method=f"file://{FOLDER}/group", rank=0, world_size=1)
Job(6).train()
saved = sorted(os.listdir(f"{FOLDER}/checkpoint"))
again = Job(12)
try:
    outcome = f"loaded step {again.manager.load()}"
except CheckpointException as error:
    outcome = "CheckpointException, Missing key: " + str("Missing key" in str(error))
earlier = again.manager.load(step=4), again.counter.step
print(saved, "|", outcome, "| load(step=4):", *earlier)
assert saved == ["step-2", "step-4", "step-6"]
assert outcome == "CheckpointException, Missing key: True", outcome
assert earlier == (True, 4)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir" 2>/dev/null
