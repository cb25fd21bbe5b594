#!/bin/sh
# pyod 3.6.7 with torch 2.13.0: five fitted detectors never flag a row that is passed alone, however far it is from the training data.
#
# `decision_function` of DIF, ROD, LMDD, SOS and CD does not use only what was fitted: it compares the rows of the call with each other. DIF scales
# the representations by the mean and deviation of the call. So the score of a row depends on the other rows, and a single row has the same score, 0
# or NaN whatever its values are. `predict` is then always 0, also from NaN. A test with a batch finds the outliers, and a service that scores one
# record at a time reports none, without an error. ECOD and COPOD add the rows of the call to the training data, so their scores also depend on the
# batch. Scores of IForest, KNN, HBOS, PCA and GMM do not.
#
# Guess: after `fit`, the score of a row depends on the training data and the row.
# Seen, 2026-11-30: 48 normal rows and two outliers, 9 and 30 deviations away. In one batch, DIF and ROD flag both, and LMDD, SOS and CD the farther
# one. Alone, every row has the score 0.208 (DIF), 0.663 (ROD), 0 (LMDD) or NaN (SOS and CD), and none is flagged. IForest, KNN, HBOS, PCA and GMM
# flag both either way.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' 'numpy==2.4.6'
"$dir/venv/bin/pip" -q install 'pyod==3.6.7' 'scikit-learn==1.9.1' 'scipy==1.17.1' 'pandas==3.1.1'
cat > "$dir/try.py" <<'PY'
from importlib.metadata import version

import numpy as np
import torch
from pyod.models.cd import CD
from pyod.models.dif import DIF
from pyod.models.gmm import GMM
from pyod.models.hbos import HBOS
from pyod.models.iforest import IForest
from pyod.models.knn import KNN
from pyod.models.lmdd import LMDD
from pyod.models.pca import PCA
from pyod.models.rod import ROD
from pyod.models.sos import SOS

torch.set_num_threads(1)
random = np.random.default_rng(0)
training, rows = random.normal(size=(300, 4)), random.normal(size=(50, 4))
rows[7], rows[8] = [9, 9, -9, 9], [30, 30, 30, 30]
print("pyod", version("pyod"), "torch", torch.__version__, "numpy", np.__version__)
detectors = (DIF(random_state=1), ROD(), LMDD(random_state=1), SOS(), CD(), IForest(random_state=1), KNN(), HBOS(), PCA(), GMM(random_state=1))
for detector in detectors:
    name = type(detector).__name__
    detector.fit(training)
    batch = detector.predict(rows)[[7, 8]].tolist()
    alone = [detector.predict(rows[[row]]).item() for row in range(50)]
    scores = np.array([detector.decision_function(rows[[row]]).item() for row in range(50)])
    print(f"{name}: outliers flagged in a batch {batch}, alone {alone[7:9]}, scores of single rows {scores.min():.3f} to {scores.max():.3f}")
    if name in ("DIF", "ROD", "LMDD", "SOS", "CD"):
        assert batch[1] == 1 and sum(alone) == 0 and (np.isnan(scores).all() or np.ptp(scores) < 1e-6)
        assert batch[0] == (name in ("DIF", "ROD"))
    else:
        assert batch == [1, 1] == alone[7:9] and np.ptp(scores) > 0.1
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py"
