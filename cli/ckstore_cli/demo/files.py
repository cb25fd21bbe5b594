"""The parts of the demo with a fine-tune on a frozen base, files that go out, and files that come in."""

from __future__ import annotations

import hashlib
from pathlib import Path

import torch
from safetensors.torch import load_file

from ckstore import Store
from ckstore.model.sizes import size_text
from ckstore.model.words import share_text
from ckstore_cli.demo.programs import ckstore_command, run_trainer
from ckstore_cli.demo.telling import DemoFailed, say, say_rows

RUN = "lora"
SAVES = 5
SAVE_EVERY = 2


def fine_tune(path: Path, base: str, layers: int, files: Path) -> str:
    """Fine-tune the checkpoint `base`, show what that cost, and return the name of the last checkpoint.

    Args:
        path: The store.
        base: Name of the checkpoint to begin with.
        layers: Blocks of the model.
        files: New directory, where the trainer puts files of its own.

    Raises:
        DemoFailed: The program failed, or a checkpoint took the base's bytes once more.
    """
    options = {
        "--store": path,
        "--base": base,
        "--run": RUN,
        "--steps": SAVES * SAVE_EVERY,
        "--layers": layers,
        "--save-every": SAVE_EVERY,
        "--files": files,
    }
    arguments = [str(part) for option in options.items() for part in option]
    status = run_trainer(arguments, program="lora")
    if status != 0:
        raise DemoFailed(f"the fine-tuning program should exit with 0, it exited with {status}")
    with Store.open(path) as store:
        infos = sorted(store.checkpoints(run=RUN), key=lambda info: info.step)
        size_bytes = store.info(base).logical_bytes
    holds, new = (sum(getattr(info, name) for info in infos) for name in ("logical_bytes", "new_bytes"))
    rows = [(info.name, info.logical_bytes, info.new_bytes) for info in infos]
    say("")
    say_rows(
        [
            ("CHECKPOINT", "HOLDS", "NEW", "NEW SHARE"),
            *(
                (name, size_text(held), size_text(more), share_text(more, held))
                for name, held, more in [*rows, ("all", holds, new)]
            ),
        ],
        "<>>>",
    )
    say(f"\nThe base is what {base} has stored: each checkpoint costs its adapters and what trains them.")
    if len(infos) != SAVES or new > size_bytes:
        raise DemoFailed(f"{SAVES} checkpoints should cost less than {base} alone, {len(infos)} cost {new} bytes")
    return infos[-1].name


def send_out(path: Path, name: str, exported: Path) -> None:
    """Export the model of the checkpoint `name` and read the file with safetensors.

    Raises:
        DemoFailed: What safetensors reads is not what the store loads.
    """
    where = ["--store", str(path)]
    say(ckstore_command(["export", name, str(exported), "--select", "model", "--strip-prefix", *where]))
    with Store.open(path, readonly=True) as store:
        saved = store.load(name, select="model")["model"]
    read = load_file(exported / "model.safetensors")
    equal = saved.keys() == read.keys() and all(torch.equal(saved[key], read[key]) for key in saved)
    say(f"\nsafetensors reads {len(read)} tensors, equal to what was saved: {'yes' if equal else 'NO'}")
    if not equal:
        raise DemoFailed(f"{exported} should hold the weights of {name}, it holds others")


def take_in(path: Path, files: Path, back: Path) -> None:
    """Commit the directory `files`, check it out to `back`, and compare both.

    Raises:
        DemoFailed: A file or its mode is not the same.
    """
    where = ["--store", str(path)]
    say(ckstore_command(["commit", str(files), "--run", "files", *where]))
    say("\nThe tensors in these files are those that were saved, so they were there already.\n")
    with Store.open(path, readonly=True) as store:
        name = store.checkpoints(run="files")[-1].name
    say(ckstore_command(["checkout", name, str(back), *where]))
    before, after = _looked_at(files), _looked_at(back)
    say("")
    say_rows([(name, f"{mode:o}", sha256[:32]) for name, (mode, sha256) in after.items()])
    say(f"\nmodes and SHA-256 as before: {'yes' if before == after else 'NO'}")
    if before != after:
        raise DemoFailed(f"{back} should be as {files}, it is not")


def _looked_at(folder: Path) -> dict[str, tuple[int, str]]:
    return {
        path.name: (path.stat().st_mode & 0o7777, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in sorted(folder.iterdir())
    }
