"""Each test of this room runs on the CPU, as a stand-in of a device, and on a CUDA device where there is one."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import pytest
import torch

from ckstore import Store
from ckstore.saver.client import process
from ckstore.tensors.device import pinned, streams
from tests.gpu.streams import Queued, StandIn
from tests.saver.conftest import wait_for
from tests.support.requirements import require_cuda

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]


@pytest.fixture
def stand_in(monkeypatch: pytest.MonkeyPatch) -> Iterator[StandIn]:
    """Let the CPU be a device; all that was pinned is unpinned in the end."""
    found = StandIn()
    monkeypatch.setattr(streams, "system", found)
    monkeypatch.setattr(pinned, "pool", pinned.BufferPool())
    yield found
    pinned.pool.close()
    gc.collect()
    assert not found.pinned


@pytest.fixture(params=DEVICES)
def device(request: pytest.FixtureRequest) -> str:
    """The device of the state: ``cpu``, as a stand-in, everywhere, and ``cuda`` where torch sees one."""
    found: str = request.param
    if found == "cuda":
        require_cuda()
    else:
        request.getfixturevalue("stand_in")
    return found


@pytest.fixture
def store(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Store]:
    """A store, whose savers have ended when the test has."""
    for name in {"device", "stand_in"} & set(request.fixturenames):  # first: the stand-in is there as long as the store
        request.getfixturevalue(name)
    before = process.reap()
    with Store.init(tmp_path / "store", chunk_bytes=2**20) as made:
        yield made
    wait_for(lambda: process.reap() <= before, "every saver has ended")


@pytest.fixture
def side_stream(device: str) -> Callable[[], AbstractContextManager[object]]:
    """Give contexts that compute on a new stream of the device; on the CPU there is one order only."""

    def entered() -> AbstractContextManager[object]:
        if device == "cpu":
            return nullcontext()
        return torch.cuda.stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]

    return entered


@pytest.fixture
def queued(device: str) -> Queued:
    """Queue slow work in front of a change, so that a copy that does not wait reads what was there before."""
    return Queued(device)
