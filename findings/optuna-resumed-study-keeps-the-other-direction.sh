#!/bin/sh
# optuna 5.0.0: `create_study(direction="maximize", load_if_exists=True)` minimises if the study in the storage does.
#
# With `load_if_exists=True` an existing study is returned with its own direction, and the argument is ignored. There is no warning. The only log
# message says that an existing study is used. So a search for the best accuracy that began with the default direction, and is resumed with
# the right one, continues to search for the worst trial, and `best_trial` returns it. Compare `study.direction` after the call.
#
# Guess: another direction raises an error, or is used.
# Seen, 2026-11-29: 20 trials with "minimize", resumed with "maximize": the direction is MINIMIZE, the best value is the lowest of all trials,
# and the trials of the sampler after the resume approach the minimum. A file of `JournalStorage` does the same.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'optuna==5.0.0'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import optuna
from optuna.storages import JournalStorage, RDBStorage
from optuna.storages.journal import JournalFileBackend

warnings.simplefilter("error")
optuna.logging.set_verbosity(optuna.logging.WARNING)


def accuracy(trial):
    return trial.suggest_float("rate", 0, 1)


def study(storage, direction):
    sampler = optuna.samplers.TPESampler(seed=0)
    return optuna.create_study(storage=storage, study_name="run", sampler=sampler, direction=direction, load_if_exists=True)


print("optuna", optuna.__version__)
for storage in (RDBStorage(f"sqlite:///{sys.argv[1]}/studies"), JournalStorage(JournalFileBackend(sys.argv[1] + "/journal"))):
    study(storage, "minimize").optimize(accuracy, n_trials=20)
    resumed = study(storage, "maximize")
    resumed.optimize(accuracy, n_trials=20)
    values = [trial.value for trial in resumed.trials]
    later = sum(values[20:]) / 20
    print(type(storage).__name__, resumed.direction.name, "best", resumed.best_value, "of", min(values), "to", max(values), "mean later", later)
    assert resumed.direction.name == "MINIMIZE"
    assert resumed.best_value == min(values) < 0.1 < 0.9 < max(values)
    assert later < 0.3
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
