#!/bin/sh
# Tries ckstore on a machine with a GPU and without a network: see `tests/gpu/run.py`, whose arguments it takes.
# PYTHON names the Python that has torch.
set -eu
cd "$(dirname "$0")/../.."
exec "${PYTHON:-python3}" -m tests.gpu.run "$@"
