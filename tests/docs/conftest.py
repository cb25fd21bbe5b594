"""The site and what its pages hold, built once for all workers."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.once import once
from tests.support.requirements import require

ROOT = Path(__file__).resolve().parents[2]

# Runs mkdocs, and refuses to reach another host or to import what is only to be read.
_WATCHED = """
import runpy
import sys


def refuse(event, args):
    if event in ("socket.connect", "socket.getaddrinfo"):
        raise SystemExit(f"the build reaches for another host: {args}")
    if event == "import" and args[0].partition(".")[0] in ("torch", "ckstore"):
        raise SystemExit(f"the build imports {args[0]}")


sys.addaudithook(refuse)
runpy.run_module("mkdocs", run_name="__main__", alter_sys=True)
"""


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    """Build the site of a `mkdocs.yml` into the directory `site`; its sitemap has the date of a day long gone."""
    installed = all(importlib.util.find_spec(name) is not None for name in ("material", "mkdocs", "mkdocstrings"))
    require(installed, "needs the extra docs: pip install -c constraints.txt -e '.[docs]'")
    return subprocess.run(
        [sys.executable, "-c", _WATCHED, "build", "-f", str(config), "-d", str(site)],
        check=False,
        capture_output=True,
        text=True,
        timeout=120,
        cwd=site.parent,
        env={
            **os.environ,
            "NO_MKDOCS_2_WARNING": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            "SOURCE_DATE_EPOCH": "1700000000",
        },
    )


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of the built site; what the build printed is in `log` beside it."""

    def make(folder: Path) -> None:
        done = build(ROOT / "docs" / "site" / "mkdocs.yml", folder / "site")
        (folder / "log").write_text(done.stdout + done.stderr, encoding="utf-8")
        assert done.returncode == 0, done.stdout + done.stderr

    return once(tmp_path_factory, "documentation", make) / "site"
