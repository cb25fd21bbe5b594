"""``watch``: a line for each run, drawn again on a terminal, printed on a change elsewhere."""

from __future__ import annotations

import json
import os
import re
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import Store
from tests.cli.conftest import Run
from tests.support.terminal import Terminal


@pytest.fixture
def path(tmp_path: Path) -> Path:
    with Store.init(tmp_path / "s") as store:
        for step in (100, 200):
            store.save({"w": np.full(1000, step)}, step=step, run="gpt", metrics={"loss": 2.5})
        store.save({"w": np.full(1000, 7)}, step=7, run="sweep")
    return tmp_path / "s"


def ticks(monkeypatch: pytest.MonkeyPatch, *acts: Any) -> None:
    """Call one of these each time the command waits; end it when there is none left, as Ctrl-C does."""
    left: Iterator[Any] = iter(acts)

    def sleep(_: float) -> None:
        act = next(left, None)
        if act is None:
            raise KeyboardInterrupt
        act()

    monkeypatch.setattr(time, "sleep", sleep)


def test_once_prints_a_line_for_each_run(run: Run, path: Path, tmp_path: Path) -> None:
    lines = run("watch", "--once", "--store", path).stdout.splitlines()

    assert lines[0].split() == ["RUN", "STEP", "AGE", "SAVED", "SIZE", "ADDED", "SAVER", "MIRROR", "HEALTH", "METRICS"]
    assert re.match(r"sweep +7 +\d+ s ago +1 +7\.8 KiB +\S+ KiB +- +- +ok", lines[1])
    assert re.match(r"gpt +200 +\d+ s ago +2 +7\.8 KiB +\S+ KiB +- +- +ok +loss=2\.5", lines[2])
    document = json.loads(run("watch", "--once", "--json", "--store", path).stdout.splitlines()[1])
    assert (document["run"], document["step"], document["checkpoint_count"], document["damaged_count"]) == (
        *("gpt", 200, 2),
        0,
    )
    Store.init(tmp_path / "empty").close()
    assert run("watch", "--once", "--store", tmp_path / "empty").stderr == "no checkpoint yet\n"


def test_without_a_terminal_only_what_changed_is_printed(run: Run, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def save() -> None:
        with Store.open(path) as store:
            store.save({"w": np.full(1000, 300)}, step=300, run="gpt")

    ticks(monkeypatch, lambda: None, save)

    done = run("watch", "--store", path)

    assert done.exit_code == 0
    assert [line.split()[2] for line in done.stdout.splitlines()] == ["sweep@7", "gpt@200", "gpt@300"]


def test_on_a_terminal_the_table_is_drawn_again(path: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ckstore_cli", "watch", "--every", "0.2", "--store", str(path)]
    environment = {**os.environ, "TERM": "xterm"}

    with Terminal(command, env=environment, cwd=tmp_path) as terminal:
        terminal.until("sweep")
        with Store.open(path) as store:
            store.save({"w": np.full(1000, 300)}, step=300, run="gpt")
        terminal.until("300")
        terminal.type("\x03")
