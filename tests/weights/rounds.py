"""Killed trainers and publishers, and two engines that pull: ``python -m tests.weights.rounds FOLDER ROUNDS SEED``.

Weights have their own sum in them, so an engine can tell by itself whether it serves what a trainer saved. It prints
one line of JSON: the rounds, the kills, the pulls, and what went wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import xxhash

from ckstore import RetentionPolicy, Store
from tests.weights.weight_engine import WeightEngine, newest_version

_RUN = "policy"
_ROUND_S = 0.4
_SIZE = 20_000


def signed(weights: dict[str, torch.Tensor], step: int) -> dict[str, torch.Tensor]:
    """Return the weights with the step and their sum."""
    weights = {name: weights[name] for name in ("a.weight", "b.weight")} | {"step.weight": torch.tensor([step])}
    return weights | {"sum.weight": torch.frombuffer(bytearray(_sum_of(weights)), dtype=torch.uint8)}


def step_of(weights: dict[str, torch.Tensor]) -> int:
    """Return the step of weights whose sum is right; -1 if it is wrong."""
    # A version may have them in float32, which keeps each value.
    weights = {name: value.bfloat16() if value.is_floating_point() else value for name, value in weights.items()}
    rest = {name: value for name, value in weights.items() if name != "sum.weight"}
    return int(rest["step.weight"]) if bytes(weights["sum.weight"].tolist()) == _sum_of(rest) else -1


def _sum_of(weights: dict[str, torch.Tensor]) -> bytes:
    digest = xxhash.xxh3_64()
    for name in sorted(weights):
        digest.update(weights[name].contiguous().view(torch.uint8).numpy().tobytes())
    return digest.digest()


def train(path: Path, seed: int) -> None:
    """Continue the run, or go back some steps first, and save until killed."""
    draw = random.Random(seed)
    generator = torch.Generator().manual_seed(seed)
    with Store.open(path) as store:
        known = store.checkpoints(_RUN)
        start = draw.choice(known[-2:]) if known else None
        if start is None:
            step, weights = 0, {name: torch.zeros(_SIZE, dtype=torch.bfloat16) for name in ("a.weight", "b.weight")}
        else:
            step, weights = start.step, store.load(start)["model"]
        while True:
            step += 1
            for name in ("a.weight", "b.weight")[: draw.randint(0, 2)]:
                count = _SIZE if draw.random() < 0.1 else 50
                weights[name][torch.randint(_SIZE, (count,), generator=generator)] += 1
            store.save({"model": signed(weights, step)}, step, _RUN, if_exists="replace")
            time.sleep(draw.random() * 0.05)


def publish(path: Path, out: Path, base: Path, *, timeout_s: float | None, form: Any, dtype: Any) -> None:
    """Publish until killed, or what there is."""
    options: dict[str, Any] = {"select": "model", "add": [base], "full_every": 5, "keep_full": 1, "difference": form}
    options["dtype"] = dtype
    with Store.open(path) as store, store.publish(_RUN, out, **options, poll_s=0.01, timeout_s=timeout_s) as publisher:
        for _ in publisher:
            pass


def pull(engine: WeightEngine, out: Path) -> str:
    """Pull the newest version; return what is wrong, if anything."""
    version = newest_version(out)
    if version <= (engine.version or 0):
        return ""
    try:
        about = json.loads((out / f"weight_v{version:06d}" / "ckstore-version.json").read_text())
        engine.pull(out, version)
    except FileNotFoundError:
        return ""  # removed by the publisher meanwhile: the engine still serves what it has loaded
    step = step_of(engine.weights())
    return "" if step == about["step"] else f"version {version} is step {about['step']}, the engine has {step}"


def _child(work: Callable[[], None], said: Path) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        work()
    except BaseException:
        with said.open("a") as file:
            file.write(traceback.format_exc())
    finally:
        os._exit(1)


def _kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def main(folder: Path, rounds: int, seed: int) -> None:
    """Run the rounds."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    draw = random.Random(seed)
    path, out, base, said = (folder / name for name in ("store", "out", "base", "said"))
    base.mkdir()
    (base / "config.json").write_text("{}")
    with Store.init(path) as store:
        store.config.retention = RetentionPolicy(keep_last=3)
        # On a very busy machine, every trainer may be killed before its first save.
        zeros = {name: torch.zeros(_SIZE, dtype=torch.bfloat16) for name in ("a.weight", "b.weight")}
        store.save({"model": signed(zeros, 0)}, 0, _RUN)
    # Once here, so that all modules are imported before the forks.
    with Store.init(folder / "warm") as warm:
        warm.save({"model": signed({"a.weight": torch.ones(2), "b.weight": torch.ones(2)}, 1)}, 1, _RUN)
        warm.load(warm.checkpoints(_RUN)[-1])
    publish(folder / "warm", folder / "warm-out", base, timeout_s=0, form="xor", dtype="float32")
    engines = [WeightEngine(folder / f"engine{i}", base) for i in range(2)]
    wrong: list[str] = []
    kills = pulls = 0
    for number in range(rounds):
        form, dtype = draw.choice(["overwrite", "xor"]), draw.choice([None, "float32", "float32"])
        lives = [
            partial(train, path, draw.randrange(2**32)),
            partial(publish, path, out, base, timeout_s=None, form=form, dtype=dtype),
        ]
        alive = [_child(life, said) for life in lives]
        end_s = time.monotonic() + _ROUND_S * (0.5 + draw.random())
        deaths = sorted((time.monotonic() + draw.random() * _ROUND_S, pid) for pid in alive)
        try:
            while time.monotonic() < end_s or deaths:
                while deaths and time.monotonic() >= deaths[0][0]:
                    _kill(deaths.pop(0)[1])
                    kills += 1
                wrong += [text for text in [pull(draw.choice(engines), out)] if text]
                pulls += 1
                time.sleep(0.01)
        finally:
            for _, pid in deaths:  # after an error, which they would otherwise outlive
                _kill(pid)
        with Store.open(path) as store:
            if draw.random() < 0.3 and (latest := store.latest(_RUN)) is not None:
                store.delete(latest)  # the trainer's last step is taken back
            publish(path, out, base, timeout_s=0, form=form, dtype=dtype)
            latest = store.latest(_RUN)
            if latest is None:
                continue
            for engine in engines:
                wrong += [text for text in [pull(engine, out)] if text]
                served, saved = engine.weights(), store.load(latest)["model"]
                if not all(torch.equal(served[name].to(saved[name].dtype), saved[name]) for name in saved):
                    wrong.append(f"round {number}: the engine has {step_of(served)}, the newest is {latest.name}")
    wrong += [said.read_text()] if said.exists() else []
    print(
        json.dumps({"rounds": rounds, "kills": kills, "pulls": pulls, "versions": newest_version(out), "wrong": wrong})
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
