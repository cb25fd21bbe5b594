"""What every act of the store asks of the kernel is enough on a filesystem that promises less than any real one.

The laws are in `laws.py`, in words in docs/protocol.md; the filesystem is in `weakfs.py`. Each act is recorded once,
and judged twice: as it is, and as if those who were there before had died before they fsynced any shared directory.
``CKSTORE_CRASH=full`` tries every act, and makes each fsync of each fail, too; else those that catch a mutant, some of
the others, and some fsyncs.
"""

from __future__ import annotations

import pickle
import re
import sys
from pathlib import Path

import pytest

from tests.faults.acts import ACTS
from tests.faults.laws import LAWS
from tests.faults.tracing import Request, Traced, trace
from tests.mutants.runner import MUTANTS
from tests.support.coverage import covered, drawn
from tests.support.once import once
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash, pytest.mark.timeout(1800)]

ROOT = Path(__file__).parents[2]
_CATCHING = {mutant.act for mutant in MUTANTS.values() if mutant.act and not mutant.failing_sync}
_GOING_BACK = (Request("checkout_links", 4),)
"""What was checked out is there already."""
_FAILING = (*_GOING_BACK, *{Request(m.act, m.failing_sync) for m in MUTANTS.values() if m.failing_sync})


@pytest.fixture(scope="session")
def traced(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[Request, Traced]:
    """What the acts did that were asked for, and those of which an fsync fails; one strace for all, and all workers."""
    wanted = {item.callspec.params.get("act") for item in request.session.items if hasattr(item, "callspec")}
    requests = [*(Request(name) for name in ACTS if CRASH_FULL or name in wanted), *([] if CRASH_FULL else _FAILING)]

    def make(folder: Path) -> None:
        (folder / "traced").write_bytes(pickle.dumps(trace(folder, requests)))

    found: list[Traced] = pickle.loads((once(tmp_path_factory, "trace-law", make) / "traced").read_bytes())
    return {case.request: case for case in found}


def tell(capfd: pytest.CaptureFixture[str], what: str, cases: list[Traced]) -> list[str]:
    broken = [f"{case.request}: {line}" for case in cases for line in case.broken]
    counts = {"acts": len(cases), "calls": sum(c.calls for c in cases), "fsyncs": sum(c.syncs for c in cases)}
    with capfd.disabled():
        print(f"\n{covered('trace law', what, violations=len(broken), **counts)}", file=sys.stderr, flush=True)
    return broken


@pytest.mark.parametrize("act", drawn(ACTS, 10, *sorted(_CATCHING)))
def test_an_act_keeps_every_law(traced: dict[Request, Traced], capfd: pytest.CaptureFixture[str], act: str) -> None:
    case = traced[Request(act)]

    assert tell(capfd, act, [case]) == []
    assert case.calls > 100


def test_an_act_of_which_an_fsync_fails_keeps_every_law(
    traced: dict[Request, Traced], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    every = [Request(case.request.act, at) for case in traced.values() for at in range(1, case.syncs + 1)]

    cases = trace(tmp_path, every) if CRASH_FULL else [traced[failing] for failing in _FAILING]

    assert tell(capfd, "one fsync fails", cases) == []
    assert len(cases) == (len(every) if CRASH_FULL else len(_FAILING)) > 0
    assert all(case.syncs >= case.request.failing_sync for case in cases)


def test_every_law_is_written_down() -> None:
    page = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")
    rows = dict(line.split("|")[1:3] for line in page.splitlines() if line.startswith("| **"))

    plain = {
        key.strip(" *"): re.sub(r"\[(.*?)\]\(.*?\)", r"\1", text).replace("*", "").strip() for key, text in rows.items()
    }
    assert plain == LAWS
