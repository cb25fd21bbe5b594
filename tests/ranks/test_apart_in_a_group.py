"""Ranks of a real group of processes on nodes with stores of their own, joined by gloo."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import torch

from ckstore import CheckpointInfo, RankFailed, Store
from ckstore.saver import helper_start
from tests.support.coverage import drawn
from tests.support.gloo import Group
from tests.support.s3_proxy import Proxy, faulty_proxy
from tests.support.s3_server import BUCKET, KEY, SECRET, Service, s3_service

CASES = Path(__file__).with_name("apart_cases.py")
Start = Callable[[int], Group]
MIRROR = f"s3://{BUCKET}/run"


@pytest.fixture
def service() -> Iterator[Service]:
    with s3_service() as running:
        yield running


@pytest.fixture
def proxy(service: Service, monkeypatch: pytest.MonkeyPatch) -> Iterator[Proxy]:
    """Return what stands before the service, which the ranks reach by it."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    with faulty_proxy(service.port) as running:
        monkeypatch.setenv("AWS_ENDPOINT_URL_S3", f"http://127.0.0.1:{running.port}")
        yield running


@pytest.fixture
def group(proxy: Proxy, warm: Path, tmp_path: Path) -> Start:
    """Return what starts the ranks of a group, which reach the service by the proxy."""
    return partial(Group, folder=tmp_path, cases=CASES, python=warm / "python")


def reads(proxy: Proxy) -> int:
    """Return how many reads of blobs there were, and forget them."""
    count = sum("GET" in line and "/blobs/" in line for line in proxy.seen)
    proxy.seen.clear()
    return count


def manifests(service: Service) -> list[str]:
    return [key for key in service.objects if key.endswith("/manifest.json")]


def test_two_nodes_save_and_load_from_their_disks_new_nodes_fetch_and_a_dead_one_leaves_nothing(
    group: Start, proxy: Proxy, service: Service, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    with group(2) as pair:
        infos: list[CheckpointInfo] = pair.run("save", folder=folder, mirror=MIRROR, step=1)
        assert len({info.id for info in infos}) == 1
        assert [info.warnings for info in infos] == [(), ()]
        assert len(manifests(service)) == 1

        reads(proxy)
        assert pair.run("load", folder=folder, mirror=MIRROR, ref="latest", step=1) == [True, True]
        assert reads(proxy) == 0

        (tmp_path / "new").mkdir()
        assert pair.run("load", folder=f"{folder}/new", mirror=MIRROR, ref="latest", step=1) == [True, True]
        # Each of the 8 chunks by the rank that needs it; one more object has what both need.
        assert reads(proxy) <= 10

        lost = pair.call("die", folder=folder, mirror=MIRROR, step=2, rank=1, key="blobs/")
        assert isinstance(lost[0], RankFailed)
        assert isinstance(lost[1], EOFError)
    assert len(manifests(service)) == 1
    with Store.open(tmp_path / "node0") as store:
        assert [info.step for info in store.checkpoints()] == [1]
        assert store.load(1)["w"].shape == torch.Size([8, 2**20])


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("size", [1, 4])
def test_another_number_of_nodes_fetches_what_each_rank_needs(
    size: int, group: Start, proxy: Proxy, service: Service, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    with group(2) as pair:
        pair.run("save", folder=folder, mirror=MIRROR, step=1)
        assert pair.run("save_async", folder=folder, mirror=MIRROR, step=2) == [True, True]
    reads(proxy)
    with group(size) as ranks:
        assert ranks.run("load", folder=folder, mirror=MIRROR, ref="latest", step=2) == [True] * size
    # Of the eight chunks two ranks have four each on their disks.
    assert reads(proxy) <= {1: 5, 4: 8}[size]


@pytest.mark.crash
@pytest.mark.timeout(900)
def test_what_another_process_saved_in_the_background_is_on_the_disks_of_its_nodes(
    group: Start, proxy: Proxy, service: Service, tmp_path: Path
) -> None:
    folder = str(tmp_path)
    with group(2) as pair:
        for step in (1, 2):
            assert pair.run("save_async", folder=folder, mirror=MIRROR, step=step, process=True) == [True, True]
        assert len(manifests(service)) == 2
        assert not [key for key in service.objects if key.startswith("run/intents/")]
        reads(proxy)
        assert pair.run("load", folder=folder, mirror=MIRROR, ref="latest", step=2) == [True, True]
        assert reads(proxy) == 0


_DEATHS = drawn(["0 intents/", "0 blobs/", "0 checkpoints/", "1 intents/"], 2)


@pytest.mark.crash
@pytest.mark.timeout(900)
@pytest.mark.parametrize("death", _DEATHS)
def test_a_node_that_is_killed_leaves_nothing_partial_and_a_new_start_saves(
    death: str, group: Start, service: Service, tmp_path: Path
) -> None:
    rank, key = int(death[0]), death[2:]
    with group(2) as pair:
        answers = pair.call("die", folder=str(tmp_path), mirror=MIRROR, step=1, rank=rank, key=key)
        assert isinstance(answers[rank], EOFError)
        assert isinstance(answers[1 - rank], RankFailed)
    assert not manifests(service)
    for number in (0, 1):
        with Store.open(tmp_path / f"node{number}") as store:
            assert not store.checkpoints()

    with group(2) as pair:
        infos = pair.run("save", folder=str(tmp_path), mirror=MIRROR, step=1)
        assert len({info.id for info in infos}) == 1
    assert len(manifests(service)) == 1
