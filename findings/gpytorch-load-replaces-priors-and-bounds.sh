#!/bin/sh
# gpytorch 1.15.2 with torch 2.13.0: `load_state_dict` replaces the priors and the bounds of the code by those of the checkpoint.
#
# The settings of most priors and the bounds of constraints are buffers, so a state dict contains them. A run that is resumed with another
# prior or another bound uses the old one, without a warning. `UniformPrior` has no buffers and keeps the setting of the code. Set priors and
# bounds after the load.
#
# Guess: a load restores parameters, and the prior and the bounds are those that the code gives, as for other hyperparameters.
# Seen, 2026-11-29: a LogNormalPrior of scale 3 has scale 1 after the load, a lower bound of 0.5 is 0.0001, a GammaPrior(3, 4) gives the
# densities of GammaPrior(1, 2). A UniformPrior of 3 to 4 keeps its interval.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'gpytorch==1.15.2'
cat > "$dir/try.py" <<'PY'
import gpytorch
import torch
from gpytorch.constraints import GreaterThan
from gpytorch.kernels import RBFKernel
from gpytorch.priors import GammaPrior, LogNormalPrior, NormalPrior, UniformPrior


def kernel(scale, bound):
    return RBFKernel(lengthscale_prior=LogNormalPrior(0.0, scale), lengthscale_constraint=GreaterThan(bound))


def settings(module):
    return round(module.lengthscale_prior.scale.item(), 6), round(module.raw_lengthscale_constraint.lower_bound.item(), 6)


print("gpytorch", gpytorch.__version__)
saved, resumed = kernel(1.0, 1e-4), kernel(3.0, 0.5)
saved.lengthscale = 0.3
before = settings(resumed)
print(resumed.load_state_dict(saved.state_dict()), list(saved.state_dict()))
print("prior scale and bound of the code:", before, "after the load:", settings(resumed), "lengthscale", resumed.lengthscale.item())
assert before == (3.0, 0.5)
assert settings(resumed) == (1.0, 0.0001)
assert abs(resumed.lengthscale.item() - 0.3) < 1e-6

for kind in (GammaPrior, NormalPrior):
    old, new, fresh = kind(1.0, 2.0), kind(3.0, 4.0), kind(3.0, 4.0)
    new.load_state_dict(old.state_dict())
    densities = [prior.log_prob(torch.tensor(1.5)).item() for prior in (old, new, fresh)]
    print(kind.__name__, "old, loaded, of the code:", densities)
    assert densities[0] == densities[1] != densities[2]
old, new = UniformPrior(1.0, 2.0), UniformPrior(3.0, 4.0)
print("UniformPrior", new.load_state_dict(old.state_dict()), new.low.item(), new.high.item())
assert (new.low.item(), new.high.item()) == (3.0, 4.0)
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
