"""Show what a filesystem keeps of times: ``python -m tests.purge.times FOLDER``."""

from __future__ import annotations

import os
import sys
import tempfile

_ASKED_NS = 1_700_000_038_271_828_000


def main(folder: str) -> int:
    """Set a time in FOLDER, touch the file, and print what it has each time."""
    with tempfile.NamedTemporaryFile(dir=folder) as file:
        os.utime(file.fileno(), ns=(_ASKED_NS, _ASKED_NS))
        kept_ns = os.fstat(file.fileno()).st_mtime_ns
        os.utime(file.fileno())
        touched_ns = os.fstat(file.fileno()).st_mtime_ns
    print(f"asked for {_ASKED_NS} ns, has {kept_ns} ns; touched: {touched_ns % 10**9} ns after a full second")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
