"""What a remote in a directory has acknowledged survives a power cut, and no object is there in part.

The writes are those of a real filesystem to a disk that logs them; see `images.py`.
"""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from ckstore.remote.service.in_directory import DirectoryObjects
from ckstore.remote.service.target import Target
from tests.crash.harness import KINDS
from tests.crash.images import Image, Log
from tests.crash.recorder import read_log
from tests.crash.recording import record
from tests.support.coverage import covered
from tests.support.requirements import CRASH_FULL
from tests.support.volume import Kind, Volume

pytestmark = [pytest.mark.crash, pytest.mark.root]

_IMAGES = 600 if CRASH_FULL else 40
_State = dict[str, bytes]
_Act = Callable[[DirectoryObjects], object]


def _data(number: int, nbytes: int = 9000) -> bytes:
    return random.Random(number).randbytes(nbytes)


def _updating(key: str, data: bytes) -> _Act:
    def update(objects: DirectoryObjects) -> None:
        there = objects.head(key)
        assert there is not None
        assert objects.update(key, data, there.tag) is not None

    return update


def _acts() -> Iterator[tuple[_Act, _State]]:
    """Yield acts, and what is there after each."""
    state: _State = {}
    for number in range(3):
        key, data = f"blobs/a{number}/b", _data(number, 200_000)
        state = {**state, key: data}
        yield lambda objects, key=key, data=data: objects.put(key, data), state  # type: ignore[misc]
    key, data = "checkpoints/main/1/x/manifest.json", _data(10)
    state = {**state, key: data}
    yield lambda objects: objects.put(key, data), state
    for number, name in enumerate(("refs/a.json", "condemned.json")):
        made = _data(20 + number, 300)
        state = {**state, name: made}
        yield lambda objects, name=name, made=made: objects.create(name, made), state  # type: ignore[misc]
    for number in range(3):
        changed = _data(30 + number, 300 + number)
        state = {**state, "condemned.json": changed}
        yield _updating("condemned.json", changed), state
    over = _data(40, 200_000)
    state = {**state, "blobs/a0/b": over}
    yield lambda objects: objects.send("blobs/a0/b", over), state
    gone = ["checkpoints/main/1/x/manifest.json", "blobs/a1/b"]
    state = {name: value for name, value in state.items() if name not in gone}
    yield lambda objects: objects.delete(gone), state
    state = {**state, "checkpoints/main/1/x/dropped": b"{}"}
    yield lambda objects: objects.put("checkpoints/main/1/x/dropped", b"{}"), state


def _doing(store: Path, journal: Path) -> None:
    store.mkdir()
    objects = DirectoryObjects(Target("directory", str(store)))
    with journal.open("ab", buffering=0) as file:
        for number, (act, _) in enumerate(_acts()):
            file.write(json.dumps(["begun", number]).encode() + b"\n")
            act(objects)
            file.write(json.dumps(["done", number]).encode() + b"\n")


def _allowed(log: Log, image: Image) -> tuple[_State, _State]:
    """Return what may be there: after the last act that was acknowledged, or after the one that was under way."""
    marks = b"".join(entry.data for entry in log.entries[: image.known] if entry.what == "mark").decode()
    states: list[_State] = [{}, *(state for _, state in _acts())]
    done = begun = 0
    for line in marks.splitlines():
        word, number = json.loads(line)
        if word == "done":
            done = number + 1
        begun = number + 1
    return states[done], states[begun]


def _there(mountpoint: Path) -> _State:
    if not (mountpoint / "store").is_dir():
        return {}
    objects = DirectoryObjects(Target("directory", str(mountpoint / "store")))
    return {one.key: objects.get(one.key, 2**20) or b"" for one in objects.list("")}


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
            writes = ((log.entries[at].offset, log.entries[at].data[:nbytes]) for at, nbytes in log.contents(image))
            volume.restore(volume.empty, writes)
            with volume.mounted() as mountpoint:
                there = _there(mountpoint)
            before, after = _allowed(log, image)
            # The act under way may have done each of its parts, or not.
            wrong = [
                key for key in {*there, *before, *after} if there.get(key) not in (before.get(key), after.get(key))
            ]
            if wrong:
                bad.append(f"{image}: {sorted(wrong)}")
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
