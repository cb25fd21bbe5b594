"""``python -m tests.crash.object_acts STORE JOURNAL``: what a remote in a directory does, each act noted in a journal.

In a process of its own: nothing that another test left in this one may take a sync away.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

from ckstore.remote.service.directory_objects import DirectoryObjects
from ckstore.remote.service.target import Target

State = dict[str, bytes]
_Act = Callable[[DirectoryObjects], object]


def _data(number: int, nbytes: int = 9000) -> bytes:
    return random.Random(number).randbytes(nbytes)


def _updating(key: str, data: bytes) -> _Act:
    def update(objects: DirectoryObjects) -> None:
        there = objects.head(key)
        assert there is not None
        assert objects.update(key, data, there.tag) is not None

    return update


def acts() -> Iterator[tuple[_Act, State]]:
    """Yield acts, and what is there after each."""
    state: State = {}
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


def main() -> None:
    """Do all of them in a new directory."""
    store, journal = map(Path, sys.argv[1:])
    store.mkdir()
    objects = DirectoryObjects(Target("directory", str(store)))
    with journal.open("ab", buffering=0) as file:
        for number, (act, _) in enumerate(acts()):
            file.write(json.dumps(["begun", number]).encode() + b"\n")
            act(objects)
            file.write(json.dumps(["done", number]).encode() + b"\n")


if __name__ == "__main__":
    main()
