#!/bin/sh
# pytorch-ignite 0.5.5 with torch 2.13.0: `Checkpoint` deletes the old checkpoint before it writes the new one.
#
# By default one checkpoint is kept (`n_saved=1`), and `DiskSaver` writes a temporary file and renames it (`atomic=True`), so that a failed save
# leaves no broken file. But the handler removes the file of the previous checkpoint first. If the new save then fails, for example because the
# disk is full, or if the process is killed while it writes, no checkpoint is left at all. A better score removes the best checkpoint the same way.
# `n_saved=2` keeps one.
#
# Seen: a second save that cannot write all its bytes raises an error and leaves an empty folder, by step and by score. With n_saved=2 the
# first checkpoint remains.
set -eu
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/pip" -q install 'torch==2.13.0' numpy
"$dir/venv/bin/pip" -q install 'pytorch-ignite==0.5.5'
cat > "$dir/try.py" <<'PY'
import os
import resource
import signal
import sys

import ignite
import torch
from ignite.engine import Engine, Events
from ignite.handlers import Checkpoint, DiskSaver

torch.set_num_threads(1)
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)


def files_after_failure(folder, n_saved, by_score):
    model = torch.nn.Linear(100, 100)
    trainer = Engine(lambda engine, batch: None)
    checkpoint = Checkpoint(
        {"model": model, "trainer": trainer},
        DiskSaver(folder, create_dir=True),
        n_saved=n_saved,
        score_function=(lambda engine: float(engine.state.epoch)) if by_score else None,
        global_step_transform=lambda engine, event: engine.state.epoch,
    )
    trainer.add_event_handler(Events.EPOCH_COMPLETED, checkpoint)
    trainer.run([0], max_epochs=1)
    before = sorted(os.listdir(folder))
    # A limit on the size of files stands for a full disk.
    unlimited = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, unlimited[1]))
    try:
        trainer.run([0], max_epochs=2)
    except Exception as error:
        problem = error
    else:
        raise AssertionError("the second save did not fail")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, unlimited)
    return before, sorted(os.listdir(folder)), problem


print("pytorch-ignite", ignite.__version__, "torch", torch.__version__)
for number, (n_saved, by_score) in enumerate(((1, False), (1, True), (2, False))):
    before, after, problem = files_after_failure(f"{sys.argv[1]}/{number}", n_saved, by_score)
    print(f"n_saved={n_saved}, by score {by_score}: {before}, after a failed save {after} ({type(problem).__name__}: {str(problem)[:60]})")
    assert len(before) == 1 and after == (before if n_saved == 2 else [])
PY
"$dir/venv/bin/python" -W ignore "$dir/try.py" "$dir"
