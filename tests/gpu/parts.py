"""Where the seconds of a call go: functions that are timed while it runs."""

from __future__ import annotations

import functools
import importlib
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

SAVE_ASYNC = {
    "head_start": "ckstore.saver.client.ahead:HeadStarts.begin",
    "capture": "ckstore.saver.client.client:capture",
    "wait_for_devices": "ckstore.tensors.device.streams:wait",
    "fingerprints": "ckstore.saver.client.client:_fingerprints",
    "place": "ckstore.saver.client.unchanged_storages:UnchangedBases.place",
    "take_memory": "ckstore.saver.client.snapshot:SnapshotPool.take",
    "pin": "ckstore.tensors.device.pinned:Pinned.__init__",
    "enqueue": "ckstore.tensors.device.device_copies:start",
    "encode": "ckstore.saver.client.client:encode",
    "wait_for_copies": "ckstore.tensors.device.device_copies:Copying.wait",
    "send": "ckstore.saver.client.keeper:SaverKeeper.send_waiting",
}
"""Of the call of `save_async`; `wait_for_devices` is a part of `head_start` or `capture`."""
SAVE = {
    "capture": "ckstore.ops.save.save:capture",
    "store_sources": "ckstore.ops.save.save:store_sources",
    "fingerprints": "ckstore.tensors.device.fingerprint:fingerprints",
    "pin": "ckstore.tensors.device.pinned:Pinned.__init__",
    "small": "ckstore.ops.save.write:place_small",
    "copy_and_hash": "ckstore.ops.save.write:_ChunkWriter._copy",
    "write": "ckstore.ops.save.write:_ChunkWriter._put",
    "publish": "ckstore.ops.save.save:_publish",
    "follow_up": "ckstore.ops.save.save:_finish",
}
"""Of `save`; `copy_and_hash` and `write` are sums over all threads."""
LOAD = {
    "allocate": "ckstore.tensors.device.device_sink:DeviceSink.allocate",
    "read_device": "ckstore.ops.read.load:read_to_sink",
    "read_memory": "ckstore.ops.read.load:read_memories",
    "read_pieces": "ckstore.objects.pieces:PieceReader.read",
    "read_file": "ckstore.fs.files:read_into",
    "wait_for_slots": "ckstore.tensors.device.feed:_Slot.wait",
    "pin": "ckstore.tensors.device.pinned:Pinned.__init__",
    "finish": "ckstore.tensors.device.feed:Feed.finish",
    "build": "ckstore.ops.read.load:build",
}
"""Of `load`; `read_pieces`, `read_file` and `wait_for_slots` are sums over all threads."""


@contextmanager
def timed(places: Mapping[str, str]) -> Iterator[dict[str, float]]:
    """Add up the seconds that each of these functions takes; those of threads that run side by side count twice."""
    found: dict[str, float] = defaultdict(float)
    mutex = threading.Lock()
    undo = []
    for name, place in places.items():
        module, _, path = place.partition(":")
        *inside, attribute = path.split(".")
        owner: Any = functools.reduce(getattr, inside, importlib.import_module(module))
        real = getattr(owner, attribute)
        undo.append((owner, attribute, real))
        setattr(owner, attribute, _timed(name, real, found, mutex))
    try:
        yield found
    finally:
        for owner, attribute, real in undo:
            setattr(owner, attribute, real)


def _timed(name: str, real: Callable[..., Any], found: dict[str, float], mutex: threading.Lock) -> Callable[..., Any]:
    @functools.wraps(real)
    def call(*args: Any, **kwargs: Any) -> Any:
        begun_s = time.perf_counter()
        try:
            return real(*args, **kwargs)
        finally:
            with mutex:
                found[name] += time.perf_counter() - begun_s

    return call
