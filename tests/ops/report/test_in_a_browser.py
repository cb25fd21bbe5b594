"""The report of a large store in a real browser: small, without an error and without any request."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
import pytest

from ckstore import RetentionPolicy, Store
from ckstore.model.times import text_of_time, time_of_text
from ckstore.ops.report.html import render
from ckstore.ops.report.page import page
from tests.support.requirements import require

CHECKPOINTS = 3000
RUNS = 12
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
    made = page(store._context)
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

    assert look(str(browser), tmp_path) == {"drawn": 4, "resources": 0}


def look(browser: str, folder: Path) -> dict[str, int]:
    """Return what the page found of itself once it was loaded, and check that it complained about nothing."""
    options = ("--headless", "--no-sandbox", "--disable-gpu", "--enable-logging=stderr")
    done = subprocess.run(
        [browser, *options, f"--user-data-dir={folder}/browser", "--dump-dom", f"file://{folder}/report.html"],
        check=True,
        capture_output=True,
        text=True,
        timeout=200,
    )
    assert [line for line in done.stderr.splitlines() if "CONSOLE" in line] == []
    found = re.search(r"<title>probed (.*?)</title>", done.stdout)
    assert found, done.stderr
    probed: dict[str, int] = json.loads(found[1])
    return probed
