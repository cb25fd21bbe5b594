"""Who has a file open or mapped, found in /proc."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ckstore.fs import holders
from ckstore.fs.holders import deleted_but_open, find_holders
from ckstore.fs.mapping import FilePart, map_side_by_side
from tests.support.holding import holding

pytestmark = pytest.mark.usefixtures("every_process")

SIZE = 200_000


def made(folder: Path, name: str = "file") -> Path:
    path = folder / "a" / "b" / "c" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"x" * SIZE)
    return path


def inode(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


@pytest.mark.parametrize(
    "how, said",
    [
        ("read", "descriptor"),
        ("opath", "descriptor"),
        ("mapped_shared", "mapping"),
        ("mapped_private", "mapping"),
        ("other_name", "descriptor"),
    ],
)
def test_a_holder_is_named_with_pid_command_way_and_path(tmp_path: Path, how: str, said: str) -> None:
    path = made(tmp_path)
    with holding(how, path) as process:
        found = find_holders([inode(path)]).holders

        (holder,) = found[inode(path)]
        assert holder.pid == process.pid
        assert "holding.py" in holder.command
        assert holder.how.startswith(said)
        assert holder.target.startswith(str(tmp_path))

    assert find_holders([inode(path)]).holders == {}


@given(held=st.sets(st.integers(0, 9)), asked=st.sets(st.integers(0, 9)), mapped=st.sets(st.integers(0, 9)))
@settings(max_examples=15, suppress_health_check=list(HealthCheck))
def test_exactly_what_is_asked_for_and_held_is_found(
    tmp_path: Path, held: set[int], asked: set[int], mapped: set[int]
) -> None:
    paths = [made(tmp_path, str(number)) for number in range(10)]
    fds = [os.open(paths[number], os.O_RDONLY) for number in held]
    maps = []
    for number in mapped:
        with paths[number].open("rb") as file:
            maps.append(map_side_by_side([FilePart(file.fileno(), SIZE)], SIZE))
    try:
        found = find_holders([inode(paths[number]) for number in asked]).holders
    finally:
        for fd in fds:
            os.close(fd)
        maps.clear()

    assert set(found) == {inode(paths[number]) for number in (held | mapped) & asked}
    for number in asked:
        ways = {one.how.split()[0] for one in found.get(inode(paths[number]), ())}
        assert ("descriptor" in ways) == (number in held)
        assert ("mapping" in ways) == (number in mapped)


def test_asking_for_nothing_looks_at_nothing() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "listdir", lambda *_: pytest.fail("looked"))

        assert find_holders([]).holders == {}


def test_processes_that_end_meanwhile_do_no_harm(tmp_path: Path) -> None:
    path = made(tmp_path)
    ended = subprocess.Popen(["true"])
    ended.wait()
    real = os.listdir
    ghosts = [str(ended.pid), str(2**22 - 7)]
    with pytest.MonkeyPatch.context() as patch, path.open("rb"):
        patch.setattr(os, "listdir", lambda at=".": [*real(at), *ghosts] if at == "/proc" else real(at))
        found = find_holders([inode(path)])
        leaks = deleted_but_open(inode(path)[0])

    assert [one.pid for one in found.holders[inode(path)]] == [os.getpid()]
    assert not [one for one in leaks if str(tmp_path) in one.holders[0].target]


@pytest.mark.root
def test_processes_that_may_not_be_looked_at_are_counted(tmp_path: Path) -> None:
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.setgid(65534)
        os.setuid(65534)
        os.write(write, str(find_holders([(1, 1)]).unseen_count).encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as file:
        count = int(file.read())
    os.waitpid(child, 0)

    assert count > 0


@pytest.mark.parametrize("how", ["read", "opath", "mapped_shared"])
def test_a_deleted_file_that_a_process_has_is_a_leak_until_it_is_let_go(tmp_path: Path, how: str) -> None:
    path = made(tmp_path)
    device, number = inode(path)
    with holding(how, path) as process:
        assert number not in [one.inode for one in deleted_but_open(device)]
        path.unlink()
        (found,) = [one for one in deleted_but_open(device) if one.inode == number]

        told = how != "mapped_shared" or os.geteuid() == 0  # what is only mapped the kernel shows to root alone
        assert found.nbytes >= SIZE if told else found.nbytes == 0
        assert {one.pid for one in found.holders} == {process.pid}
        assert "deleted" in found.holders[0].target

    assert number not in [one.inode for one in deleted_but_open(device)]


def test_a_name_that_was_removed_is_no_leak_while_the_file_has_another(tmp_path: Path) -> None:
    path = made(tmp_path)
    device, number = inode(path)
    os.link(path, tmp_path / "other")
    with path.open("rb"):
        path.unlink()

        assert number not in [one.inode for one in deleted_but_open(device)]


def test_the_command_of_a_process_is_its_command_line_shortened() -> None:
    long = [sys.executable, "-c", "print(flush=True); input()", "x" * 500]
    with subprocess.Popen(long, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()  # until then it may still be this program, about to become that one
        found = holders.command_of(process.pid)
        process.communicate(timeout=30)

    assert len(found) <= 200
    assert found.endswith("x…")
    assert holders.command_of(2**22 - 7) == "?"
