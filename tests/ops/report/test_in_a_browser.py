"""The report of a large store in a real browser: small, without an error and without any request."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.model.times import text_of_time, time_of_text
from ckstore.ops.report.html import render
from ckstore.ops.report.page import page
from ckstore.store import _remote_checks
from tests.support.requirements import require

CHECKPOINTS = 3000
RUNS = 12
_TIMEOUT_S = 280
_BUDGET_MS = 60_000  # what the page's clock may show at the end: axe waits on it, and it stands still while axe works
AXE = """<script>addEventListener("load", async () => {
  const {violations} = await axe.run(document, {resultTypes: ["violations"]});
  document.title = "probed " + JSON.stringify({wrong: violations.map((one) => [one.id, one.nodes[0].html])});
})</script>"""
PROBE = """<script>addEventListener("load", () => {
  document.title = "probed " + JSON.stringify({drawn: document.querySelectorAll("canvas").length,
    resources: performance.getEntriesByType("resource").length});
})</script>"""


def large(store: Store) -> str:
    """Return the report of a store with many more checkpoints than were saved, to save time."""
    for number in range(2 * RUNS):
        state = {"frozen": np.arange(9000), "head": np.full(500, number)}
        store.save(state, step=number // RUNS, run=f"sweep-{number % RUNS}", metrics={"loss": 1 / (1 + number)})
    store.tag("best", "sweep-3@1")
    store.config.retention = RetentionPolicy(keep_last=1)
    made = page(store._context, _remote_checks())
    begun = time_of_text(made.infos[0].created)
    infos = [
        replace(
            made.infos[number % len(made.infos)],
            step=number,
            created=text_of_time(begun + timedelta(minutes=number)),
            metrics={"loss": 3 / (1 + number), "accuracy": number / CHECKPOINTS},
        )
        for number in range(CHECKPOINTS)
    ]
    return render(replace(made, infos=infos))


@pytest.mark.slow
def test_a_large_report_draws_its_plots_and_asks_for_nothing(store: Store, tmp_path: Path) -> None:
    browser = shutil.which("chromium")
    require(browser is not None, "there is no chromium")
    text = large(store)
    assert len(text) < 5_000_000
    (tmp_path / "report.html").write_text(text.replace("</body>", f"{PROBE}</body>"))

    assert look(str(browser), tmp_path) == {"drawn": 5, "resources": 0}


def small(store: Store) -> str:
    """Return the report of a store that has something in every part of it."""
    for step in range(5):
        state = {"frozen": np.arange(9000), "head": np.full(500, step)}
        store.save(state, step=step, run="gpt", metrics={"loss": 3.0 - step / 3})
    with Store.open(store.path, run="branch") as branch:
        branch.save({"head": np.full(500, 77)}, step=4, parent="gpt@3")
    store.tag("best", "gpt@2")
    store.config.retention = RetentionPolicy(keep_last=2)
    store.config.undo_by_hand_s = 86_400
    store.delete("gpt@0")
    made = store.report().html
    store.gc(now=True)  # it need not wait for the end of the test
    return made


def empty(store: Store) -> str:
    return store.report().html


@pytest.mark.slow
@pytest.mark.parametrize(
    "make, scheme",
    [
        (small, 1),
        pytest.param(small, 0, marks=pytest.mark.whole),
        *(pytest.param(one, 1, marks=pytest.mark.whole) for one in (empty, large)),
    ],
    ids=["small, light", "small, dark", "empty", "large"],
)
def test_axe_finds_nothing(store: Store, tmp_path: Path, make: Callable[[Store], str], scheme: int) -> None:
    browser = shutil.which("chromium")
    require(browser is not None, "there is no chromium")
    axe = (resources.files("axe_core_python") / "axe.min.js").read_text(encoding="utf-8")
    (tmp_path / "report.html").write_text(make(store).replace("</body>", f"<script>{axe}</script>{AXE}</body>"))

    options = (f"--blink-settings=preferredColorScheme={scheme}", f"--virtual-time-budget={_BUDGET_MS}")
    assert look(str(browser), tmp_path, *options) == {"wrong": []}


def look(browser: str, folder: Path, *more: str) -> dict[str, Any]:
    """Return what the page found of itself once it was loaded, and check that it complained about nothing."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr", *more)
    done = subprocess.run(
        [browser, *options, f"--user-data-dir={folder}/browser", "--dump-dom", f"file://{folder}/report.html"],
        check=True,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r"<title>probed (.*?)</title>", done.stdout)
    assert found, done.stderr
    probed: dict[str, Any] = json.loads(found[1])
    return probed
