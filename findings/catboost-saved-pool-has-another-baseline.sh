#!/bin/sh
# catboost 1.2.10 with numpy 2.4.6: a saved quantized pool has another baseline, and neither its pairs nor its timestamps.
#
# `Pool.quantize` and `Pool.save` write a prepared dataset once for many trainings, and `Pool("quantized://...")` reads it. `baseline` has the predictions
# of another model, which the training continues from. It is written as float32 and read as float64: each number read is made of two numbers, and the
# last half of the rows has zeros or unrelated numbers. A baseline of ones is read as 0.0078. `pairs` for ranking and `timestamp`, the order for
# `has_time=True`, are left out of the file. Labels, weights, group ids, group weights and categorical features are right. The documentation
# of `save` names no restriction. Nothing is raised or logged. The training with the loaded pool returns another model. Set the baseline and the
# pairs again with `set_baseline` and `set_pairs`, and sort the rows by time before.
#
# Guess: the loaded pool equals the saved one, or `save` refuses what the format lacks.
# Seen, 2026-12-01: a baseline of 0, 1, 2, ... is read as 0.0078, 32.0, 2048.0005, 32768.008. Models differ by 0.5 and more, and the model of the pool
# with timestamps equals the one without. `num_pairs` is 0 instead of 2. With `set_baseline`, the models are equal.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'catboost==1.2.10' 'numpy==2.4.6'
cat > "$dir/try.py" <<'PY'
import sys
import warnings

import catboost
import numpy as np
from catboost import CatBoostClassifier, Pool

warnings.simplefilter("error")
print("catboost", catboost.__version__, "numpy", np.__version__)
random = np.random.default_rng(0)
x = random.normal(size=(200, 4)).astype(np.float32)
y = (x[:, 0] > 0).astype(int)


def saved_and_loaded(**options):
    pool = Pool(x, y, **options)
    pool.quantize()
    pool.save(sys.argv[1] + "/pool")
    return pool, Pool("quantized://" + sys.argv[1] + "/pool")


def difference(first, second, **options):
    """The largest difference of the predictions of two models."""
    models = [CatBoostClassifier(iterations=20, verbose=0, thread_count=1, random_seed=0, **options).fit(pool) for pool in (first, second)]
    predictions = [model.predict(x, prediction_type="RawFormulaVal") for model in models]
    return np.abs(predictions[0] - predictions[1]).max()


pool, loaded = saved_and_loaded(weight=random.random(200))
assert np.array_equal(pool.get_weight(), loaded.get_weight()) and difference(pool, loaded) == 0

for name, baseline in {"ones": np.ones(200), "range": np.arange(200.0), "normal": random.normal(size=200)}.items():
    pool, loaded = saved_and_loaded(baseline=baseline)
    found = loaded.get_baseline()[:, 0]
    halves = np.frombuffer(baseline.astype(np.float32).tobytes(), np.float64)
    error = difference(pool, loaded)
    print(f"baseline {baseline[:4].round(4).tolist()} is read as {found[:4].round(8).tolist()}, models differ by {error:.2g}")
    assert np.allclose(pool.get_baseline()[:, 0], baseline) and np.allclose(found[:100], halves, rtol=1e-6, atol=1e-30)
    assert not np.allclose(found[:100], baseline[:100]) and error > 0.05
    loaded.set_baseline(baseline.reshape(-1, 1))
    assert difference(pool, loaded) == 0

pool, loaded = saved_and_loaded(group_id=np.repeat(np.arange(20), 10), pairs=[(0, 1), (10, 12)])
print(f"pairs: {pool.num_pairs()}, loaded {loaded.num_pairs()}")
assert (pool.num_pairs(), loaded.num_pairs()) == (2, 0)

options = {"has_time": True, "boosting_type": "Ordered", "learning_rate": 0.3}
pool, loaded = saved_and_loaded(timestamp=np.arange(200)[::-1].copy())
without, _ = saved_and_loaded()
print(f"timestamps: the model of the loaded pool differs by {difference(pool, loaded, **options):.2g}, from one without timestamps by "
      f"{difference(without, loaded, **options):.2g}")
assert difference(pool, loaded, **options) > 0.1 and difference(without, loaded, **options) == 0
PY
cd "$dir"
"$dir/venv/bin/python" "$dir/try.py" "$dir"
