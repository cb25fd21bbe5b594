#!/bin/sh
# peft 0.21.2 with torch 2.13.0: AdaLoRA does not save the importance of its ranks, so a resumed run keeps other ranks, or ends in AttributeError.
#
# AdaLoRA begins with many ranks and removes the least important ones. The averaged importances are in a Python object, and no state dict contains
# them. After a resume they begin at zero, and other ranks are removed. After the last removal, `update_and_allocate` needs the pattern of the
# remaining ranks from the configuration of the running process. With `load_state_dict` on a new model it is None, and the next step raises
# AttributeError. An adapter that `save_pretrained` writes during the removal is also different. Between two removals the removed ranks are
# trained again. The saved file omits them, so the loaded adapter gives other outputs. To resume exactly, also save the dicts `ipt`, `exp_avg_ipt` and
# `exp_avg_unc` of `base_model.rankallocator`, and `peft_config["default"].rank_pattern`. Publish an adapter only after the last removal.
#
# Guess: the state dict and a saved adapter are complete.
# Seen, 2026-11-30: saved after step 50, the adapter gives outputs that differ by 0.2, and the resumed run keeps ranks 4 and 2 with other
# weights. Saved after step 30, it keeps 3 and 3 ranks. Saved after step 85: AttributeError. With these objects it continues exactly.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'peft==0.21.2'
cat > "$dir/try.py" <<'PY'
import copy
import sys

import peft
import torch

torch.set_num_threads(1)
torch.manual_seed(3)
inputs, targets = torch.randn(64, 32), torch.randn(64, 32)


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)
        self.config = {"model_type": "custom"}

    def forward(self, rows):
        return self.b(torch.tanh(self.a(rows)))


def base():
    torch.manual_seed(0)
    return Net()


def build():
    config = peft.AdaLoraConfig(target_modules=["a", "b"], total_step=100, tinit=10, tfinal=20, deltaT=5, target_r=3, init_r=8)
    model = peft.get_peft_model(base(), config)
    return model, torch.optim.AdamW([weight for weight in model.parameters() if weight.requires_grad], lr=0.01)


def outputs(model):
    with torch.no_grad():
        return model.eval()(inputs)


def train(model, optimizer, steps):
    model.train()
    for step in steps:
        optimizer.zero_grad()
        (model(inputs) - targets).square().mean().backward()
        optimizer.step()
        model.base_model.update_and_allocate(step)
    return outputs(model)


def ranks(model):
    return [sum(kept) for kept in model.peft_config["default"].rank_pattern.values()]


def after_a_resume(step, *, keep_objects):
    torch.manual_seed(1)
    model, optimizer = build()
    train(model, optimizer, range(step))
    states = copy.deepcopy((model.state_dict(), optimizer.state_dict()))
    pattern = copy.deepcopy(model.peft_config["default"].rank_pattern)
    old = model.base_model.rankallocator
    scores = {name: copy.deepcopy(getattr(old, name)) for name in ("ipt", "exp_avg_ipt", "exp_avg_unc")}
    model, optimizer = build()
    model.load_state_dict(states[0])
    optimizer.load_state_dict(states[1])
    if keep_objects:
        vars(model.base_model.rankallocator).update(scores)
        model.peft_config["default"].rank_pattern = pattern
    return train(model, optimizer, range(step, 100)), ranks(model)


print("peft", peft.__version__, "torch", torch.__version__)
torch.manual_seed(1)
model, optimizer = build()
expected = train(model, optimizer, range(100))
print("ranks without a stop:", ranks(model))
for step in (30, 50):
    found, kept = after_a_resume(step, keep_objects=False)
    print("resumed after", step, "ranks:", kept, "largest difference:", (found - expected).abs().max().item())
    assert not torch.allclose(found, expected, atol=0.1)
for step in (30, 50, 85):
    assert torch.equal(after_a_resume(step, keep_objects=True)[0], expected)
print("with the dicts and the pattern: equal")
try:
    after_a_resume(85, keep_objects=False)
except AttributeError as error:
    print("resumed after 85:", error)
else:
    raise SystemExit("a resume after the last removal succeeds")

for step, differs in ((50, True), (100, False)):
    torch.manual_seed(1)
    model, optimizer = build()
    saved = train(model, optimizer, range(step))
    model.save_pretrained(f"{sys.argv[1]}/{step}")
    difference = (outputs(peft.PeftModel.from_pretrained(base(), f"{sys.argv[1]}/{step}")) - saved).abs().max().item()
    print("adapter of step", step, "largest difference after save_pretrained:", difference)
    assert (difference > 0.05) == differs
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
