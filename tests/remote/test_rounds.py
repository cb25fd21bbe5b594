"""Whatever goes wrong on the way, a remote lists whole checkpoints, and keeps what was acknowledged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.remote.rounds import run_rounds
from tests.support.requirements import CRASH_FULL
from tests.support.s3_proxy import Proxy, faulty_proxy
from tests.support.s3_server import Service


@pytest.mark.crash
@pytest.mark.timeout(3600)
def test_faults_and_kills_lose_nothing(tmp_path: Path, service: Service, proxy: Proxy) -> None:
    rounds = 300 if CRASH_FULL else 10
    run_rounds(
        tmp_path,
        service.target("run"),
        service.target("run", proxy.port),
        proxy,
        rounds=rounds,
        seed=rounds,
        kills=True,
    )


@pytest.mark.remote
@pytest.mark.timeout(600)
def test_faults_before_a_real_service_lose_nothing(tmp_path: Path, ceph: Service) -> None:
    with faulty_proxy(ceph.port) as proxy:
        run_rounds(
            tmp_path, ceph.target("rounds"), ceph.target("rounds", proxy.port), proxy, rounds=15, seed=7, kills=False
        )
