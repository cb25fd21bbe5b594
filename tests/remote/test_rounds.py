"""Whatever fails in transfers, a remote only lists complete checkpoints, and keeps acknowledged ones."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.remote import laws
from tests.remote.clients import run_clients
from tests.remote.rounds import run_rounds
from tests.support.coverage import covered, lane_seed
from tests.support.requirements import CRASH_FULL
from tests.support.s3_proxy import Proxy, faulty_proxy
from tests.support.s3_server import Service


@pytest.fixture(autouse=True)
def _no_forks_left() -> Iterator[None]:
    yield
    laws.stop_forks()


@pytest.mark.crash
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("descriptors_may_leak")
@pytest.mark.parametrize("part", range(6 if CRASH_FULL else 1))
def test_faults_and_kills_lose_nothing(
    part: int, tmp_path: Path, service: Service, proxy: Proxy, capsys: pytest.CaptureFixture[str]
) -> None:
    rounds, seed = 50 if CRASH_FULL else 8, lane_seed() + part
    direct, proxied = service.target("run"), service.target("run", proxy.port)

    deltas = part % 2 == 0
    counts = run_rounds(tmp_path, direct, proxied, proxy, rounds=rounds, seed=seed, kills=True, deltas=deltas)

    with capsys.disabled():
        print("\n" + covered("remotes", f"rounds, part {part}", seed=seed, **counts))
    assert counts["kills"]
    assert counts["deaths"]
    # Of eight rounds none may have found a base.
    assert bool(counts["encoded"]) == deltas or not CRASH_FULL


@pytest.mark.crash
@pytest.mark.timeout(0)
@pytest.mark.usefixtures("descriptors_may_leak")
def test_two_pushers_and_a_pruner_lose_nothing(
    tmp_path: Path, service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    seed = lane_seed()

    counts = run_clients(tmp_path, service, seconds=600.0 if CRASH_FULL else 4.0, seed=seed)

    with capsys.disabled():
        print("\n" + covered("remotes", "two pushers and a pruner", seed=seed, **counts))
    assert counts["pushed"]


@pytest.mark.remote
@pytest.mark.timeout(600)
def test_faults_before_a_real_service_lose_nothing(tmp_path: Path, ceph: Service) -> None:
    with faulty_proxy(ceph.port) as proxy:
        direct, proxied = ceph.target("rounds"), ceph.target("rounds", proxy.port)
        run_rounds(tmp_path, direct, proxied, proxy, rounds=15, seed=7, kills=False, deltas=True)
