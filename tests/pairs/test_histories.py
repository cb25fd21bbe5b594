"""No random history of acts on a store, its remote and a rival there loses what was acknowledged."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from ckstore.ops.free import gc
from ckstore.remote.mirror import mirror_step
from ckstore.remote.remote_only import remote_presence
from ckstore.remote.remote_only.listing import Absent
from ckstore.saver import helper_start
from tests.pairs.histories import history, live, main
from tests.support.coverage import lane_seed
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.filterwarnings("ignore::ckstore.CkstoreWarning")]
_COUNT, _HOUR_S = 6, 3600.0


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Start no process that mirrors; do not wait until free space grew."""
    monkeypatch.setattr(helper_start, "start", lambda *_: None)
    monkeypatch.setattr(gc, "_QUIET_S", 0.0)


@pytest.mark.timeout(2 * _HOUR_S)
def test_random_histories_lose_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print()
        assert main(_HOUR_S if CRASH_FULL else 0.0, lane_seed(), at_least=_COUNT) == 0


def _without_claims(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.remote.remote_only.remote_presence.write_claim", lambda *_: None)


def _without_names(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ckstore.remote.pruning.keep_remote.claims_at", lambda _: [])
    monkeypatch.setattr("ckstore.remote.pruning.keep_remote.end_claims", lambda *_: [])


@pytest.mark.parametrize("rule", [_without_claims, _without_names], ids=["claims", "looks for claims"])
def test_without_a_rule_a_history_loses_something(
    rule: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rule(monkeypatch)
    for seed in range(40):
        acts = [name for name in history(seed) if name in ("save", "push", "mirror", "evict", "rival", "undo", "gc")]
        try:
            live(tmp_path / str(seed), [*acts, "evict", "rival"])
        except Exception:  # the load, or an assertion
            return
    pytest.fail("no history of 40 noticed")


def _without_listings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mirror_step, "absent_at", lambda *_: Absent({}))


def _without_proof(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote_presence.PresenceCheck, "lacks", lambda *_, **__: "")


@pytest.mark.parametrize(
    "rule, acts",
    [
        (_without_listings, ["mirror_for_days", "lose_object", "mirror_for_days"]),
        (_without_proof, ["mirror_for_days", "lose_object", "evict_and_pull"]),
    ],
    ids=["listings", "proof before an eviction"],
)
def test_without_a_rule_a_tool_does_not_tell_the_truth(
    rule: Callable[[pytest.MonkeyPatch], None], acts: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rule(monkeypatch)
    for seed in range(20):
        try:
            live(tmp_path / str(seed), acts, seed)
        except Exception:  # the load, or an assertion
            return
    pytest.fail("no history of 20 noticed")
