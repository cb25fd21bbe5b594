"""The story of ``ckstore demo --ranks N``: train on N processes, stop, go on with half as many, export, compare."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

from ckstore import Store
from ckstore_cli.demo.programs import DEADLINE_S, ckstore_command, stopped
from ckstore_cli.demo.proof import digest, digests
from ckstore_cli.demo.shards import CHUNK_BYTES, RUN, whole
from ckstore_cli.demo.telling import DemoFailed, say, say_heading, say_rows

_DIGITS_SHOWN = 32


@dataclass(frozen=True, slots=True)
class Scale:
    """How large everything is; steps are those of the first half, after which it is stopped."""

    steps: int
    save_every: int
    layers: int


FULL = Scale(steps=8, save_every=4, layers=4)
QUICK = Scale(steps=2, save_every=2, layers=1)


def tell(place: Path, ranks: int, scale: Scale) -> None:
    """Tell everything.

    Raises:
        DemoFailed: It did not come out as it should.
    """
    store, fewer = place / "store", max(1, ranks // 2)
    Store.init(store, chunk_bytes=CHUNK_BYTES).close()
    say_heading(f"1. FSDP2 on {_ranks(ranks)}: train {scale.steps} steps, save from all, stop")
    before = train(place, ranks, scale.steps, scale)
    say_heading(f"2. Go on on {_ranks(fewer)}: the same program")
    after = train(place, fewer, 2 * scale.steps, scale)
    say_heading("3. The log")
    say(ckstore_command(["log", "--store", str(store)]))
    say_heading("4. Out: one process, no process group")
    name, exported = f"{RUN}@{2 * scale.steps}", place / "exported"
    say(ckstore_command(["export", name, str(exported), "--select", "model", "--strip-prefix", "--store", str(store)]))
    say_heading("5. Proof: is everything the same, bit for bit?")
    with Store.open(store, readonly=True) as opened:
        first, last = (digests(whole(opened.load(f"{RUN}@{step}"))) for step in (scale.steps, 2 * scale.steps))
    weights = {"model": digest(whole(load_file(exported / "model.safetensors")))}
    told = [
        (f"{_ranks(ranks)} after step {scale.steps}, and the store", before["trained"], first),
        (f"the same, and {_ranks(fewer)} that loaded it", before["trained"], after["loaded"]),
        (f"{_ranks(fewer)} after step {2 * scale.steps}, and the store", after["trained"], last),
        ("their weights, and safetensors", {"model": after["trained"]["model"]}, weights),
    ]
    say("SHA-256 of names, types, shapes and bits of weights and AdamW's state; ranks gather theirs by full_tensor()")
    say(f"(compared in full, the first {_DIGITS_SHOWN} digits of the weights shown):\n")
    rows = [(said, mine["model"], "equal" if mine == other else "DIFFERENT") for said, mine, other in told]
    say_rows([(said, digits[:_DIGITS_SHOWN], verdict) for said, digits, verdict in rows])
    if any(mine != other for _, mine, other in told):
        raise DemoFailed("what the ranks had should be what the store and the export give back, it is not")
    say(f"\nPROVEN: what {_ranks(ranks)} saved, {_ranks(fewer)} loaded and one process can export, bit for bit.")


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"


def train(place: Path, ranks: int, steps: int, scale: Scale) -> dict[str, Any]:
    """Train on so many processes up to a step; return what rank 0 wrote down.

    Raises:
        DemoFailed: A rank failed.
        TimeoutError: They took too long.
    """
    report, meeting = place / f"on-{ranks}-to-{steps}.json", place / f"meeting-{ranks}-{steps}"
    options = {
        "--store": place / "store",
        "--meeting": meeting,
        "--report": report,
        "--world-size": ranks,
        "--steps": steps,
        "--save-every": scale.save_every,
        "--layers": scale.layers,
    }
    arguments = [str(part) for option in options.items() for part in option]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    deadline_s = time.monotonic() + DEADLINE_S
    with ExitStack() as stack:
        running = [
            stack.enter_context(
                stopped(
                    subprocess.Popen(
                        [sys.executable, "-m", "ckstore_cli.demo.shards", "--rank", str(rank), *arguments],
                        stdin=subprocess.DEVNULL,
                        process_group=0,
                        env=environment,
                    )
                )
            )
            for rank in range(ranks)
        ]
        while None in (ended := [one.poll() for one in running]):
            _check_all_go_well(ended)  # the others may wait for one that failed, and for long
            if time.monotonic() > deadline_s:
                raise TimeoutError(f"{ranks} ranks should end within {DEADLINE_S:.0f} s")
            time.sleep(0.05)
        _check_all_go_well(ended)
    meeting.unlink(missing_ok=True)
    told: dict[str, Any] = json.loads(report.read_text(encoding="utf-8"))
    return told


def _check_all_go_well(ended: Sequence[int | None]) -> None:
    for rank, status in enumerate(ended):
        if status:
            raise DemoFailed(f"rank {rank} should exit with 0, it exited with {status}")
