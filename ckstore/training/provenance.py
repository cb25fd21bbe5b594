"""The origin of a checkpoint: the revision of the code, the command line, package versions and the configuration."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ckstore.model.names import expanded

PACKAGES = ("ckstore", "torch", "numpy", "transformers", "accelerate", "lightning", "deepspeed", "peft")
# A repository on a network filesystem may not answer, and the training must start anyway.
_GIT_TIMEOUT_S = 10.0


def provenance(
    config: Mapping[str, Any] | None = None,
    *,
    packages: Iterable[str] = PACKAGES,
    directory: str | os.PathLike[str] | None = None,
) -> dict[str, Any]:
    """Return the origin of a run as ``metadata`` for `Store.save`. ``ckstore show`` prints it.

    ckstore never records this by itself, because a command line can contain secrets.

    Args:
        config: The configuration of the run, as JSON-like values.
        packages: The packages whose versions are recorded. Packages that are not installed are omitted.
        directory: A directory in the git repository of the code. If None, the directory of the program.
    """
    versions = {}
    for name in packages:
        with suppress(PackageNotFoundError):
            versions[name] = version(name)
    if directory is not None:
        folder = expanded(directory)
    else:
        file = getattr(sys.modules.get("__main__"), "__file__", None)
        folder = Path(file).resolve().parent if file else Path.cwd()
    found: dict[str, Any] = {
        "command_line": list(sys.orig_argv),
        "python": platform.python_version(),
        "packages": versions,
        "git": git_revision(str(folder)),
    }
    if config is not None:
        found["config"] = dict(config)
    return {"provenance": found}


def git_revision(directory: str) -> dict[str, Any] | None:
    """Return the commit and whether files differ from it, or None without a repository or a git that answers.

    It takes no lock of git.
    """
    revision = _git(directory, "rev-parse", "HEAD")
    if revision is None:
        return None
    changes = _git(directory, "status", "--porcelain", "--untracked-files=no")
    return {"revision": revision.strip(), "changed": None if changes is None else bool(changes.strip())}


def _git(directory: str, *arguments: str) -> str | None:
    try:
        done = subprocess.run(  # noqa: S603 - arguments are ours
            ["git", "-C", directory, *arguments],  # noqa: S607 - the user's own git
            check=False,
            capture_output=True,
            text=True,
            errors="replace",  # the name of a file may be invalid text
            timeout=_GIT_TIMEOUT_S,
            env={**os.environ, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
