"""Everything that the command line says, on one page: each command's help, typical output, and typical failures.

`python -m tests.cli.messages` writes `messages.txt`; `test_messages` checks that it is up to date. What differs between
runs (paths, ids, times, process numbers, sizes on the disk) is replaced, so that a difference is a changed message.
"""

from __future__ import annotations

import os
import re
import sys
import tempfile
from collections.abc import Iterator
from contextlib import chdir
from pathlib import Path
from unittest.mock import patch

import click
import numpy as np
from click.testing import CliRunner

from ckstore import Store
from ckstore_cli.app import COMMANDS, app
from tests.support.checkpoint_dirs import blobs_dir

PAGE = Path(__file__).with_name("messages.txt")
COLUMNS = 100

# Run one after another in a directory with a store of two runs and a directory of files; `$ID` is an id in the store.
TYPICAL = (
    # Making a store, putting files in and taking them out.
    "init",
    "init fresh --chunk-bytes 16MiB",
    "init other --chunk-bytes 3.5MiB",
    "init other --hash md5",
    "init full",
    "log --store nowhere",
    "commit out/checkpoint-500 --metric loss=2.5 --tag best",
    "commit out/checkpoint-500 --metric loss",
    "commit out/checkpoint-500 --step 100",
    "commit missing",
    "commit empty",
    "commit unfinished",
    "commit .ckstore",
    "commit broken.safetensors --step 501",
    "commit out/checkpoint-500 --run a/b",
    "checkout 500 restored",
    "checkout 500 restored",
    "checkout 500 weights --only *.json",
    "checkout 500 other --only *.bin",
    "checkout 500 hard --link hardlink",
    "checkout 100 state",
    "checkout 500 .ckstore/inside",
    "checkout 500 nowhere/below",
    "export 100 exported",
    "export 100 summed --sums",
    "verify --export summed",
    "verify --export exported",
    "verify --export summed --quick",
    "export 500 files",
    "export 100 exported",
    "export 100 part --select nothing",
    "export 100 part --strip-prefix",
    "export 100 model.safetensors",
    # Looking at checkpoints.
    "log",
    "log --oneline",
    "log -n 1",
    "log --run nope",
    "log main",
    "runs",
    "show 100",
    "show best",
    "show 999",
    "show nope",
    "show nope@100",
    "show 0123456789",
    "show 0999",
    "show main@latest-valid",
    "show no/ref",
    "ls 100",
    "ls 100 nothing*",
    "diff 100 200",
    "diff 100 200 --values",
    "diff 100 100",
    "diff 100 best",
    # Names.
    "tag",
    "tag best 200",
    "tag latest 200",
    "tag a/b 200",
    "tag -d nope",
    "pin",
    "pin 200",
    "pin 200 --reason paper",
    "pin 200 --reason paper --expires tomorrow",
    "pin --reason paper",
    "pin",
    "pin -d nope",
    "pin -d 100",
    "rename-run nope other",
    "watch --once",
    "delete 200",
    "delete 100",
    # Space.
    "du",
    "why 0123456789",
    "why xyz",
    "config",
    "config retention --keep-last 2",
    "config retention",
    "config retention 3",
    "config retension",
    "config recheck-share 2",
    "config read-back maybe",
    "config --unset",
    "config",
    "prune --dry-run",
    "config retention off",
    "prune",
    "prune --keep-last 1 --keep-best accuracy",
    "prune --keep-best loss:sideways",
    "prune --keep-best val_quality",
    "gc --dry-run",
    "gc",
    "gc",
    # Damage and repair.
    "verify",
    "verify --sample 200%",
    "verify --budget soon",
    "verify --quick --rate 1MB",
    "DAMAGE",
    "verify",
    "show main@latest-valid",
    "verify --repair",
    "verify --repair-from backup",
    "reindex",
    "LOSE catalog.db",
    "log",
    "reindex",
    # Usage.
    "frobnicate",
    "lgo",
    "purge",
    "show",
    "show 200 --colour",
)

_SAME = (
    (r"(checkpoints/[^/\s]+/\d+)\.[0-9a-f]{10,}(\.\d+)?", r"\1"),
    (r"(xxh3|blake3)-[0-9a-f]{32}", r"\1-DIGEST"),
    (r"\b[0-9a-f]{10,32}\b", "ID"),
    (r"pin-\w{10}", "pin-NAME"),
    (r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\.\d+Z)?", "TIME"),
    (r"\d+ s ago", "AGE ago"),
    (r"in \d+\.\d+ s\b", "in SECONDS s"),
    (r"\b\d+(\.\d+)? ?(B|KiB|MiB|GiB|TiB)\b", "SIZE"),
    (r"\b\d{4,} bytes", "N bytes"),
    (r" {2,}", "  "),
    (r"DIGEST\.\d+", "DIGEST.NUMBER"),
    (r"; the filesystem has SIZE more free", ""),
    (r"(?m)^durable  NO: .*\n|^warning: \S+ is on .*\n", ""),  # what the filesystem of the test does not promise
)


def page() -> str:
    """Return the page as it should be now."""
    with tempfile.TemporaryDirectory(prefix="messages-") as folder, chdir(folder):
        environment = {"HOME": folder, "XDG_CACHE_HOME": f"{folder}/cache", "COLUMNS": str(COLUMNS), "NO_COLOR": "1"}
        with patch.dict(os.environ, environment):
            for name in [name for name in os.environ if name.startswith("CKSTORE")]:
                del os.environ[name]
            _prepare(Path(folder))
            return "\n".join([*_help(), *(_said(line, folder) for line in TYPICAL)])


def _help() -> Iterator[str]:
    for name in ("", *COMMANDS):
        command = f"{name} --help".strip()
        done = CliRunner().invoke(app, command.split(), terminal_width=COLUMNS)
        yield f"$ ckstore {command}\n{done.output}"
    context = click.Context(app)
    yield "\n".join(f"# {name}: {_short(name, context)}" for name in COMMANDS) + "\n"


def _short(name: str, context: click.Context) -> str:
    command = app.get_command(context, name)
    return "" if command is None else command.get_short_help_str(limit=200)


def _prepare(folder: Path) -> None:
    rng = np.random.default_rng(0)
    weight = rng.standard_normal((64, 256), dtype="f4")
    with Store.init(folder / ".ckstore") as store:
        store.save({"model": {"w": weight}, "lr": 0.1}, step=100, metrics={"loss": 3.25})
        store.save({"model": {"w": weight + 1}, "lr": 0.2}, step=200, metrics={"loss": 2.5}, message="after the warmup")
        store.save({"x": np.zeros(10)}, step=7, run="sweep")
    (folder / "full").mkdir()
    (folder / "full" / "notes.txt").write_text("mine")
    files = folder / "out" / "checkpoint-500"
    files.mkdir(parents=True)
    (files / "config.json").write_text("{}")
    (files / "weights.dat").write_bytes(rng.bytes(70_000))
    (folder / "empty").mkdir()
    (folder / "unfinished").mkdir()
    (folder / "unfinished" / "checkpoint-is-incomplete.txt").write_text("")
    (folder / "broken.safetensors").write_bytes(b"\xff" * 100)
    (folder / "backup").mkdir()


def _said(line: str, folder: str) -> str:
    words = line.split()
    store = Path(folder) / ".ckstore"
    if words[0] == "DAMAGE":
        _damage(store)
        return "# a byte of the largest blob of main@200 is flipped\n"
    if words[0] == "LOSE":
        (store / words[1]).unlink()
        return f"# {words[1]} is removed\n"
    done = CliRunner().invoke(app, words)
    status = f"[exit {done.exit_code}]\n" if done.exit_code else ""
    return f"$ ckstore {line}\n" + _same(f"{done.output}{status}", folder)


def _damage(store: Path) -> None:
    blob = max(blobs_dir(store, "main", 200).iterdir(), key=lambda path: path.stat().st_size)
    before = blob.stat()
    blob.chmod(0o600)
    data = bytearray(blob.read_bytes())
    data[1000] ^= 1
    blob.write_bytes(data)
    blob.chmod(0o444)
    os.utime(blob, ns=(before.st_atime_ns, before.st_mtime_ns))


def _same(text: str, folder: str) -> str:
    text = text.replace(os.path.realpath(folder), "/here").replace(folder, "/here")
    for pattern, replacement in _SAME:
        text = re.sub(pattern, replacement, text)
    return "\n".join(line.rstrip() for line in text.split("\n"))


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    sys.stdout.write(f"wrote {PAGE}\n")
