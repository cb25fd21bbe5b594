"""The revision of a directory, as reported by git."""

from __future__ import annotations

import os
from typing import NamedTuple

# git may hang in a repository on a network filesystem, and the caller must continue anyway.
_TIMEOUT_S = 10.0
# git sets these variables for its hooks. They may name another repository than that of the directory.
_OF_HOOKS = ("GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE")


class GitRevision(NamedTuple):
    """A commit, and whether files differ from it."""

    revision: str
    changed: bool | None
    """None if git failed or did not answer."""


def git_revision(directory: str | os.PathLike[str], *, untracked: bool = False) -> GitRevision | None:
    """Return the revision of a directory, or None if the directory has no repository or git does not answer.

    git is run without its optional locks.

    Args:
        directory: A directory in the repository.
        untracked: Whether a file that git neither tracks nor ignores counts as a change.
    """
    revision = _git(directory, "rev-parse", "HEAD")
    if revision is None:
        return None
    changes = _git(directory, "status", "--porcelain", f"--untracked-files={'normal' if untracked else 'no'}")
    return GitRevision(revision.strip(), None if changes is None else bool(changes.strip()))


def _git(directory: str | os.PathLike[str], *arguments: str) -> str | None:
    import subprocess  # few processes run git

    env = {name: value for name, value in os.environ.items() if name not in _OF_HOOKS}
    try:
        done = subprocess.run(  # noqa: S603 - arguments are ours
            ["git", "-C", os.fspath(directory), *arguments],  # noqa: S607 - the user's own git
            check=False,
            capture_output=True,
            text=True,
            errors="replace",  # the name of a file may be invalid text
            timeout=_TIMEOUT_S,
            env={**env, "GIT_OPTIONAL_LOCKS": "0"},
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None
