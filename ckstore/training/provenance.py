"""The origin of a checkpoint: the revision of the code, the command line, package versions and the configuration."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ckstore.git_revision import git_revision
from ckstore.model.names import expanded

PACKAGES = ("ckstore", "torch", "numpy", "transformers", "accelerate", "lightning", "deepspeed", "peft")


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
    revision = git_revision(folder)
    found: dict[str, Any] = {
        "command_line": list(sys.orig_argv),
        "python": platform.python_version(),
        "packages": versions,
        "git": None if revision is None else revision._asdict(),
    }
    if config is not None:
        found["config"] = dict(config)
    return {"provenance": found}
