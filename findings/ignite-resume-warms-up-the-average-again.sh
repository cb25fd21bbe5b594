#!/bin/sh
# pytorch-ignite 0.5.5 with torch 2.13.0: after each resume, `EMAHandler` warms up again and replaces the average by the current weights.
#
# With `momentum_warmup` and `warmup_iters`, the average follows the model closely at first. The handler counts its own calls, not the
# iterations of the trainer, and it has no `state_dict`. A resume as its documentation describes it (load the model, `ema_model` and the
# trainer, then `attach`) continues at the right iteration and begins the warmup again. The average of the run before the resume is lost in
# a few steps, without a warning. Also save `handler.momentum_scheduler.event_index`, and set it after `attach`.
#
# Guess: the momentum depends on the iteration of the trainer, which is restored.
# Seen, 2026-11-30: momentum 0.01 from iteration 10 on. Saved at iteration 200 and resumed, it is 0.9 at 201. The weight grows by 1 per
# step, and the average is 85 behind it. After the resume it is 9 behind at 201, 2 at 202. With the saved count both runs agree.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'pytorch-ignite==0.5.5'
cat > "$dir/try.py" <<'PY'
import io
import warnings

import ignite
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, EMAHandler

warnings.simplefilter("error")
torch.set_num_threads(1)
batches = list(range(100))


class Run:
    def __init__(self, checkpoint=None, with_count=False):
        self.model = torch.nn.Linear(1, 1, bias=False)
        torch.nn.init.zeros_(self.model.weight)
        self.handler = EMAHandler(self.model, momentum=0.01, momentum_warmup=0.9, warmup_iters=10)
        self.trainer = Engine(self.step)
        self.parts = {"model": self.model, "ema_model": self.handler.ema_model, "trainer": self.trainer}
        if checkpoint:
            Checkpoint.load_objects(self.parts, checkpoint)
        self.handler.attach(self.trainer)
        if with_count:
            self.handler.momentum_scheduler.event_index = checkpoint["count"]
        self.seen = {}
        self.trainer.add_event_handler(Events.ITERATION_COMPLETED, self.look)

    def step(self, engine, batch):
        with torch.no_grad():
            self.model.weight += 1

    def look(self, engine):
        behind = self.model.weight.item() - self.handler.ema_model.weight.item()
        self.seen[engine.state.iteration] = round(engine.state.ema_momentum, 4), round(behind, 2)

    def checkpoint(self):
        file = io.BytesIO()
        states = {name: part.state_dict() for name, part in self.parts.items()}
        torch.save({**states, "count": self.handler.momentum_scheduler.event_index}, file)
        file.seek(0)
        return torch.load(file)


print("ignite", ignite.__version__, "torch", torch.__version__)
whole = Run()
whole.trainer.run(batches, max_epochs=2)
checkpoint = whole.checkpoint()
whole.trainer.run(batches, max_epochs=3)
resumed = Run(checkpoint)
resumed.trainer.run(batches, max_epochs=3)
right = Run(checkpoint, with_count=True)
right.trainer.run(batches, max_epochs=3)
for name, run in (("not resumed", whole), ("resumed", resumed), ("with the count", right)):
    print(name, "momentum and distance behind the weight:", {at: run.seen[at] for at in (201, 202, 210, 300)})
assert whole.seen[10][0] == whole.seen[201][0] == 0.01
assert resumed.seen[201][0] == 0.9
assert resumed.seen[201][1] < 20 < 60 < whole.seen[201][1]
assert resumed.seen[202][1] < 5
assert abs(resumed.seen[300][1] - whole.seen[300][1]) > 10
assert all(right.seen[at] == whole.seen[at] for at in range(201, 301))
PY
"$dir/venv/bin/python" "$dir/try.py"
