"""Rounds of pushes and prunes while requests and answers get lost; after each, what the remote says is held true."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

from ckstore import CkstoreError, Store
from ckstore.model.manifest.parse import parse_manifest
from ckstore.remote import keys
from ckstore.remote.objects import Remote
from ckstore.remote.pruning.prune import prune
from ckstore.remote.service.engine import ServiceObjects
from ckstore.remote.service.target import Target
from ckstore.remote.source import ObjectSource
from tests.support.s3_proxy import FAULTS, Proxy

_FAULTY = 0.15
_STEPS = 4
_KILLED = (
    "import sys\n"
    "from ckstore import Store\n"
    "store = Store.open(sys.argv[1])\n"
    "print('ready', flush=True)\n"
    "store.push(all=True)\n"
)


def whole(objects: ServiceObjects) -> set[str]:
    """Return the checkpoints that a remote lists, after looking that every blob of each is there.

    Raises:
        AssertionError: One is not whole.
    """
    source = ObjectSource(objects, "remote")
    found = set()
    for place in source.places():
        data = source.manifest(place)
        assert data is not None
        manifest, _ = parse_manifest(data, where=place.name, hash_prefix="xxh3")
        there = {name.digest for one in objects.list(keys.BLOBS) if (name := keys.blob_in(one.key)) is not None}
        missing = [blob.digest for blob in manifest.blobs if blob.digest not in there]
        assert not missing, f"{place.name} is listed, and {missing} are missing"
        found.add(place.name)
    return found


def run_rounds(
    folder: Path, direct: Target, proxied: Target, proxy: Proxy, *, rounds: int, seed: int, kills: bool
) -> int:
    """Push, prune and drop through a proxy that fails; return how many calls failed."""
    drawn = random.Random(seed)
    store = Store.init(folder / "store", chunk_bytes=2**20)
    store.remotes.add("cold", proxied.address, endpoint=proxied.endpoint)
    objects = ServiceObjects(direct)
    acknowledged: set[str] = set()
    failed = 0
    for at in range(rounds):
        store.save({"x": drawn.randbytes(2000), "y": bytes([at % _STEPS]) * 3000}, step=at)
        proxy.fault = lambda _line: drawn.choice(FAULTS) if drawn.random() < _FAULTY else ""
        if kills and at % 5 == 4:
            _kill_a_push(store.path, drawn)
        else:
            try:
                store.push(at)
                acknowledged.add(f"main@{at}")
            except CkstoreError:
                failed += 1
        try:
            prune(Remote("cold", ServiceObjects(proxied)), store._context.algorithm, grace_s=0)
        except CkstoreError:
            failed += 1
        proxy.fault = lambda _line: ""
        listed = whole(objects)
        assert acknowledged <= listed
    store.push(all=True)
    # The first condemns, the second removes: nothing is left that nothing names.
    for _ in range(2):
        prune(Remote("cold", objects), store._context.algorithm, grace_s=0)
    other = Store.init(folder / "other")
    other.remotes.add("cold", direct.address, endpoint=direct.endpoint)
    other.pull(all=True)

    assert whole(objects) == {f"main@{at}" for at in range(rounds)}
    assert other.verify().ok
    for at in range(rounds):
        assert other.load(at) == store.load(at)
    return failed


def _kill_a_push(path: Path, drawn: random.Random) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", _KILLED, path], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=Path.cwd()
    ) as push:
        assert push.stdout is not None
        push.stdout.readline()
        try:
            push.wait(drawn.random() * 0.5)
        except subprocess.TimeoutExpired:
            os.kill(push.pid, signal.SIGKILL)
