"""Limits of memory (Docker -m, Slurm --mem, Kubernetes): what does not fit is refused, and nothing is killed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ckstore import Store
from ckstore.errors import InsufficientSpace
from ckstore.fs.host import memory
from ckstore.saver.client.snapshot import Snapshot
from tests.machines.limited import LIMIT_MIB, MIB
from tests.support.requirements import require, require_root

_ROOT = Path(__file__).parents[2]
_TIMEOUT_S = 120.0
GIB = 2**30


def make_group(folder: Path, limit: object, used: object, cached: int = 0, *, version: int = 2) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    names = ("memory.max", "memory.current") if version == 2 else ("memory.limit_in_bytes", "memory.usage_in_bytes")
    for name, text in zip(names, (limit, used), strict=True):
        (folder / name).write_text(f"{text}\n")
    total = "" if version == 2 else "total_"
    stat = f"anon 1000\n{total}inactive_file {cached}\n{total}active_file 300\nshmem 77\n"
    (folder / "memory.stat").write_text(stat)


class Kernel:
    """What the files of a kernel say, below a directory."""

    def __init__(self, folder: Path, patch: pytest.MonkeyPatch) -> None:
        self.folder = folder
        self._patch = patch
        for name in ("_MEMINFO", "_OWN_GROUPS", "_MOUNTS"):
            patch.setattr(memory, name, str(folder / name))

    def says(self, own: str, mounts: str, free_kib: int = GIB) -> None:
        (self.folder / "_MEMINFO").write_text(f"MemTotal: 1 kB\nMemAvailable: {free_kib} kB\nSwapFree: 0 kB\n")
        (self.folder / "_OWN_GROUPS").write_text(own)
        (self.folder / "_MOUNTS").write_text(mounts)

    def v2(self, root: str = "/") -> str:
        return f"41 31 0:38 {root} {self.folder / 'v2'} rw,relatime shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"

    def v1(self, root: str = "/") -> str:
        cpu = f"30 31 0:30 {root} {self.folder / 'cpu'} rw - cgroup cgroup rw,cpu,cpuacct\n"
        return f"{cpu}35 31 0:32 {root} {self.folder / 'v1'} rw,relatime - cgroup cgroup rw,memory\n"


@pytest.fixture
def kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def available_bytes() -> int | None:
    found = memory.left()
    return None if found is None else found.nbytes


def test_what_a_control_group_leaves_is_counted_with_its_cache(kernel: Kernel) -> None:
    make_group(kernel.folder / "v2/outer", 5000, 4000, 2000)
    make_group(kernel.folder / "v2/outer/inner", "max", 100)
    kernel.says("0::/outer/inner\n", kernel.v2())

    assert available_bytes() == 1000 + 2300
    assert "v2/outer, whose limit is 5000" in str(memory.left())

    make_group(kernel.folder / "v2/outer", "max", 4000, 2000)
    assert available_bytes() == GIB * 1024


def test_version_1_is_asked_as_version_2_is(kernel: Kernel) -> None:
    """As Slurm makes them: the job has the limit, the step and the task have none."""
    job = kernel.folder / "v1/slurm/uid_1000/job_7"
    make_group(job, 9000, 4000, 200, version=1)
    make_group(job / "step_0/task_0", 2**63 - 4096, 3900, version=1)
    make_group(kernel.folder / "v1", 2**63 - 4096, 10**9, version=1)
    kernel.says(
        "9:name=systemd:/\n4:memory:/slurm/uid_1000/job_7/step_0/task_0\n1:cpu:/\n0::/\n", kernel.v1() + kernel.v2()
    )

    assert available_bytes() == 5000 + 500
    assert "job_7, whose limit is 9000" in str(memory.left())


@pytest.mark.parametrize("version", [1, 2])
def test_in_a_container_the_mount_shows_the_groups_of_the_container_alone(kernel: Kernel, version: int) -> None:
    make_group(kernel.folder / f"v{version}", 7000, 6000, version=version)
    mount = kernel.v1("/docker/abc") if version == 1 else kernel.v2("/docker/abc")
    for path in ("/docker/abc", "/docker/abc/", "/../elsewhere", "/"):
        kernel.says(f"4:memory:{path}\n" if version == 1 else f"0::{path}\n", mount)
        assert available_bytes() == 1000 + 300, path


def test_the_tightest_limit_counts_and_one_that_is_exceeded_leaves_nothing(kernel: Kernel) -> None:
    make_group(kernel.folder / "v2", 7000, 9000)
    kernel.says("0::/\n", kernel.v2(), free_kib=1)
    assert available_bytes() == 0

    make_group(kernel.folder / "v2", 7000, 1000)
    assert memory.left() == memory.Left(1024, "on this machine")


def test_where_the_kernel_says_nothing_nothing_is_refused(kernel: Kernel) -> None:
    assert memory.left() is None
    assert available_bytes() is None

    Snapshot(MIB).close()


def test_a_snapshot_that_does_not_fit_is_refused_before_a_page_is_touched(
    kernel: Kernel, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_group(kernel.folder / "v1", 200 * MIB, 50 * MIB, version=1)
    kernel.says("4:memory:/\n", kernel.v1())

    def touched(*_: object) -> int:
        raise AssertionError("memory was made")

    Snapshot(80 * MIB).close()
    monkeypatch.setattr(os, "memfd_create", touched)
    with pytest.raises(InsufficientSpace, match=r"snapshot of 88\.0 MiB.*are available in the.*use save"):
        Snapshot(88 * MIB)


@contextmanager
def real_group(version: int, limit_bytes: int) -> Iterator[Path]:
    """Make a control group with a limit; skip where this kernel keeps memory by the other version."""
    require_root()
    mounts = [
        Path(mount)
        for _, mount, kind, options in memory._mounts()
        if (kind == "cgroup2") == (version == 2) and (version == 2 or "memory" in options.split(","))
    ]
    mounts = [
        mount for mount in mounts if version == 1 or "memory" in (mount / "cgroup.controllers").read_text().split()
    ]
    if not mounts:
        pytest.skip(f"memory is not limited by control groups of version {version} on this machine")
    group = mounts[0] / f"ckstore-test-{os.getpid()}"
    if version == 2:
        (mounts[0] / "cgroup.subtree_control").write_text("+memory")
    group.mkdir()
    try:
        (group / ("memory.max" if version == 2 else "memory.limit_in_bytes")).write_text(str(limit_bytes))
        yield group
    finally:
        deadline = time.monotonic() + _TIMEOUT_S
        while (group / "cgroup.procs").read_text() and time.monotonic() < deadline:  # a saver ends after its trainer
            time.sleep(0.02)
        group.rmdir()


@pytest.mark.root
@pytest.mark.parametrize("version", [1, 2])
def test_a_training_in_a_real_control_group_is_told_and_goes_on(version: int, disk_path: Path) -> None:
    with real_group(version, LIMIT_MIB * MIB) as group:
        done = subprocess.run(
            [sys.executable, "-m", "tests.machines.limited", str(disk_path / "store")],
            check=False,
            capture_output=True,
            text=True,
            timeout=_TIMEOUT_S,
            cwd=_ROOT,
            preexec_fn=lambda: (group / "cgroup.procs").write_text(str(os.getpid())) and None,
        )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    refused = {name: found.pop(name) for name in ("save_async", "load")}
    assert set(found.values()) == {"done"}, found
    assert all(str(group) in said for said in refused.values()), refused
    assert "use save()" in refused["save_async"]


_FORBIDDING = """
import ctypes, platform, struct, sys
def forbid(number):
    # seccomp: BPF that loads the number of the system call, and answers EPERM to this one
    program = b"".join(struct.pack("HBBI", *line) for line in (
        (0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | 1), (0x06, 0, 0, 0x7FFF0000)))
    buffer = ctypes.create_string_buffer(program)
    libc = ctypes.CDLL(None, use_errno=True)
    fprog = struct.pack("HxxxxxxP", 4, ctypes.addressof(buffer))
    assert libc.prctl(38, 1, 0, 0, 0) == 0
    assert libc.prctl(22, 2, ctypes.c_char_p(fprog), 0, 0) == 0, ctypes.get_errno()
forbid({"x86_64": 319, "aarch64": 279}[platform.machine()])
"""
_WITHOUT_MEMFD = """
import json, os
import numpy as np
from ckstore import Store
from ckstore.errors import CkstoreError
from ckstore.fs import memory_file
try:
    os.memfd_create("x")
except PermissionError:
    pass
else:
    raise SystemExit("memfd_create is allowed")
before = sorted(os.listdir("/dev/shm"))
store = Store.open_or_init(sys.argv[1], run="r")
state = {f"layer.{n}.weight": np.full(2000, n) for n in range(600)}
found = {}
found["save_async"] = store.save_async(state, step=1).result(60).name
found["savers"] = len(store.savers())
found["load"] = len(store.load(1))
np.save("array.npy", np.arange(5)); store.commit(["array.npy"], run="files", step=1)
found["left"] = sorted(name for name in set(os.listdir("/dev/shm")) - set(before) if "ckstore" in name)
store.close()
memory_file.SHARED_MEMORY = "/nonexistent/shm"
store = Store.open(sys.argv[1], run="r")
try:
    found["refused"] = store.save_async({"w": np.arange(9)}, step=2).result(60).name
except CkstoreError as error:
    found["refused"] = str(error)
found["save"] = store.save({"w": np.arange(9)}, step=2).name
print(json.dumps(found))
"""


def test_without_memfd_the_memory_is_a_file_that_has_lost_its_name(tmp_path: Path) -> None:
    require(os.access("/dev/shm", os.W_OK), "needs /dev/shm")
    done = subprocess.run(
        [sys.executable, "-c", _FORBIDDING + _WITHOUT_MEMFD, str(tmp_path / "store")],
        check=False,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": f"{_ROOT}:{_ROOT / 'migrations'}"},
    )

    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert "memfd_create" in found["refused"]
    assert "save() needs neither" in found.pop("refused")
    assert found == {"save_async": "r@1", "savers": 1, "load": 600, "left": [], "save": "r@2"}


def test_a_load_that_does_not_fit_is_refused_and_a_part_of_it_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Store.init(tmp_path / "store") as store:
        store.save({"large": np.ones(12 * MIB, np.uint8), "small": np.arange(5)}, step=1)
        monkeypatch.setattr(
            "ckstore.ops.read.storage_read.left", lambda: memory.Left(20 * MIB, "in the control group /g")
        )
        with pytest.raises(InsufficientSpace, match="available in the control group /g"):
            store.load(1)
        assert list(store.load(1, select="small")) == ["small"]
