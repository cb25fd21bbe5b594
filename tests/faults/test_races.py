"""A neighbour who swaps a directory of a store for a symlink, at any call of any act, makes it touch nothing outside.

``CKSTORE_CRASH=full`` goes through every call of ckstore that changes, opens or locks something: at each the directory
of the call is swapped, and the one above it or one of the other directories of a store in turn; half of them are
swapped back before the next call. Those of SQLite are left out: they go to no directory but the root. Else a sample
of a third of the acts, another one for each commit. An act may fail then, with an error of ckstore. What is compared is
everything beside the store: bytes, modes, links and times (`neighbour.seen`). Whether a budget or a purge was carried
out is judged too, unless what was swapped holds checkpoints: a symlink is not one, even if it is one again later.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.acts import ACTS
from tests.faults.harness import Faults, split, spread
from tests.faults.neighbour import ABOVE, HERE, PLACES, Neighbour
from tests.support.coverage import covered, drawn, lane_seed
from tests.support.requirements import CRASH_FULL

pytestmark = [pytest.mark.crash, pytest.mark.timeout(3600)]

_SAMPLE = 2
_OTHERS = (ABOVE, *PLACES)


@pytest.mark.parametrize("act", drawn(ACTS, 3, "gc"))
def test_a_directory_that_is_swapped_at_any_call_leads_nowhere(
    faults: Faults, capfd: pytest.CaptureFixture[str], act: str
) -> None:
    calls = faults.race(act, HERE, 0, back=False)["calls"]
    every, _ = split(calls)
    seed, swapped, violations = lane_seed(), 0, []

    for at in every if CRASH_FULL else spread(every, _SAMPLE, seed):
        turn = at + seed
        for kind in (HERE, _OTHERS[turn % len(_OTHERS)]):
            answer = faults.race(act, kind, at, back=bool(turn % 2))
            swapped += bool(answer.get("swapped"))
            around = "\n    ".join(answer.get("calls", []))
            violations += [
                f"{act}, {kind} at call {at}, kept in {answer.get('kept')}: {problem}\n    {around}"
                for problem in answer["violations"]
            ]

    counts = {"calls": len(every), "swaps": swapped}
    with capfd.disabled():
        line = covered("neighbour", act, violations=len(violations), seed=seed, **counts)
        print(f"\n{line}", file=sys.stderr, flush=True)
    if violations:
        pytest.fail("\n\n".join(violations[:5]), pytrace=False)
    assert swapped > 0


def test_a_touched_bait_is_noticed(tmp_path: Path) -> None:
    touches: dict[str, Callable[[Path], object]] = {
        "refs": lambda folder: (folder / "new").touch(),
        "blobs/ab": lambda folder: next(folder.iterdir()).unlink(),
        "trash": lambda folder: os.chmod(folder, 0o700),
        "staging": lambda folder: os.utime(folder, ns=(5, 5)),
        HERE: lambda folder: next(folder.iterdir()).write_bytes(b"other"),
    }
    for kind, touch in touches.items():
        store = tmp_path / kind.replace("/", "-") / "store"
        for name in ("refs", "blobs/ab", "trash", "staging"):
            (store / name).mkdir(parents=True)
        (store / "blobs" / "ab" / "file").write_bytes(b"bytes")
        neighbour = Neighbour(store, kind, back=False)

        neighbour.before_a_call(str(store / "blobs" / "ab" / "file"))
        assert neighbour.swapped
        assert neighbour.wrong() == []
        touch(Path(neighbour.swapped))

        assert neighbour.wrong(), kind


def test_only_a_swap_of_checkpoints_excuses_an_act(tmp_path: Path) -> None:
    excused = {}
    for kind in ("checkpoints/run/step", "trash/x", "staging", "refs", "blobs/ab"):
        store = tmp_path / kind.replace("/", "-") / "store"
        for name in ("checkpoints/main/1.0123456789", "trash/main@1.0123456789.0", "staging", "refs", "blobs/ab"):
            (store / name).mkdir(parents=True)
        neighbour = Neighbour(store, kind, back=False)
        assert not neighbour.hid_a_checkpoint()
        neighbour.before_a_call(str(store / "store.json"))
        excused[kind] = neighbour.hid_a_checkpoint()

    assert [kind for kind, is_excused in excused.items() if is_excused] == [
        "checkpoints/run/step",
        "trash/x",
        "staging",
    ]
