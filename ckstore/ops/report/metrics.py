"""Write what the saves of an open store did to a file."""

from __future__ import annotations

import contextlib
import os
import stat
import tempfile
from collections.abc import Mapping
from pathlib import Path

from ckstore.errors import BadInput
from ckstore.model.reports.metrics import openmetrics
from ckstore.ops.context import Context
from ckstore.ops.os_errors import describe_os_error

_MODE = 0o644


def write_metrics(context: Context, store: Path, path: Path, labels: Mapping[str, str]) -> None:
    """Put the metrics of a store in the place of the file at `path`; see `ckstore.Store.write_metrics`."""
    _replace(context.layout.outside(path), openmetrics(context.totals.metrics(), str(store), labels))


def write_text(context: Context, path: Path | None, text: str, what: str) -> None:
    """Give the file at `path`, if one is given, this text, for a person who wants a report in a file."""
    try:
        if path is not None:
            _replace(context.layout.outside(path), text)
    except OSError as error:
        msg = f"{what} cannot be written to {path}: {describe_os_error(error)}"
        raise BadInput(msg, hint="give a file in a directory that is there and writable") from error


def _replace(path: Path, text: str) -> None:
    """Give the file at `path` this content in one step, readable for all; a pipe or a device is written to."""
    data = text.encode("utf-8")
    with contextlib.suppress(FileNotFoundError):
        if not stat.S_ISREG(mode := os.stat(path).st_mode) and not stat.S_ISDIR(mode):
            # A rename onto /dev/stdout or /dev/null would remove that device, as root.
            path.write_bytes(data)
            return
    # In the same directory, for the rename; a collector that reads meanwhile sees the old file or the new one.
    fd, temporary = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with open(fd, "wb") as file:
            file.write(data)
            # mkstemp gives 0600, and the collector is another user.
            os.fchmod(file.fileno(), _MODE)
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
