"""A program that reads a checkpoint for long: `python -m ckstore_cli.demo.reader STORE REF`.

It maps the checkpoint, as an evaluation or a server of models does, says that it has it, and lets go when its
standard input ends.
"""

from __future__ import annotations

import sys

from ckstore import Store
from ckstore.errors import CkstoreError

READY = "ready"


def main() -> int:
    """Map, wait, let go; return the exit status."""
    _, path, ref = sys.argv
    try:
        with Store.open(path, readonly=True) as store:
            state = store.load(ref, mmap=True)
    except CkstoreError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_status
    print(READY, flush=True)
    sys.stdin.read()
    del state
    return 0


if __name__ == "__main__":
    sys.exit(main())
