"""The part of the demo that rotates: a pinned best, a reader of the oldest, and gc that names it."""

from __future__ import annotations

from pathlib import Path

from ckstore import Store
from ckstore_cli._errors import HELD
from ckstore_cli.demo.programs import ckstore_command, reader
from ckstore_cli.demo.telling import DemoFailed, say, steps_text

KEPT = 3


def rotate(path: Path, run: str) -> None:
    """Pin the best of what would go, keep the last three, and let gc meet a reader of the oldest.

    Raises:
        DemoFailed: The pinned one is gone, or what the reader had was not freed after it.
    """
    with Store.open(path) as store:
        oldest, *others = store.checkpoints(run=run)[:-KEPT]
    best = min(others, key=lambda info: info.metrics["loss"])
    where = ["--store", str(path)]
    say(ckstore_command(["pin", best.name, "--reason", "best of the early ones", *where]))
    with reader(path, oldest.name) as pid:
        say(f"\nprocess {pid} has mapped {oldest.name}, the oldest, which is not kept:\n")
        say(ckstore_command(["gc", "--keep-last", str(KEPT), *where], status=HELD))
    say(f"\nprocess {pid} is done:\n")
    say(ckstore_command(["gc", *where]))
    with Store.open(path) as store:
        left = [info.step for info in store.checkpoints(run=run)]
        unused = store.plan_gc()
    if best.step not in left or len(left) != KEPT + 1 or unused.blobs or unused.held:
        raise DemoFailed(f"{best.name} and the last {KEPT} should be left and nothing else, left are {left}")
    say(f"\nleft of {run}: {steps_text(sorted(left))}")
