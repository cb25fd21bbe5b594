"""``python -m tests.bench compact``: what compaction makes of histories of small real trainings, and how fast."""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ckstore import CkstoreWarning, Store
from tests.bench import compact_loads, histories, page
from tests.bench.compact_peers import PEERS, Peers
from tests.bench.histories import Parts
from tests.bench.sizes import size

GOALS = {
    ("bf16 1e-6", 1): 75,
    ("bf16 3e-6", 1): 75,
    ("bf16 1e-6", 10): 20,
    ("bf16 3e-6", 10): 20,
    ("w+m+v", 1): 1.45,
    ("w+m+v", 10): 1.3,
    ("w+m+v", 100): 1.2,
    ("14 bytes", 10): 1.5,
    ("chain of 100, bf16 3e-6", 1): 15,
}
"""History and steps between checkpoints -> how many times smaller it should be."""
_ROUNDS = 5
_BACKUPS_AT = 10
_ON_PAGE = {
    "w+m+v": "pre-training: weights, AdamW moments",
    "14 bytes": "fine-tune 3e-6: weights, AdamW moments, bf16 weights",
    "bf16 1e-6": "fine-tune 1e-6: bf16 weights",
    "bf16 3e-6": "fine-tune 3e-6: bf16 weights",
    "LoRA": "LoRA adapters",
}
"""History -> its row on the page."""
_JOINED = ("w+m+v", "14 bytes")


def main(arguments: Sequence[str]) -> int:
    """Measure, and print a table; a JSON with ``--out``."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench compact", description=__doc__)
    parser.add_argument("--steps", type=int, default=100, help="the greatest distance between two checkpoints")
    parser.add_argument("--chain", type=int, default=100, help="checkpoints of the chain, one step apart")
    parser.add_argument("--pretrained", type=int, default=100, help="steps before a fine-tune begins")
    parser.add_argument("--width", type=int, default=192, help="of the model")
    parser.add_argument("--batch", type=int, default=2, help="rows of a step")
    parser.add_argument("--rounds", type=int, default=_ROUNDS, help="loads that are timed")
    parser.add_argument("--only", choices=("bytes", "chain", "loads", "beside"), default="bytes", help="one part")
    parser.add_argument(
        "--size", type=size, default=64 * 2**20, help="of the tensor that is loaded, or compacted beside"
    )
    parser.add_argument("--share", type=float, default=0.1, help="of a processor, for the compaction beside a training")
    parser.add_argument("--page", action="store_true", help="write the figures into docs/performance.md")
    parser.add_argument("--out", type=Path, help="a file for the figures")
    given = parser.parse_args(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore", CkstoreWarning)
    if given.only in ("loads", "beside"):
        found = (
            list(compact_loads.loads(given.size, given.rounds))
            if given.only == "loads"
            else [compact_loads.beside(given.size, given.rounds, given.share)]
        )
        print(json.dumps(found, indent=1))
        if given.page:
            compact_loads.write_page(page.PAGE, given.only, found, _command(parser, given))
        return 0
    histories.WIDTH, histories.BATCH = given.width, given.batch
    if given.only == "chain":
        model = next(trained for step, (trained, _) in enumerate(histories.pretraining()) if step == given.pretrained)
        row = _chain(given.chain, model, given.rounds)
        print(_line(row))
        if given.page:
            compact_loads.write_page(page.PAGE, "chain", [row], _command(parser, given))
        return 0
    rows = []
    with tempfile.TemporaryDirectory(prefix="ckstore-peers-") as folder:
        peers = Peers(Path(folder))
        for row in measure(given.steps, given.chain, given.pretrained, peers, given.rounds):
            rows.append(row)
            print(_line(row), flush=True)
    if given.page:
        _write_page(page.PAGE, rows, _command(parser, given), peers.missing)
    if given.out is not None:
        given.out.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    return 0


def _command(parser: argparse.ArgumentParser, given: argparse.Namespace) -> str:
    """Return the command that measures the same and writes it into the page, without options at their defaults."""
    values = {"size": f"{given.size // 2**20}MiB"}
    options = [
        f"--{name} {values.get(name, value)}"
        for name, value in vars(given).items()
        if name not in ("page", "out") and value != parser.get_default(name)
    ]
    return " ".join(["python -m tests.bench compact", *options, "--page"])


def measure(steps: int, chain: int, pretrained: int, peers: Peers, rounds: int) -> Iterator[dict[str, Any]]:
    """Give a row for each history and distance."""
    pair = partial(_pair, peers, rounds)
    distances = [distance for distance in (1, 10, 100) if distance <= steps]
    training = histories.pretraining()
    early: dict[int, Parts] = {}
    model: histories.Model | None = None
    start = 40
    for step, (trained, parts) in zip(range(max(pretrained, start + steps) + 1), training, strict=False):
        if step - start in (0, *distances):
            early[step - start] = parts
        model = trained
    assert model is not None
    for distance in distances:
        for kind in ("w", "m", "v", "ema"):
            yield pair(f"{kind} pre-training", distance, early[0][kind], early[distance][kind])
        yield pair("w+m+v", distance, *(_joined(early[at], "w", "m", "v") for at in (0, distance)))
    looked_at = [20, *(20 + distance for distance in distances)]
    for rate in ("1e-6", "3e-6", "1e-5"):
        found = histories.taken(histories.finetuning(model, float(rate)), looked_at)
        for distance in distances:
            yield pair(f"bf16 {rate}", distance, found[20]["bf16"], found[20 + distance]["bf16"])
        if rate == "3e-6":
            for distance in distances:
                states = [_joined(found[at], "w", "m", "v", "bf16") for at in (20, 20 + distance)]
                yield pair("14 bytes", distance, *states)
            eight = dict(zip(looked_at, histories.eight_bit(found[at] for at in looked_at), strict=True))
            for distance in distances:
                yield pair("8-bit moments", distance, eight[20]["8-bit"], eight[20 + distance]["8-bit"])
    adapters = histories.taken(histories.lora(model), looked_at)
    for distance in distances:
        yield pair("LoRA", distance, adapters[20]["lora"], adapters[20 + distance]["lora"])
    if chain:
        yield _chain(chain, model, rounds)


def _joined(parts: Parts, *kinds: str) -> dict[str, torch.Tensor]:
    return {f"{kind}.{name}": value for kind in kinds for name, value in parts[kind].items()}


def _pair(  # noqa: PLR0917 - the first two are given once
    peers: Peers, rounds: int, name: str, distance: int, older: dict[str, Any], newer: dict[str, Any]
) -> dict[str, Any]:
    """Compact the older of two checkpoints, and load it."""
    folder = tempfile.mkdtemp(prefix="ckstore-compact-")
    try:
        with Store.init(f"{folder}/store") as store:
            store.save(older, step=0)
            store.save(newer, step=1)
            plain_s = _seconds(lambda: store.load(0), rounds)
            begun_s = time.process_time()
            report = store.compact(keep_newest=1)
            encode_s = time.process_time() - begun_s
            decode_s = _seconds(lambda: store.load(0), rounds)
            found = store.load(0)
        for key, value in older.items():
            assert torch.equal(value, found[key]), key
        return {
            "history": name,
            "distance": distance,
            "plain_bytes": report.plain_bytes,
            "encoded_bytes": report.encoded_bytes,
            # No chunk is equal at any distance, so one tells for all; a joined one has chunks that were kept before.
            "peers": peers.kept(older, newer, backups=distance == _BACKUPS_AT and name not in _JOINED),
            "times": report.plain_bytes / max(report.encoded_bytes, 1),
            "encode_bytes_s": report.plain_bytes / encode_s,
            "decode_bytes_s": report.plain_bytes / decode_s,
            "load_times_plain": decode_s / plain_s,
        }
    finally:
        shutil.rmtree(folder)


def _chain(count: int, model: histories.Model, rounds: int) -> dict[str, Any]:
    folder = tempfile.mkdtemp(prefix="ckstore-compact-")
    try:
        with Store.init(f"{folder}/store") as store:
            last: dict[str, torch.Tensor] = {}
            for step, parts in zip(range(count), histories.finetuning(model, 3e-6), strict=False):
                last = parts["bf16"]
                store.save(last, step=step)
            before = store.du().disk_bytes
            begun_s = time.process_time()
            report = store.compact()
            encode_s = time.process_time() - begun_s
            after = store.du().disk_bytes
            assert store.verify().ok
            links = [done.before_bytes / done.after_bytes for done in report.compacted]
            plain_s = _seconds(lambda: store.load(count - 1), rounds)
            looked_at = range(0, count - 3, max(1, count // 16))
            deepest = max(_seconds(partial(store.load, step), rounds) for step in looked_at)
        return {
            "history": f"chain of {count}, bf16 3e-6",
            "distance": 1,
            "plain_bytes": before,
            "encoded_bytes": after,
            "peers": {},
            "times": before / after,
            "link_times": statistics.median(links),
            "encode_bytes_s": report.plain_bytes / encode_s,
            "decode_bytes_s": before / count / deepest,
            "load_times_plain": deepest / plain_s,
        }
    finally:
        shutil.rmtree(folder)


def _seconds(work: Callable[[], object], rounds: int) -> float:
    """Return the processor time of a call, the median of several: others use this machine, too."""
    found = []
    for _ in range(rounds):
        begun_s = time.process_time()
        work()
        found.append(time.process_time() - begun_s)
    return max(statistics.median(found), 1e-9)


def _line(row: dict[str, Any]) -> str:
    goal = GOALS.get((row["history"], row["distance"]))
    wanted = "" if goal is None else f"  wanted {goal} x: {'yes' if row['times'] >= goal else 'NO'}"
    others = ", ".join(f"{name} {row['plain_bytes'] / max(kept, 1):.2f}" for name, kept in row["peers"].items())
    return (
        f"{row['history']:<26} {row['distance']:>4} {row['plain_bytes']:>12,} -> {row['encoded_bytes']:>12,}"
        f" {row['times']:>7.2f} x ({others})  encode {row['encode_bytes_s'] / 1e9:.2f}"
        f"  decode {row['decode_bytes_s'] / 1e9:.2f} GB/s a core, load {row['load_times_plain']:.1f} x plain{wanted}"
    )


_FIRST, _LAST = "<!--compaction:begin-->", "<!--compaction:end-->"


def _write_page(path: Path, rows: Sequence[dict[str, Any]], command: str, missing: Mapping[str, str]) -> None:
    """Replace the table of sizes on a page."""
    distances = sorted({row["distance"] for row in rows})
    lines = [
        f"`{command}`:",
        "",
        f"| History | {' | '.join(map(str, distances))} | Best peer at {_BACKUPS_AT} |",
        f"|---|{'---|' * len(distances)}---|",
    ]
    found = {(row["history"], row["distance"]): row for row in rows}
    for history, words in _ON_PAGE.items():
        own = [_times(found.get((history, distance))) for distance in distances]
        at_ten = found.get((history, _BACKUPS_AT), {"peers": {}})
        others = {name: at_ten["plain_bytes"] / kept for name, kept in at_ten["peers"].items()}
        best = max(others, key=others.__getitem__, default="")
        lines.append(f"| {words} | {' | '.join(own)} | {f'{others[best]:.2f} {best}' if best else ''} |")
    if absent := ", ".join(name for name in PEERS if missing.get(name)):
        lines += ["", f"Not installed: {absent}."]
    page.put(path, _FIRST, _LAST, "\n".join(lines))


def _times(row: dict[str, Any] | None) -> str:
    """Return how many times smaller a checkpoint became, with the goal."""
    if row is None:
        return ""
    goal = GOALS.get((row["history"], row["distance"]))
    own = f"{row['times']:.3g}" + (f" ({goal})" if goal else "")
    return f"**{own}**" if goal and row["times"] < goal else own
