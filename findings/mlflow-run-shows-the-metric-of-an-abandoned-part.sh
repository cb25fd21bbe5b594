#!/bin/sh
# mlflow 3.17.2: the metric of a run is the one with the largest step, also after the run went back, and of equal steps the largest value.
#
# `run.data.metrics` and the list of runs show one value for each metric. It is the value with the largest step, then the largest time in milliseconds,
# then the largest value. After a run goes back to an earlier checkpoint, and until it reaches its old step again, it shows a value of the
# abandoned part. `search_runs` filters and sorts by this value. A NaN of an abandoned step also remains. Without `step=`, all values have step 0. So if
# values are logged within one millisecond, the largest is shown, and not the last. Read `get_metric_history`, whose order is the one of the calls.
#
# Guess: it is the value that was logged last.
# Seen, 2026-11-30: after steps 0 to 9 with NaN in step 9, the run goes back and logs 0.1 for the steps 5 to 7. It shows NaN. Of 0.5 and 0.4,
# logged in this order at one time, it shows 0.5.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'mlflow==3.17.2'
cat > "$dir/try.py" <<'PY'
import logging
import math
import sys

import mlflow

logging.disable(logging.ERROR)
print("mlflow", mlflow.__version__)
mlflow.set_tracking_uri(f"sqlite:///{sys.argv[1]}/mlflow.db")
client = mlflow.MlflowClient()
experiment = client.create_experiment("e", artifact_location=sys.argv[1] + "/artifacts")


def shown(run, name):
    return client.get_run(run).data.metrics[name]


run = client.create_run(experiment).info.run_id
for step in range(10):
    value = math.nan if step == 9 else 1 - step / 20
    client.log_metric(run, "loss", value, step=step)
for step in (5, 6, 7):
    client.log_metric(run, "loss", 0.1, step=step)
history = [(metric.step, metric.value) for metric in client.get_metric_history(run, "loss")]
found = len(client.search_runs([experiment], "metrics.loss < 0.5"))
print("last calls:", history[-3:], "shown:", shown(run, "loss"), "runs with loss < 0.5:", found)
assert history[-3:] == [(5, 0.1), (6, 0.1), (7, 0.1)]
assert math.isnan(shown(run, "loss")) and found == 0

run = client.create_run(experiment).info.run_id
for value in (0.5, 0.4):
    client.log_metric(run, "loss", value, timestamp=1_000_000)
print("0.5, then 0.4 at the same time, shown:", shown(run, "loss"))
assert shown(run, "loss") == 0.5
PY
MLFLOW_DISABLE_TELEMETRY=true "$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
