"""What a test needs from the machine: else a visible skip, in continuous integration a failure.

A machine that checks every change must be able to run every test. If it cannot, a skip would hide
that a promise is no longer tried, so `CKSTORE_CI=1` (set by `.ci/run`) turns each of these into a
failure. A GPU is the one exception: ckstore builds and passes without.
"""

import importlib.util
import os
import shutil
from collections.abc import Iterable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest
from packaging.version import Version

IN_CI = os.environ.get("CKSTORE_CI", "") not in ("", "0")
"""Whether a test that cannot run here is a failure."""

CRASH_FULL = os.environ.get("CKSTORE_CRASH", "") == "full"
"""Whether the crash lanes try every point (`make crash`) instead of a sample of them."""

NEW_SAFETENSORS = pytest.mark.skipif(
    Version(version("safetensors")) < Version("0.8"), reason="older versions of safetensors lack some dtypes"
)
"""`constraints.txt` has a newer version, so only `make matrix` skips tests with this mark."""

_WHOLE = pytest.mark.whole


def representatives(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return `cases` for `parametrize`; those that are not `kept` run in `make crash` alone, or by their name.

    Args:
        cases: All of them, each a value or, for several parameters, a tuple.
        kept: Each stands for those that take the same way through the code.
    """
    every = [*cases]
    assert all(case in every for case in kept), f"{kept} are not all among {every}"
    values = [case if isinstance(case, tuple) else (case,) for case in every]
    return [
        pytest.param(*value, marks=() if case in kept else _WHOLE) for case, value in zip(every, values, strict=True)
    ]


SOAK_S = float(os.environ.get("CKSTORE_SOAK_S", "5"))
"""How long each soak lasts (`make soak` says 60, or what SOAK_S tells it)."""


def require(condition: object, reason: str) -> None:
    """Go on if `condition` is true; else skip with `reason`, or fail with it under CKSTORE_CI."""
    if condition:
        return
    if IN_CI:
        pytest.fail(f"this test must run in continuous integration, and cannot: {reason}")
    pytest.skip(reason)


def require_root() -> None:
    """Go on as root; else skip or fail."""
    require(os.geteuid() == 0, "needs root")


def require_program(name: str) -> Path:
    """Return where the program is, looking into the sbin folders too; else skip or fail."""
    found = shutil.which(name, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    require(found, f"needs the program {name}")
    return Path(str(found))


def require_fuse() -> None:
    """Go on where a process can show a filesystem by mfusepy and libfuse, or NFS stands in; else skip or fail."""
    if os.environ.get("CKSTORE_NFS"):
        return
    require(os.path.exists("/dev/fuse"), "needs /dev/fuse")
    require_program("fusermount3")
    require(importlib.util.find_spec("mfusepy") is not None, "needs mfusepy: pip install -c constraints.txt mfusepy")


def require_c_compiler() -> Path:
    """Return the system's C compiler; else skip or fail."""
    return require_program("cc")


def require_transformers() -> None:
    """Go on where transformers and accelerate are installed; else skip or fail."""
    found = all(importlib.util.find_spec(name) is not None for name in ("transformers", "accelerate"))
    require(found, "needs transformers and accelerate: pip install -c constraints.txt transformers accelerate")


def require_cuda() -> None:
    """Go on where torch sees a CUDA device; else skip, in continuous integration too."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("needs a CUDA device")
