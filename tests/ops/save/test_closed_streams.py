"""A training that was started without stdin, stdout and stderr, as by a service, saves what it was given.

The kernel hands out the lowest free number: without a stream of its own at it, a file of the store got number 1 or 2,
and what C code prints, of a driver or an allocator, went into it.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store

_PROGRAM = """
import os, sys
from contextlib import suppress
import numpy as np
from ckstore import Store

def noisy(call):
    def noise(*given):
        for fd in (0, 1, 2):
            with suppress(OSError):
                os.write(fd, b"a warning of the driver")
        return call(*given)
    return noise

path, how = sys.argv[1:]
os.fsync, os.fdatasync = noisy(os.fsync), noisy(os.fdatasync)
with Store.open_or_init(path) as store:
    if how == "save":
        store.save({"w": np.arange(100_000)}, step=1)
    else:
        store.save_async({"w": np.arange(100_000)}, step=1).result(60)
"""


@pytest.mark.parametrize("how", ["save", "save_async"])
def test_nothing_that_is_printed_without_streams_gets_into_a_file_of_the_store(tmp_path: Path, how: str) -> None:
    subprocess.run(
        ["sh", "-c", '"$0" -c "$1" "$2" "$3" <&- >&- 2>&-', sys.executable, _PROGRAM, str(tmp_path / "store"), how],
        check=True,
        timeout=120,
    )

    with Store.open(tmp_path / "store") as store:
        assert store.verify().ok
        assert np.array_equal(store.load(1)["w"], np.arange(100_000))
