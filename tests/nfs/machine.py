"""Run tests on NFS: ``python -m tests.nfs.machine OPTIONS [PYTEST_ARGS …]``, such as ``vers=4.2 tests/cluster``.

A user-mode Linux is started, which is a kernel in a process and needs no rights. In it are a server, nfsd, and as two
hosts two clients, each in a network namespace of its own; what a test asks `shared_folder` for is exported by the one
and mounted by these, with OPTIONS (nfs(5)): ``vers=4.2``, ``vers=3``, or ``vers=3,local_lock=all``. There are no
switches, so nothing fails: of `test_switches.py` only ``-k "nothing fails"`` belongs here, `test_dying.py` does not.

It needs the packages user-mode-linux, nfs-kernel-server, nfs-common, rpcbind and kmod of Debian, installed or unpacked
(``dpkg -x``) in the folder that CKSTORE_NFS_TOOLS names. What is written is lost at the end; the filesystem of this
machine is only read. The kernel of Debian 12 (6.1) does not start on processors with AMX.

Tests run in their short form unless CKSTORE_CRASH is ``full``. ``tests/purge -k "shared and not whole"`` then runs 500
histories instead of 6, which takes two hours: one history takes 13 to 16 seconds on a busy machine with two cores.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
_MODULES = Path("/usr/lib/uml/modules")
_DISK_BYTES = 3 * 2**30
_MEMORY = "3G"
_ENDED = "the tests ended with"
"""What `machine.sh` prints last, before the status of pytest."""
_NOT_STARTED = 2


def main(arguments: list[str]) -> int:
    """Return the exit status of pytest."""
    kernel = shutil.which("linux.uml")
    if kernel is None or not arguments:
        print(__doc__, file=sys.stderr)
        return _NOT_STARTED
    options, *tests = arguments
    with tempfile.TemporaryDirectory(prefix="ckstore-nfs-", dir="/var/tmp") as folder:
        disk = Path(folder) / "disk"
        with disk.open("xb") as file:
            file.truncate(_DISK_BYTES)
        job = Path(folder) / "init"
        job.write_text(_job(options, tests))
        job.chmod(0o755)
        return _run([kernel, *_arguments(disk, job, folder)])


def _job(options: str, tests: list[str]) -> str:
    """Return what the kernel starts first."""
    said = {name: value for name, value in os.environ.items() if name.startswith(("CKSTORE_", "OMP_"))}
    exports = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in said.items())
    words = shlex.join([str(_MODULES), str(ROOT), sys.executable, options, *tests])
    return f"#!/bin/bash\n{exports}exec /bin/bash {shlex.quote(str(ROOT / 'tests/nfs/machine.sh'))} {words}\n"


def _arguments(disk: Path, job: Path, folder: str) -> list[str]:
    root = ["root=none", "rootfstype=hostfs", "rootflags=/", "ro", f"init={job}"]
    console = ["con=null", "con0=null,fd:1", "quiet"]
    return [f"mem={_MEMORY}", f"ubd0={disk}", *root, *console, f"uml_dir={folder}"]


def _run(command: list[str]) -> int:
    """Pass on what the machine says; return the status that it says last."""
    status = _NOT_STARTED
    process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace")
    assert process.stdout is not None
    for line in process.stdout:
        print(line, end="", flush=True)
        if line.startswith(_ENDED):
            status = int(line.removeprefix(_ENDED))
    process.wait()
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
