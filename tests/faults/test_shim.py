"""The fault library hits what it says it hits; else what the other tests count means nothing."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import textwrap
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from tests.faults.calls import CALLS
from tests.faults.shim import Family, Fault, built, environment
from tests.support.requirements import require_program

_TIMEOUT_S = 60.0
_ROOT = Path(__file__).parents[2]
_CHANGING = {"WRITE", "CREATE", "NAME", "META", "LINK"}

pytestmark = pytest.mark.crash


@cache
def outcomes(folder: Path) -> list[dict[str, Any]]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.faults.calls", str(folder)],
        env={**os.environ, "PYTHONPATH": str(_ROOT), "LD_PRELOAD": str(built())},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=True,
    )
    found: list[dict[str, Any]] = json.loads(done.stdout)
    return found


@pytest.fixture(scope="module")
def every_call(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    return outcomes(tmp_path_factory.mktemp("calls"))


def run(code: str, fault: Fault, root: Path, log: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `code` in a Python that has the library preloaded; `root` is its first argument."""
    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(root)],
        env={**os.environ, **environment(fault, root, log)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )


def logged(log: Path) -> list[str]:
    return log.read_text().splitlines() if log.exists() else []


def test_every_function_of_the_library_is_tried_here() -> None:
    nm = require_program("nm")
    out = subprocess.run([nm, "-D", "--defined-only", built()], capture_output=True, text=True, check=True)
    exported = {line.split()[-1] for line in out.stdout.splitlines() if line.split()[-2] == "T"}

    tried = {call.name for call in CALLS} | {"usleep", "nanosleep"}
    assert {name for name in exported if not name.startswith("fault_")} == tried


def test_where_every_call_fails_nothing_sleeps_for_long_in_vain(tmp_path: Path) -> None:
    code = """
        import ctypes, os, sys, time

        class Time(ctypes.Structure):
            _fields_ = [("s", ctypes.c_long), ("ns", ctypes.c_long)]

        libc = ctypes.CDLL(None)
        for asleep in (lambda: libc.usleep(120_000_000), lambda: libc.nanosleep(ctypes.byref(Time(120, 0)), None)):
            try:
                os.mkdir(sys.argv[1] + "/new")
            except OSError:
                asleep()
    """

    done = run(code, Fault("error", 1, error=errno.EIO, sticky=True), tmp_path)  # in much less than four minutes

    assert (done.returncode, done.stderr) == (0, "")


def test_every_call_is_counted_once_and_works_as_without_the_library(
    every_call: list[dict[str, Any]],
) -> None:
    for call in every_call:
        seen = call["count"]
        assert (seen["count"], seen["hits"], seen["errno"], seen["killed"]) == (1, 0, 0, False), call["name"]
        assert seen["given"] >= 0, call["name"]
        if call["family"] in _CHANGING and "chown" not in call["name"]:
            assert seen["changed"], call["name"]


def test_a_call_that_is_made_to_fail_reports_the_error_and_changes_nothing(
    every_call: list[dict[str, Any]],
) -> None:
    for call in every_call:
        seen = call["error"]
        failed = errno.EDQUOT if call["name"].startswith("posix_") else -1
        assert (seen["given"], seen["errno"], seen["hits"]) == (failed, errno.EDQUOT, 1), call["name"]
        assert not seen["changed"], call["name"]


def test_a_kill_before_a_call_leaves_nothing_of_it_and_a_kill_after_leaves_all(
    every_call: list[dict[str, Any]],
) -> None:
    for call in every_call:
        assert call["kill-before"]["killed"], call["name"]
        assert call["kill-after"]["killed"], call["name"]
        assert not call["kill-before"]["changed"], call["name"]
        assert call["kill-after"]["changed"] == call["count"]["changed"], call["name"]


def test_python_is_seen_through_every_function_that_a_store_uses(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    code = """
        import ctypes, os, sys
        root = sys.argv[1]
        os.mkdir(root)
        fd = os.open(root + "/a", os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o444)
        os.posix_fallocate(fd, 0, 100)
        os.write(fd, b"12"), os.pwrite(fd, b"34", 2)
        os.writev(fd, [b"5"]), os.pwritev(fd, [b"6"], 9)
        os.ftruncate(fd, 50), os.fchmod(fd, 0o400), os.utime(fd, ns=(5, 5))
        os.fsync(fd), os.fdatasync(fd)
        os.close(fd)
        os.link(root + "/a", root + "/b")
        os.rename(root + "/b", root + "/c"), os.replace(root + "/c", root + "/d")
        directory = os.open(root, os.O_RDONLY)
        os.link("a", "e", src_dir_fd=directory, dst_dir_fd=directory)
        os.rename("e", "f", src_dir_fd=directory, dst_dir_fd=directory)
        os.unlink("f", dir_fd=directory)
        os.mkdir("g", dir_fd=directory), os.rmdir("g", dir_fd=directory)
        os.symlink("a", root + "/h"), os.chmod(root + "/a", 0o444), os.utime(root + "/a", ns=(6, 6))
        libc = ctypes.CDLL(None, use_errno=True)
        assert libc.renameat2(-100, (root + "/a").encode(), -100, (root + "/d").encode(), 2) == 0
        os.unlink(root + "/h"), os.fsync(directory)
    """

    done = run(code, Fault("count", 0), root, log)

    assert done.returncode == 0, done.stderr
    seen = [Family(int(line.split()[1])).name for line in logged(log)]  # which name it has differs between Pythons
    opened, written = ["CREATE", "CREATE", "META"], ["WRITE"] * 4
    told, linked = ["META"] * 3 + ["SYNC"] * 2, ["LINK", "NAME", "NAME", "LINK", "NAME", "NAME"]
    rest = ["CREATE", "NAME", "CREATE", "META", "META", "NAME", "NAME", "SYNC"]
    assert seen == opened + written + told + linked + rest


def test_what_the_kernel_is_given_is_told_on_demand_and_a_hook_is_called_before_the_call(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    code = """
        import os, sys
        from pathlib import Path
        from tests.faults.shim import Family, Fault, Preloaded
        root, log = Path(sys.argv[1]), Path(sys.argv[1] + "/../log").resolve()
        os.mkdir(root)
        fd = os.open(root, os.O_RDONLY)
        shim, seen = Preloaded(), []
        shim.log_raw(wanted=True)
        shim.hook(lambda path: seen.append((path, os.listdir(root))))
        shim.arm(Fault("hook", 2, families=Family.MUTATING | Family.LOOK), root, log)
        os.mkdir("a", dir_fd=fd)
        os.rename("a", root / "b", src_dir_fd=fd)
        os.stat("b", dir_fd=fd, follow_symlinks=False)
        shim.disarm()
        assert seen == [(str(root / "a"), ["a"])], seen
        print(fd)
    """

    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(root)],
        env={**os.environ, "LD_PRELOAD": str(built()), "PYTHONPATH": str(_ROOT)},
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    fd = done.stdout.strip()
    assert [line.partition("\t")[2] for line in logged(log)] == [
        f"{fd} 0 a",
        f"{fd} 0 a\t-100 {root}/b",
        f"{fd} 100 b",
    ]


def test_sqlite_is_seen_down_to_its_shared_memory(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    code = """
        import os, sqlite3, sys
        os.mkdir(sys.argv[1])
        with sqlite3.connect(sys.argv[1] + "/catalog.db") as db:
            db.execute("PRAGMA journal_mode=WAL")
            db.execute("PRAGMA synchronous=FULL")
            db.execute("CREATE TABLE t (x)")
            db.execute("INSERT INTO t VALUES (1)")
        db.close()
    """

    done = run(code, Fault("count", 0), root, log)

    assert done.returncode == 0, done.stderr
    seen = {tuple(line.split()[2:]) for line in logged(log)}
    for name, file in (
        ("pwrite64", "catalog.db-wal"),
        ("fdatasync", "catalog.db-wal"),
        ("pwrite64", "catalog.db"),
        ("fdatasync", "catalog.db"),
        ("ftruncate64", "catalog.db-shm"),
        ("unlink", "catalog.db-wal"),
    ):
        assert (name, file) in seen


def test_calls_of_many_threads_get_each_number_once(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    code = """
        import os, sys, threading
        def work(name):
            fd = os.open(f"{sys.argv[1]}/{name}", os.O_CREAT | os.O_WRONLY)
            for _ in range(99):
                os.write(fd, b"x")
            os.close(fd)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        [t.start() for t in threads], [t.join() for t in threads]
    """

    done = run(code, Fault("count", 0), root, log)

    assert done.returncode == 0, done.stderr
    assert sorted(int(line.split()[0]) for line in logged(log)) == list(range(1, 801))


def test_a_kill_in_one_thread_ends_all_of_them(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    code = """
        import os, sys, threading, time
        threading.Thread(target=time.sleep, args=(60,)).start()
        os.mkdir(sys.argv[1] + "/a"), os.mkdir(sys.argv[1] + "/b"), os.mkdir(sys.argv[1] + "/c")
    """

    done = run(code, Fault("kill-after", 2), root, log)

    assert done.returncode == -signal.SIGKILL
    assert sorted(p.name for p in root.iterdir()) == ["a", "b"]
    assert logged(log) == ["1 2 mkdir a", "2 2 mkdir b *"]


@pytest.mark.parametrize(
    "path,counted",
    [
        ("{root}/x", 1),
        ("{root}/../root/./y//../x", 1),
        ("x", 1),
        ("../root/x", 1),
        ("../x", 0),
        ("{root}x", 0),
        ("{root}/../x", 0),
    ],
)
def test_only_what_lies_below_the_root_is_counted(tmp_path: Path, path: str, counted: int) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    (root / "y").mkdir(parents=True)
    code = f"import os; os.chdir({str(root)!r}); os.mkdir({path.format(root=root)!r})"

    done = run(code, Fault("count", 0), root, log)

    assert done.returncode == 0, done.stderr
    assert len(logged(log)) == counted


def test_a_rename_into_the_root_and_one_out_of_it_are_counted(tmp_path: Path) -> None:
    root, log = tmp_path / "root", tmp_path / "log"
    root.mkdir()
    (tmp_path / "a").mkdir()
    code = f"""
        import os
        os.chdir({str(tmp_path)!r})
        os.rename("a", "root/b"), os.rename("root/b", "c"), os.rename("c", "d")
    """

    done = run(code, Fault("count", 0), root, log)

    assert done.returncode == 0, done.stderr
    assert len(logged(log)) == 2


@pytest.mark.parametrize(
    "call",
    ["os.write(fd, data)", "os.writev(fd, [data[:100], data[100:]])", "os.pwritev(fd, [data], 0)"],
)
def test_a_short_write_writes_half_in_whole_pages(tmp_path: Path, call: str) -> None:
    root = tmp_path / "root"
    root.mkdir()
    code = f"""
        import os, sys
        fd = os.open(sys.argv[1] + "/a", os.O_CREAT | os.O_WRONLY)
        data = bytes(range(250)) * 80
        print({call}, {call})
    """

    done = run(code, Fault("short", 1, families=Family.WRITE), root)

    assert done.stdout.split() == ["8192", "20000"], done.stderr


def test_a_sticky_error_stays_and_a_single_one_does_not(tmp_path: Path) -> None:
    code = """
        import os, sys
        for name in "abcd":
            try:
                os.mkdir(sys.argv[1] + "/" + name)
            except OSError as error:
                print(name, error.errno)
    """
    for sticky, refused in ((False, "b 28"), (True, "b 28 c 28 d 28")):
        root = tmp_path / str(sticky)
        root.mkdir()

        done = run(code, Fault("error", 2, errno.ENOSPC, sticky=sticky), root)

        assert " ".join(done.stdout.split()) == refused, done.stderr


def test_a_failing_close_closes(tmp_path: Path) -> None:
    code = """
        import os, sys
        fd = os.open(sys.argv[1], os.O_RDONLY)
        for _ in range(2):
            try:
                os.close(fd)
            except OSError as error:
                print(error.errno)
    """

    done = run(code, Fault("error", 1, errno.EIO, families=Family.CLOSE), tmp_path)

    assert done.stdout.split() == [str(errno.EIO), str(errno.EBADF)], done.stderr


_FSYNC_TWICE = """
    import os, sys
    from tests.faults.shim import Family, Fault, Preloaded
    from pathlib import Path
    shim, root = Preloaded(), Path(sys.argv[1])
    shim.arm(Fault("error", 1, 5, families=Family.SYNC), root, root.parent / "log")
    def written():
        fd = os.open(root / "a", os.O_CREAT | os.O_EXCL | os.O_WRONLY)
        os.write(fd, b"x")
        return fd
    fd = written()
    inode = os.fstat(fd).st_ino
    try:
        os.fsync(fd)
    except OSError as error:
        print(error.errno)
    {then}
    os.fsync(fd)
    print(shim.second_syncs)
"""


@pytest.mark.parametrize(
    "then,second_syncs",
    [
        ("pass", 1),
        ("os.close(fd); fd = os.open(root / 'a', os.O_RDONLY)", 1),
        ("os.rename(root / 'a', root / 'b'); fd = os.open(root / 'b', os.O_RDONLY)", 1),
        ("os.close(fd); os.unlink(root / 'a'); fd = written()", 0),
    ],
    ids=["same descriptor", "opened again", "renamed", "written again"],
)
def test_a_second_fsync_of_a_file_whose_first_one_failed_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, then: str, second_syncs: int
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(_ROOT))
    root = tmp_path / "root"
    root.mkdir()

    done = run(_FSYNC_TWICE.format(then=then), Fault("count", 0), root)

    assert done.stdout.split() == ["5", str(second_syncs)], done.stderr


def test_settings_that_the_library_does_not_understand_end_the_process(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", ""],
        env={
            **os.environ,
            "LD_PRELOAD": str(built()),
            "FAULT_ROOT": str(tmp_path),
            "FAULT_MODE": "explode",
        },
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )

    assert done.returncode == 125
    assert "does not understand" in done.stderr
