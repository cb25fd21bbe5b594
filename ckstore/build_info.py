"""The version of the package and the commit of its code.

Wheels and source packages record the commit in ``build.json``, which ``tests/packaging/build_hook.py`` writes. Archives
made by ``git archive`` also have this record. In a checkout, the first call of `build_info` runs git. An import never
runs git.
"""

from __future__ import annotations

import json
import re
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import NamedTuple

from ckstore.git_revision import git_revision
from ckstore.version import __version__

RECORD = "build.json"
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")


class BuildInfo(NamedTuple):
    """A version and the commit of its code; ``ckstore --version`` prints its text."""

    version: str
    commit: str | None
    """None if neither a record nor a repository names it."""
    dirty: bool | None
    """Whether the code differed from the commit. None if that is unknown."""

    def __str__(self) -> str:
        if self.commit is None:
            return f"{self.version} (commit unknown)"
        state = {True: ", with uncommitted changes", False: "", None: ", changes unknown"}[self.dirty]
        return f"{self.version} (commit {self.commit}{state})"


@cache
def build_info() -> BuildInfo:
    """Return the version and the commit of the code that this process runs."""
    return read_build_info(Path(__file__).resolve().parents[1])


def read_build_info(root: Path) -> BuildInfo:
    """Return the version and the commit of the code below a directory.

    Args:
        root: The directory of the package ``ckstore``, such as a checkout or ``site-packages``.
    """
    record: object = None
    with suppress(OSError, ValueError):  # without a record the commit is reported as unknown
        record = json.loads((root / "ckstore" / RECORD).read_text(encoding="utf-8"))
    if isinstance(record, dict):
        commit, dirty = record.get("commit"), record.get("dirty")
        if isinstance(commit, str) and _COMMIT.fullmatch(commit):  # in the sources, it is a placeholder for git archive
            return BuildInfo(__version__, commit, dirty if isinstance(dirty, bool) else None)
    # A repository in a parent directory belongs to another project, whose checkout contains this environment.
    if (root / ".git").exists() and (found := git_revision(root, untracked=True)) is not None:
        return BuildInfo(__version__, found.revision, found.changed)
    return BuildInfo(__version__, None, None)
