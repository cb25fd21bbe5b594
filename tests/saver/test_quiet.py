"""With background saves the trainer does not touch the filesystem of the store after the start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ckstore import Store
from tests.saver.conftest import DEADLINE_S
from tests.support.requirements import require_program

ROOT = Path(__file__).resolve().parents[2]
TRAINER = """
import os, sys
import numpy as np
from ckstore import Store

store = Store(sys.argv[1])
state = {"w": np.zeros(300_000, np.float32)}
store.save_async(state, step=0).result(120)  # imports what is needed
os.access("/begins-here", os.F_OK)
for step in range(1, 4):
    state["w"][0] = step
    pending = store.save_async(state, tags=["last"], max_in_flight=2)
    pending.wait_staged(120)
pending.result(120)
store.background.wait(120)
store.background.flush(120)
store.close()
os.access("/ends-here", os.F_OK)
"""


def test_no_call_of_the_trainer_names_the_store_or_holds_it_open(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "a-store-of-its-own")
    log = tmp_path / "log"
    command = [
        str(require_program("strace")),
        "-ff",
        "-y",
        "-s",
        "300",
        "-e",
        "trace=file,desc,process,network",
        "-o",
        str(log),
    ]

    subprocess.run([*command, sys.executable, "-c", TRAINER, store.path], cwd=ROOT, check=True, timeout=DEADLINE_S * 2)

    # Threads of the saver end up in files of their own: those that loaded its program, or were begun by one that did.
    logs = {path.suffix[1:]: path.read_text(encoding="utf-8", errors="replace") for path in tmp_path.glob("log.*")}
    savers = {pid for pid, text in logs.items() if "ckstore.saver.server.main" in text.partition("\n")[0]}
    savers |= {pid for pid, text in logs.items() if re.search(r"execve\(.*ckstore\.saver\.server\.main", text)}
    assert len(savers) == 1
    while (
        more := {new for pid in savers for new in re.findall(r"clone3?\(.*= (\d+)$", logs[pid], re.MULTILINE)} - savers
    ):
        savers |= more
    main = next(text for text in logs.values() if '"/ends-here", F_OK' in text)
    after = main.partition('"/begins-here", F_OK')[2].partition('"/ends-here", F_OK')[0]
    others = [text for pid, text in logs.items() if pid not in savers and text is not main]

    assert after.count("sendmsg(") >= 3
    for text in (after, *others):
        assert re.findall(rf'.*[<"][^<">\n]*{store.path.name}.*', text) == []
    assert [info.step for info in store.checkpoints()] == [0, 1, 2, 3]
