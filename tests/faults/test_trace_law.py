"""What every act of the store asks of the kernel is enough on a filesystem that promises less than any real one.

The laws are in `laws.py`, in words in docs/protocol.md; the filesystem is in `weakfs.py`. Each act is recorded once,
and judged twice: as it is, and as if those who were there before had died before they fsynced any shared directory.
``CKSTORE_CRASH=full`` makes each fsync of each act fail, too, else some of them.
"""

from __future__ import annotations

import pickle
import sys
from pathlib import Path

import pytest

from tests.faults.acts import ACTS
from tests.faults.harness import evenly
from tests.faults.laws import LAWS
from tests.faults.tracing import Request, Traced, trace
from tests.support.coverage import covered
from tests.support.once import once
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_SAMPLED = ("first_save", "replace", "rotate")
_FAILING_SYNCS = 4
_GOING_BACK = (Request("replace_by_renames", 8), Request("replace_by_renames", 11), Request("checkout_links", 4))
"""The old checkpoint goes back to its place; what was checked out is there already."""


@pytest.fixture(scope="session")
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traced]:
    """What the acts did that were asked for, and those that fail in a sample; one strace for all, and all workers."""
    wanted = {item.callspec.params.get("act") for item in request.session.items if hasattr(item, "callspec")}
    requests = [Request(name) for name in ACTS if CRASH_FULL or name in wanted or name in _SAMPLED]

    def make(folder: Path) -> None:
        (folder / "traced").write_bytes(pickle.dumps(trace(folder, requests)))

    found: list[Traced] = pickle.loads((once(tmp_path_factory, "trace-law", make) / "traced").read_bytes())
    return {case.request.act: case for case in found}


def tell(capfd: pytest.CaptureFixture[str], what: str, cases: list[Traced]) -> list[str]:
    broken = [f"{case.request}: {line}" for case in cases for line in case.broken]
    counts = {"acts": len(cases), "calls": sum(c.calls for c in cases), "fsyncs": sum(c.syncs for c in cases)}
    with capfd.disabled():
        print(f"\n{covered('trace law', what, violations=len(broken), **counts)}", file=sys.stderr, flush=True)
    return broken


@pytest.mark.parametrize("act", ACTS)
def test_an_act_keeps_every_law(traced: dict[str, Traced], capfd: pytest.CaptureFixture[str], act: str) -> None:
    case = traced[act]

    assert tell(capfd, act, [case]) == []
    assert case.calls > 100


def test_an_act_of_which_an_fsync_fails_keeps_every_law(
    traced: dict[str, Traced], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    whole = list(traced.values()) if CRASH_FULL else [traced[name] for name in _SAMPLED]
    every = [Request(case.request.act, at) for case in whole for at in range(1, case.syncs + 1)]
    chosen = every if CRASH_FULL else [*_GOING_BACK, *(every[i] for i in evenly(range(len(every)), _FAILING_SYNCS))]

    cases = trace(tmp_path, chosen)

    assert tell(capfd, "one fsync fails", cases) == []
    assert len(cases) == len(chosen) > 0


def test_every_law_is_written_down() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = dict(line.split("|")[1:3] for line in page.splitlines() if line.startswith("| **"))

    assert {key.strip(" *"): text.strip() for key, text in rows.items()} == LAWS
