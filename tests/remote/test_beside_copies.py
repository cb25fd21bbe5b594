"""The bytes that ckstore sends compared with a copy of files: the short form of ``python -m tests.bench remote``."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.bench import off_node_history
from tests.support.s3_server import Service

pytestmark = [pytest.mark.remote, pytest.mark.timeout(900)]

_BYTES = 32 * 2**20


def test_a_push_sends_changed_blobs_and_a_file_copy_sends_every_file(tmp_path: Path, ceph: Service) -> None:
    found = off_node_history.compared(tmp_path, ceph, 1, _BYTES)

    small = _BYTES / 100
    for name, acts in found.items():
        first, following, nothing = (acts[act]["bytes"] for act in off_node_history.ACTS)
        new = _BYTES / 8 if name in {"ckstore", "restic"} else _BYTES
        # restic cuts where a rolling hash, another one in each repository, says: the chunks at both ends of what is new
        # are sent as well, and each has up to 8 MiB.
        more = 2 * 8 * 2**20 if name == "restic" else small
        assert abs(first - _BYTES) < small, name
        assert new <= following < new + more, name
        assert nothing < small, name
    assert found["ckstore"]["nothing new"]["requests"] <= 20
    assert sum(line.startswith("| ckstore |") for line in off_node_history.lines(found)) == 1
