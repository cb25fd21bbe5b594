#!/bin/sh
# vowpalwabbit 9.11.9: a model that is loaded continues with the learning rate and steps of the file, but with squared loss and without regularization.
#
# The file of a model holds weights, the state of the optimizer, and the options that it marks as kept. Learning rate, `power_t`, `--ftrl`, `--coin`
# and interactions are kept. `--loss_function`, `--quantile_tau`, `--l1`, `--l2` and `--decay_learning_rate` are not. So `-i model` alone mostly
# predicts as before, and further examples are learned with another loss. A model of quantiles becomes one of means. There is no warning. Give these
# options again at each load, as below; then the run is equal to one without a stop.
#
# Guess: a file that keeps the learning rate also keeps the loss and the regularization.
# Seen, 2026-11-30: the 90th percentile of exponential numbers, which is 2.3. At the load both models predict the same. After 2,000 more examples the
# loaded one predicts about 1, their mean. With --l2 and --l1 the predictions also differ, with --l1 at once. With the options given again all are
# equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'vowpalwabbit==9.11.9'
cat > "$dir/try.py" <<'PY'
import random
import sys
from importlib.metadata import version

from vowpalwabbit import Workspace

random.seed(0)
targets = [random.expovariate(1) for _ in range(3000)]
inputs = [[random.gauss(0, 1) for _ in range(3)] for _ in targets]
examples = [f"{target} | " + " ".join(f"f{column}:{value}" for column, value in enumerate(row)) for target, row in zip(targets, inputs, strict=True)]
CHECKS = ["| f0:0", "| f0:1 f1:1", "| f2:-1"]


def predictions(workspace):
    return [workspace.predict(check) for check in CHECKS]


def learn(workspace, part):
    for example in part:
        workspace.learn(example)
    return predictions(workspace)


def continued(options):
    """Predictions at the end: without a stop, loaded without the options, and loaded with them."""
    file = f"{sys.argv[1]}/model"
    whole = Workspace(f"--quiet {options}")
    at_save = learn(whole, examples[:1000])
    whole.save(file)
    found = [learn(whole, examples[1000:])]
    for repeated in ("", options):
        loaded = Workspace(f"--quiet -i {file} {repeated}")
        assert (predictions(loaded) == at_save) == (repeated == options or "--l1" not in options)
        found.append(learn(loaded, examples[1000:]))
        loaded.finish()
    whole.finish()
    print(f"{options}: without a stop {found[0][0]:.3f}, loaded {found[1][0]:.3f}, loaded with the options {found[2][0]:.3f}")
    return found


print("vowpalwabbit", version("vowpalwabbit"))
for options in ("--learning_rate 0.05", "--power_t 0.2", "--ftrl", "--coin"):
    whole, loaded, repeated = continued(options)
    assert whole == loaded == repeated
for options in ("--l2 0.001", "--l1 0.001", "--loss_function quantile --quantile_tau 0.9"):
    whole, loaded, repeated = continued(options)
    assert whole == repeated != loaded
assert whole[0] > 1.7 and loaded[0] < 1.4
PY
"$dir/venv/bin/python" "$dir/try.py" "$dir"
