"""What a remote in a directory has acknowledged survives a power cut, and no object is there in part.

The writes are those of a real filesystem to a disk that logs them; see `images.py`.
"""

from __future__ import annotations

import itertools
import json
import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ckstore.remote.service.directory_objects import DirectoryObjects
from ckstore.remote.service.target import Target
from tests.crash.harness import KINDS
from tests.crash.images import Image, Log
from tests.crash.object_acts import State, acts
from tests.crash.recorder import read_log
from tests.crash.recording import record
from tests.support.coverage import covered
from tests.support.mounts import mount, unmount
from tests.support.requirements import CRASH_FULL
from tests.support.volume import Kind, Volume

pytestmark = [pytest.mark.crash, pytest.mark.root]

_IMAGES = 600 if CRASH_FULL else 40


def _doing(store: Path, journal: Path) -> None:
    command = [sys.executable, "-m", "tests.crash.object_acts", str(store), str(journal)]
    subprocess.run(command, check=True, timeout=120, cwd=Path(__file__).parents[2])


def _allowed(log: Log, image: Image) -> tuple[State, State]:
    """Return what may be there: after the last act that was acknowledged, or after the one that was under way."""
    marks = b"".join(entry.data for entry in log.entries[: image.known] if entry.what == "mark").decode()
    states: list[State] = [{}, *(state for _, state in acts())]
    done = begun = 0
    for line in marks.splitlines():
        word, number = json.loads(line)
        if word == "done":
            done = number + 1
        begun = number + 1
    return states[done], states[begun]


def _there(mountpoint: Path) -> State:
    if not (mountpoint / "store").is_dir():
        return {}
    objects = DirectoryObjects(Target("directory", str(mountpoint / "store")))
    return {one.key: objects.get(one.key, 2**20) or b"" for one in objects.list("")}


def _wrong(volume: Volume, log: Log, image: Image, before: State, after: State) -> str:
    """Return what an image holds that may not be; empty: nothing."""
    writes = ((log.entries[at].offset, log.entries[at].data[:nbytes]) for at, nbytes in log.contents(image))
    volume.restore(volume.empty, writes)
    with volume.mounted() as mountpoint:
        there = _there(mountpoint)
    # The act under way may have done each of its parts, or not.
    keys = {*there, *before, *after}
    wrong = sorted(key for key in keys if there.get(key) not in (before.get(key), after.get(key)))
    return f"{wrong}; there: {sorted(there)}" if wrong else ""


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_acknowledged_survives_and_nothing_is_there_in_part(
    tmp_path: Path, seed: int, kind: Kind, capsys: pytest.CaptureFixture[str]
) -> None:
    volume = Volume(kind, tmp_path / "volume")
    try:
        record(volume, volume.empty, tmp_path / "log", _doing)
        log = Log(read_log(tmp_path / "log"))
        seen: set[tuple[bytes, int]] = set()
        bad: list[str] = []
        images = 0
        for image in itertools.islice(_chosen(log, seed), _IMAGES):
            if (case := (log.digest(image), image.known)) in seen:
                continue
            seen.add(case)
            images += 1
            before, after = _allowed(log, image)
            if wrong := _wrong(volume, log, image, before, after):
                bad.append(f"{len(image.writes)} writes, {image.known} known: {wrong}")
    finally:
        volume.close()
    with capsys.disabled():
        print("\n" + covered("crash images", f"objects in a directory on {kind}", violations=len(bad), images=images))
    assert not bad
    assert images >= _IMAGES // 4


def _chosen(log: Log, seed: int) -> Iterator[Image]:
    """Yield images: some of those that keep the order of the writes, then others."""
    drawn = random.Random(seed)
    ordered = [*log.prefixes()]
    yield from drawn.sample(ordered, min(len(ordered), _IMAGES // 2))
    yield from log.drawn(seed)


def test_an_image_is_set_back_only_when_no_other_table_of_mounts_has_it(tmp_path: Path) -> None:
    volume = Volume("xfs", tmp_path / "volume")
    try:
        with volume.mounted() as mountpoint:
            (mountpoint / "former").touch()
            command = ["unshare", "--mount", "sh", "-c", "echo made; sleep 1"]
            with subprocess.Popen(command, stdout=subprocess.PIPE) as other:
                assert other.stdout is not None
                other.stdout.readline()
                unmount(mountpoint)
                volume.restore(volume.empty)  # waits until the other one ends
                mount(volume.device, mountpoint, "xfs")
            assert [*mountpoint.iterdir()] == []
    finally:
        volume.close()
