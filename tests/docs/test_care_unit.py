"""The systemd unit of the page on operation, run as systemd runs it: what it does when verify finds damage."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import numpy as np

from ckstore import Store
from tests.support.checkpoint_dirs import blobs_dir

_PAGE = Path(__file__).resolve().parents[2] / "docs/how-to/operate.md"
_DAMAGED = 3


def run_unit(store: Path, metrics: Path) -> list[int]:
    """Do what systemd does with a oneshot unit; return the status of each command that it ran."""
    match = re.search(r"\[Service\]\n(.*?)\n\n", _PAGE.read_text(), re.DOTALL)
    assert match is not None
    lines = [line.partition("=")[::2] for line in match[1].splitlines()]
    statuses = []

    def run(command: str) -> int:
        words = shlex.split(command.removeprefix("-").replace("/var/lib/node_exporter/ckstore.prom", str(metrics)))
        program = [sys.executable, "-m", "ckstore_cli", *words[1:]]
        assert words[0] == "/opt/train/bin/ckstore"
        done = subprocess.run([*program, "--store", str(store)], check=False, capture_output=True, text=True)
        statuses.append(done.returncode)
        return done.returncode

    for name, command in lines:
        # The first command that fails ends a oneshot unit, unless a minus says that it may.
        if name == "ExecStart" and run(command) != 0 and not command.startswith("-"):
            break
    for name, command in lines:
        if name == "ExecStopPost":
            run(command)
    return statuses


def test_metrics_are_written_when_verify_finds_damage(tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    store.save({"w": np.arange(100_000)}, step=1)
    assert run_unit(store.path, tmp_path / "c.prom") == [0, 0, 0]
    (tmp_path / "c.prom").unlink()
    blob = next(blobs_dir(store.path, "main", 1).iterdir())
    blob.chmod(0o644)
    blob.write_bytes(bytes(blob.stat().st_size))

    assert run_unit(store.path, tmp_path / "c.prom") == [0, _DAMAGED, 0]

    (line,) = re.findall(r"^ckstore_run_damaged\{.*\} .*$", (tmp_path / "c.prom").read_text(), re.MULTILINE)
    assert line.endswith(" 1")
