"""The training program of the demo: `python -m ckstore_cli.demo.trainer --store DIR --run NAME --steps N`.

This is an ordinary training loop. Its complete state is in one dict, which `Store.save_async` saves every few steps
and `Store.load_into` restores. The program can be killed at any time and continued with the same command. With
`--base REF` it loads the weights of a checkpoint, freezes them and trains low-rank adapters.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from ckstore import Store
from ckstore.errors import BadInput, CkstoreError
from ckstore.model.sizes import size_text

WIDTH, CONTEXT, BATCH, RANK = 128, 128, 4, 4
TEXT_BYTES, TEXT_LEAST_BYTES = 2**20, 2**16
SEED, _SAVED_WITHIN_S = 20260301, 300.0


class ByteGpt(nn.Module):
    """A small GPT over bytes. The embeddings of pairs of bytes are random and frozen, so most weights never change."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.bytes = nn.Embedding(256, WIDTH)
        self.positions = nn.Embedding(CONTEXT, WIDTH)
        self.pairs = nn.Embedding(256 * 256, WIDTH // 2).requires_grad_(requires_grad=False)
        self.widen = nn.Linear(WIDTH // 2, WIDTH, bias=False)
        block = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, 0.1, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(block, layers, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, 256, bias=False)

    def loss(self, window: Tensor) -> Tensor:
        """Return the mean cross entropy in nats of all bytes but the first, for a batch of shape (batch, time + 1)."""
        text, after = window[:, :-1], window[:, 1:]
        before = nn.functional.pad(text[:, :-1], (1, 0))
        x = self.bytes(text) + self.positions.weight[: text.shape[1]] + self.widen(self.pairs(before * 256 + text))
        mask = nn.Transformer.generate_square_subsequent_mask(text.shape[1])
        logits = self.head(self.blocks(x, mask=mask, is_causal=True))
        return nn.functional.cross_entropy(logits.flatten(0, 1), after.flatten())


class Adapter(nn.Module):
    """A frozen linear layer with a trained low-rank addition (LoRA)."""

    def __init__(self, base: nn.Linear) -> None:
        super().__init__()
        self.base = base.requires_grad_(requires_grad=False)
        self.down = nn.Linear(base.in_features, RANK, bias=False)
        self.up = nn.Linear(RANK, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)  # initially adds nothing

    def forward(self, x: Tensor) -> Tensor:
        """Map a tensor of shape (…, in) to (…, out)."""
        return self.base(x) + self.up(self.down(x))  # type: ignore[no-any-return]


def read_text() -> Tensor:
    """Return the text to train on: the first bytes of some modules of Python's standard library."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    text = bytearray().join(path.read_bytes() for path in sorted(folder.glob("[a-h]*.py")))
    if len(text) < TEXT_LEAST_BYTES:
        msg = f"{folder} should hold the sources of the standard library, found {len(text)} bytes"
        raise BadInput(msg, hint="run the demo with a Python that has them, such as python.org's")
    return torch.frombuffer(text, dtype=torch.uint8)[:TEXT_BYTES].long()


def digest(state: object) -> str:
    """Return a SHA-256 of names, types, shapes and bits, computed independently of the store."""
    return hashlib.sha256(_bytes_of(state)).hexdigest()


def _bytes_of(value: Any) -> bytes:
    if isinstance(value, Tensor):
        bits = value.detach().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        return f"{value.dtype} {tuple(value.shape)};".encode() + bits
    if hasattr(value, "state_dict"):
        return _bytes_of(value.state_dict())
    if isinstance(value, dict | list | tuple):  # the size comes first, so that nesting shows in the bytes
        head = f"{type(value).__name__ if isinstance(value, list) else 'items'} {len(value)};".encode()
        return head + b"".join(map(_bytes_of, value.items() if isinstance(value, dict) else value))
    return f"{type(value).__name__} {value!r};".encode()  # repr() keeps every bit of a float


def train(options: argparse.Namespace) -> None:
    """Train `options.run` to its last step, starting from its newest checkpoint if one exists."""
    torch.set_num_threads(1)
    torch.manual_seed(SEED)
    model = ByteGpt(options.layers)
    with Store.open_or_init(options.store, run=options.run) as store:
        parent = None
        if options.base is not None:
            parent = store.info(options.base)
            store.load_into({"model": model}, parent, select="model")
            model.requires_grad_(requires_grad=False)
            model.head = Adapter(model.head)  # type: ignore[assignment]
        optimizer = torch.optim.AdamW([one for one in model.parameters() if one.requires_grad], lr=1e-3)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.steps)
        state: dict[str, Any] = {"model": model, "optimizer": optimizer, "schedule": schedule}
        state["generator"] = torch.get_rng_state()
        if (newest := store.latest()) is not None:
            store.load_into(state, newest)
            torch.set_rng_state(state["generator"])
            print(f"resumed from {newest.name}, saved with loss {newest.metrics['loss']:.3f}", flush=True)
        text = read_text()
        for step in range(1 if newest is None else newest.step + 1, options.steps + 1):
            starts = torch.randint(len(text) - CONTEXT, (BATCH, 1))
            loss = model.loss(text[starts + torch.arange(CONTEXT + 1)])
            optimizer.zero_grad()
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            schedule.step()
            if step == options.steps or (options.save_every and step % options.save_every == 0):
                state["generator"] = torch.get_rng_state()
                begun_s = time.perf_counter()
                pending = store.save_async(state, step=step, metrics={"loss": loss.item()}, parent=parent)
                waited = f"training waited {time.perf_counter() - begun_s:.2f} s"
                info = pending.result(_SAVED_WITHIN_S)  # only to print the sizes; usual loops do not wait
                new = f"{size_text(info.new_bytes):>8} of {size_text(info.logical_bytes)} new"
                print(f"step {step:>4}   loss {loss.item():.3f}   {waited}, {new}", flush=True)
                parent = None
        if options.report is not None:
            options.report.write_text(json.dumps({name: digest(part) for name, part in state.items()}))


def main() -> None:
    """Parse the arguments and train."""
    parser = argparse.ArgumentParser(prog="python -m ckstore_cli.demo.trainer", description=__doc__)
    for name, kind in {"--store": Path, "--run": str, "--steps": int, "--layers": int}.items():
        parser.add_argument(name, type=kind, required=True)
    for name, kind in {"--save-every": int, "--base": str, "--report": Path}.items():
        parser.add_argument(name, type=kind)
    try:
        train(parser.parse_args())
    except CkstoreError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_status)


if __name__ == "__main__":
    main()
