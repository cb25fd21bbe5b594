#!/bin/sh
# ase 3.29.0 with numpy 2.4.6: a relaxation with FIRE or FIRE2 that continues from its restart file takes another path.
#
# With `restart="file"` each optimizer of ASE writes its state after every step, and a new optimizer reads it. FIRE mixes the velocities with the forces
# by a factor `a`, and raises its time step after some steps downhill. The file lacks `a` and the number of steps downhill. It has the time step, but the
# constructor replaces it by the default right after it reads the file. So only the velocities continue, the next positions differ, and a job that is
# stopped every few steps never raises its time step. BFGS and LBFGS continue up to rounding errors. There is no error or warning. Save `dt`, `a` and
# `Nsteps` yourself, and set them on the new optimizer.
#
# Guess: a relaxation that continues from its restart file takes the same path as one without a stop.
# Seen, 2026-11-30: copper with EMT, to a force of 0.001. FIRE takes 82 steps without a stop, 62 steps in jobs of 20 steps, and 48 in jobs of 5. FIRE2
# takes 49, 41 and 41. BFGS and LBFGS take 27 in all ways. With the three attributes set, FIRE takes 82, and FIRE2 49.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'ase==3.29.0' 'numpy==2.4.6' 'scipy==1.17.1'
cat > "$dir/try.py" <<'PY'
import os
import sys

import ase
import numpy as np
from ase.build import bulk
from ase.calculators.emt import EMT
from ase.optimize import BFGS, FIRE, FIRE2, LBFGS

path = f"{sys.argv[1]}/restart.json"


def copper(positions=None):
    atoms = bulk("Cu", cubic=True) * (2, 2, 2)
    atoms.rattle(0.1, seed=3)
    atoms.calc = EMT()
    if positions is not None:
        atoms.positions[:] = positions
    return atoms


def steps(kind, per_job, attributes=()):
    """Number of steps to a force of 0.001, in jobs of `per_job` steps that continue from the restart file."""
    if os.path.exists(path):
        os.remove(path)
    atoms, total, kept = copper(), 0, {}
    while True:
        optimizer = kind(atoms, logfile=None, restart=path)
        for name, number in kept.items():
            setattr(optimizer, name, number)
        converged = optimizer.run(fmax=0.001, steps=per_job)
        total += optimizer.nsteps
        if converged or total > 500:
            return total
        kept = {name: getattr(optimizer, name) for name in attributes}
        atoms = copper(atoms.positions)


print("ase", ase.__version__, "numpy", np.__version__)
for kind in (BFGS, LBFGS, FIRE, FIRE2):
    found = [steps(kind, per_job) for per_job in (500, 20, 5)]
    print(kind.__name__, "steps without a stop, in jobs of 20, in jobs of 5:", *found)
    if kind in (BFGS, LBFGS):
        assert found[0] == found[1] == found[2]
    else:
        assert found[0] != found[1] and found[0] != found[2]
        repaired = [steps(kind, per_job, ("dt", "a", "Nsteps")) for per_job in (20, 5)]
        print(kind.__name__, "with dt, a and Nsteps set:", *repaired)
        assert repaired == [found[0], found[0]]
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
