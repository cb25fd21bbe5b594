"""What a process leaves open, and in cycles of references, is closed at its end without a word.

With Python's own collector, which the other processes of the tests do not have: see `tests/support/start`.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from ckstore import Store

START = Path(__file__).parents[1] / "support" / "start"
LEAVES = """
import gc, sys
import numpy as np
from ckstore import Store

class Trainer:
    def __init__(self, path):
        self.me = self
        self.store = Store.init(path)
        self.store.save({"w": np.zeros(1000)}, step=1)
        self.opened = self.store.open_checkpoint(1)
        self.new = self.store.follow(timeout_s=0)
        next(iter(self.new))
        self.late = self.store.save_async({"w": np.ones(1000)}, step=2)
        self.late.result(120)

gc.disable()
print(gc.get_threshold()[0])
Trainer(sys.argv[1])
trainer = Trainer(sys.argv[2])
"""


def test_what_is_left_open_in_cycles_is_closed_at_the_end_without_a_word(tmp_path: Path) -> None:
    paths = os.environ["PYTHONPATH"].split(os.pathsep)
    plain = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if Path(path) != START)}
    words = [sys.executable, "-c", LEAVES, str(tmp_path / "one"), str(tmp_path / "two")]
    done = subprocess.run(words, capture_output=True, text=True, timeout=280, check=False, env=plain)

    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout != "50000\n"
    for name in ("one", "two"):
        with Store.open(tmp_path / name) as store:
            assert [info.step for info in store.checkpoints()] == [1, 2]
            assert store.verify().ok
