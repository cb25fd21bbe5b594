"""The recipe of docs/how-to/rollout.md as processes, with a trainer and two workers, and the bytes transferred."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.support.s3_server import BUCKET, Service

pytest.importorskip("zstandard")
EXAMPLE = Path(__file__).parents[2] / "examples" / "rollout.py"
STEPS = 4
LINE = re.compile(r"step (\d+) (\w+): (\d+) bytes (?:sent, (\d+) as a safetensors file|received)")


def start(warm: Path, service: Service, folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = {
        **os.environ,
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{service.port}",
        "AWS_REGION": "us-east-1",
        "OMP_NUM_THREADS": "1",
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    command = [str(warm / "python"), str(EXAMPLE), *words, f"s3://{BUCKET}/policy", str(STEPS)]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def lines(process: subprocess.Popen[str], first: str = "") -> dict[int, tuple[str, int, int]]:
    out, errors = process.communicate(timeout=400)
    assert process.returncode == 0, out + errors
    found = [LINE.match(line) for line in (first + out).splitlines()]
    return {int(m[1]): (m[2], int(m[3]), int(m[4] or 0)) for m in found if m is not None}


@pytest.mark.slow
def test_each_worker_receives_a_step_as_a_hundredth_of_its_size(warm: Path, service: Service, tmp_path: Path) -> None:
    trainer = start(warm, service, tmp_path, "trainer", "store")
    assert trainer.stdout is not None
    first = trainer.stdout.readline()  # from here there is something to follow
    workers = [start(warm, service, tmp_path, "worker") for _ in range(2)]
    sent = lines(trainer, first)
    received = [lines(worker) for worker in workers]

    assert sorted(sent) == [*range(STEPS)]
    for step in range(1, STEPS):
        digest, nbytes, as_file = sent[step]
        print(f"step {step}: {as_file} as a file, {nbytes} sent, {[worker.get(step) for worker in received]} received")
        assert nbytes < as_file / 60
        for worker in received:
            if step in worker and step - 1 in worker:
                assert worker[step][1] < as_file / 60
            if step in worker:
                assert worker[step][0] == digest
    assert all(STEPS - 1 in worker for worker in received)
