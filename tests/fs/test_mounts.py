"""What is said of a place is true layer by layer: real mounts, and what is not known is not called durable."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckstore import Store
from ckstore.errors import CkstoreError
from ckstore.fs.host import mounts, statfs
from ckstore.model.doctor.place import PlaceFacts, check_place, why_not_durable, why_unknown
from tests.support.loopfs import loop_filesystem
from tests.support.requirements import require, require_fuse, require_program, require_root
from tests.support.shared_folder import shared_folder

ROOT = Path(__file__).resolve().parents[2]
_TELL = """
import json, sys
from pathlib import Path
from ckstore.fs.host.mounts import examine
from ckstore.model.doctor.place import why_not_durable, why_unknown
facts = examine(Path(sys.argv[1]))
print(json.dumps([facts.durable, why_not_durable(facts), why_unknown(facts), facts.other_hosts]))
"""


def mount(*words: object, at: Path) -> None:
    require_root()
    at.mkdir(exist_ok=True)
    done = subprocess.run(["mount", *map(str, words), str(at)], capture_output=True, text=True, check=False)
    require(done.returncode == 0, f"cannot mount {words}: {done.stderr.strip()}")


@contextmanager
def mounted(*words: object, at: Path) -> Iterator[Path]:
    mount(*words, at=at)
    try:
        yield at
    finally:
        subprocess.run(["umount", str(at)], check=True, timeout=30)


@contextmanager
def overlay(upper: Path, at: Path, options: str = "") -> Iterator[Path]:
    """Mount an overlay whose upper layer is in the directory `upper`."""
    for name in ("lower", "up per", "work"):
        (upper / name).mkdir()
    layers = f"lowerdir={upper}/lower,upperdir={upper}/up per,workdir={upper}/work{options}"
    with mounted("-t", "overlay", "-o", layers, "none", at=at) as there:
        yield there


def judged(path: Path) -> tuple[bool, str, str]:
    facts = mounts.examine(path)
    return facts.durable, why_not_durable(facts), why_unknown(facts)


def judged_behind(hiding: str, path: Path) -> list[Any]:
    """Judge a place in a namespace of mounts in which a shell script hides something; also whether it is shared."""
    require_root()
    require_program("unshare")
    command = f"{hiding}\nexec {sys.executable} -c {_quoted(_TELL)} {path}"
    done = subprocess.run(["unshare", "--mount", "sh", "-ec", command], check=False, capture_output=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr.decode()
    told: list[Any] = json.loads(done.stdout)
    return told


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


@pytest.mark.parametrize("kind", ["ext4", "xfs", "btrfs"])
def test_what_keeps_its_promises_is_durable_in_a_file_too(kind: Any, tmp_path: Path) -> None:
    with loop_filesystem(kind, 300 if kind == "xfs" else 128, tmp_path) as place:
        assert judged(place) == (True, "", "")
        below = mounts.examine(place).below
        assert below is not None
        assert Path(below.path) == tmp_path


def test_doctor_says_what_lies_below_a_filesystem_in_a_file(tmp_path: Path) -> None:
    with (
        loop_filesystem("ext4", 160, tmp_path, mkfs_options=("-O", "^has_journal")) as without,
        loop_filesystem("ext4", 64, without) as place,
    ):
        facts = mounts.examine(place)
        (found,) = (finding for finding in check_place(facts) if finding.what == "durability")

        assert facts.durable
        assert found.level == "note"
        assert f"its files are in {without}, which is on ext4 without a journal" in found.found


def test_ext2_has_no_journal(tmp_path: Path) -> None:
    require_root()
    image = tmp_path / "image"
    with image.open("wb") as file:
        file.truncate(32 * 2**20)
    made = subprocess.run([require_program("mkfs.ext2"), "-q", image], check=False, capture_output=True)
    assert made.returncode == 0
    with mounted("-t", "ext2", "-o", "loop", image, at=tmp_path / "mount") as place:
        durable, why, unknown = judged(place)
        with Store.init(place / "store") as store:
            info = store.save({"x": 1}, step=1)
            assert any("is on ext2: after a power cut it may lose" in note for note in store.warnings)

    assert (durable, why, unknown) == (False, why_not_durable(PlaceFacts("", "ext2")), "")
    assert not info.durable


def test_an_overlay_that_is_mounted_volatile_is_not_durable(tmp_path: Path) -> None:
    with loop_filesystem("ext4", 64, tmp_path) as below, overlay(below, tmp_path / "merged", ",volatile") as place:
        durable, why, _ = judged(place)
        with Store.init(place / "store") as store:
            assert not store.save({"x": 1}, step=1).durable
            assert any("mounted volatile: fsync has no effect" in note for note in store.warnings)

    assert (durable, why.startswith("is on an overlay that is mounted volatile")) == (False, True)


def test_an_overlay_is_as_durable_as_its_upper_layer(tmp_path: Path) -> None:
    merged = tmp_path / "merged"
    with loop_filesystem("ext4", 64, tmp_path) as below, overlay(below, merged):
        assert judged(merged) == (True, "", "")
    with mounted("-t", "tmpfs", "none", at=tmp_path / "memory") as memory, overlay(memory, merged):
        durable, why, _ = judged(merged)
        assert (durable, f"keeps its files in {memory}/up per, which is on tmpfs" in why) == (False, True)
    with (
        loop_filesystem("ext4", 64, tmp_path, mkfs_options=("-O", "^has_journal")) as without,
        overlay(without, merged),
    ):
        durable, why, _ = judged(merged)
        assert (durable, "which is on ext4 without a journal" in why) == (False, True)


def test_an_overlay_whose_upper_layer_cannot_be_reached_is_not_called_durable(tmp_path: Path) -> None:
    """As in a container: the path is that of the host, where nothing is, or something else."""
    with loop_filesystem("ext4", 64, tmp_path) as below, overlay(below, tmp_path / "merged") as place:
        for hiding in (
            f"mount -t tmpfs none {below}",
            f"mount -t tmpfs none {below}; mkdir '{below}/up per' {below}/work",
        ):
            durable, why, unknown, _ = judged_behind(hiding, place)
            assert (durable, why) == (False, "")
            assert "the upper layer of the overlay is not visible" in unknown


def test_memory_is_seen_through_a_file_on_it(tmp_path: Path) -> None:
    with mounted("-t", "tmpfs", "none", at=tmp_path / "memory") as memory, loop_filesystem("ext4", 64, memory) as place:
        durable, why, _ = judged(place)
    with mounted("-t", "ramfs", "none", at=tmp_path / "ram") as ram:
        assert judged(ram)[:2] == (False, "is on ramfs, which is memory: nothing survives a restart of the machine")

    assert not durable
    assert why.startswith(f"keeps its files in {memory}, which is on tmpfs, which is memory")


@pytest.mark.parametrize(
    "hiding,why",
    [
        ("mount -t tmpfs none /sys", "/sys/fs/ext4 does not show whether /dev/loop"),
        ("mount -t tmpfs none /proc", "/proc/self/mountinfo does not show its filesystem"),
    ],
)
def test_where_proc_or_sys_is_missing_nothing_is_called_durable(hiding: str, why: str, tmp_path: Path) -> None:
    with loop_filesystem("ext4", 32, tmp_path) as place:
        durable, known, unknown, shared = judged_behind(hiding, place)

    assert (durable, known) == (False, "")
    assert unknown.startswith(why)
    assert not shared


def test_where_proc_is_missing_a_shared_filesystem_is_still_shared(tmp_path: Path) -> None:
    """Taken for local, its live saves of other hosts would be swept, and what they have open freed."""
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "shown") as place:
        durable, _, unknown, shared = judged_behind("mount -t tmpfs none /proc", place)

    assert shared
    assert not durable
    assert unknown == "a program provides it (fuse)"


@pytest.mark.parametrize("number,shared", [(0x6969, True), (0x0BD00BD0, True), (0xABCDEF, True), (0xEF53, False)])
def test_without_the_table_the_number_of_a_filesystem_says_whether_it_is_shared(
    number: int, shared: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hide(monkeypatch, errno.EACCES)
    monkeypatch.setattr(statfs, "magic_number", lambda _: number)

    facts = mounts.examine(tmp_path)

    assert facts.other_hosts == shared
    assert not facts.durable


@pytest.mark.parametrize("code", [errno.EMFILE, errno.ENOMEM, errno.EIO])
def test_a_table_that_cannot_be_read_now_is_an_error_and_no_answer(
    code: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Store.init(tmp_path / "store").close()
    hide(monkeypatch, code)

    with pytest.raises(OSError, match=os.strerror(code)):
        mounts.examine(tmp_path)
    with pytest.raises(CkstoreError, match=os.strerror(code)):
        Store.open(tmp_path / "store")


def hide(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    """Let reading the table of mounts fail."""
    read = Path.read_text

    def failing(path: Path, *args: Any, **given: Any) -> str:
        if path.name == "mountinfo":
            raise OSError(code, os.strerror(code), str(path))
        return read(path, *args, **given)

    monkeypatch.setattr(Path, "read_text", failing)


def test_what_a_program_shows_is_not_called_durable(tmp_path: Path) -> None:
    require_root()
    require_fuse()
    (tmp_path / "real").mkdir()
    with shared_folder(tmp_path / "real", tmp_path / "shown", "bindfs") as shown:
        assert judged(shown) == (False, "", "a program provides it (fuse.bindfs)")
        with Store.init(shown / "store") as store:
            assert not store.save({"x": 1}, step=1).durable
            assert any("could not be determined: a program provides it" in note for note in store.warnings)


kinds = st.sampled_from(
    ["", "ext2", "ext3", "ext4", "xfs", "btrfs", "tmpfs", "overlay", "nfs4", "fuse.sshfs", "fuseblk", "zfs", "9p"]
)
options = st.frozensets(st.sampled_from(["rw", "volatile", "nobarrier", "barrier=0", "relatime"]))


@st.composite
def places(draw: st.DrawFn) -> PlaceFacts:
    """Draw a filesystem with up to two below it."""
    below = None
    for _ in range(draw(st.integers(1, 3))):
        journal = draw(st.sampled_from([None, True, False]))
        below = PlaceFacts("/p", draw(kinds), "/m", "/dev/x", draw(options), journal, below)
    assert below is not None
    return below


@given(facts=places())
def test_durable_is_what_is_known_and_every_other_place_has_a_reason(facts: PlaceFacts) -> None:
    (found,) = (finding for finding in check_place(facts) if finding.what == "durability")

    assert facts.durable == (found.level in ("ok", "note"))
    assert facts.durable or why_not_durable(facts) or why_unknown(facts)
    if facts.durable:
        assert facts.kind in {"ext3", "ext4", "xfs", "btrfs", "overlay"}
        assert not facts.options & {"volatile", "nobarrier", "barrier=0"}
        assert facts.kind not in {"ext3", "ext4"} or facts.journal
        assert facts.kind != "overlay" or (facts.below is not None and facts.below.durable)
