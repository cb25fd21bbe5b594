"""What `print` shows of a report: lines for people, in the words of the command line."""

from __future__ import annotations

import pickle
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ckstore
from ckstore import Best, Budget, CheckpointInfo, CkstoreError, Ranks, RetentionPolicy, Store, provisional, training
from ckstore.model.brief import BriefList
from ckstore.model.reports.gc_report import Waiting
from ckstore.model.sizes import size_text
from ckstore.ops.free.retain import carry_out
from ckstore.provisional import (
    Diff,
    DiffLeaf,
    DoctorFinding,
    DoctorReport,
    GcPlan,
    GcReport,
    HeldBlob,
    Holder,
    LeafChange,
    LinkedBlob,
    NextToFree,
    PlainChange,
    PlannedBlob,
    StoreSettings,
    Target,
)
from ckstore.training.history import ImportReport
from ckstore.training.restore import ResumeReport
from tests.support.plans import plan_of

GIVEN = {Budget, Ranks, RetentionPolicy, StoreSettings, Target}
"""What a caller writes, or fixed when a store was made: printed as it is written in Python."""
EXPORTED = {name: getattr(module, name) for module in (ckstore, provisional) for name in module.__all__}
REPORTS = [one for one in EXPORTED.values() if isinstance(one, type) and is_dataclass(one) and one not in GIVEN]
LONGEST = 120
LEAF = DiffLeaf("w", "torch", "float32", (3,), 12)


class Maker:
    """Makes reports with the same text and number everywhere, and so many items in each list of the outermost."""

    def __init__(self, text: str, number: int, count: int, *, truth: bool) -> None:
        now = datetime(2026, 11, 25, tzinfo=UTC)
        self.number = number
        self.count = count
        self.truth = truth
        self.text = text
        self.plain: dict[Any, object] = {
            bool: truth,
            int: number,
            float: number / 3,
            datetime: now,
            str: text,
            object: text,
            Any: text,
        }
        self.plain |= {Path: Path(text), RetentionPolicy: RetentionPolicy(keep_last=1), Best: Best("loss")}
        self.plain |= {
            Target: Target("url", "s3://bucket/prefix"),
            OSError: OSError(5, text),
            CkstoreError: CkstoreError(text),
        }
        # None as the mode of a `Best` would need a metric whose name says one.
        self.plain |= {Literal["min", "max"] | None: "max" if truth else "min"}

    def report(self, kind: Any, count: int) -> Any:
        """Return a report of that class."""
        hints = get_type_hints(kind, localns={**EXPORTED, "Mapping": Mapping})
        names = [one.name for one in fields(kind) if not one.name.startswith("_")]
        return kind(**{name: self.value(hints[name], count) for name in names})

    def value(self, hint: Any, count: int) -> Any:
        """Return a value for an annotation."""
        if hint in self.plain:
            return self.plain[hint]
        origin, args = get_origin(hint), get_args(hint)
        if origin in {Union, UnionType}:
            return self.value(args[0] if self.truth else args[-1], count)
        if origin is Literal:
            return args[self.number % len(args)]
        if origin is tuple:
            return tuple(self.value(one, 1) for one in (args if args[-1] is not ... else args[:1] * count))
        if origin in {dict, Mapping}:
            return {i if args[0] is int else f"{self.text}{i}": self.value(args[1], 1) for i in range(count)}
        return None if hint is type(None) else self.report(hint, count)


@pytest.mark.parametrize("kind", [*REPORTS, ImportReport, ResumeReport], ids=lambda kind: kind.__name__)
@given(
    text=st.text(st.characters(categories=("L", "Nd", "Cc", "Cs", "Cf", "Zs", "Zl")), min_size=1, max_size=8).filter(
        str.strip
    ),
    number=st.integers(1, 2**37),
    count=st.sampled_from((0, 1, 2, 40)),
    truth=st.booleans(),
)
def test_a_report_is_printed_as_whole_lines_without_a_dump_or_control_characters(
    kind: Any, text: str, number: int, count: int, *, truth: bool
) -> None:
    report = Maker(text, number, count, truth=truth).report(kind, count)

    shown = str(report)

    assert all(line.strip() and line.isprintable() for line in shown.split("\n"))
    assert len(shown.split("\n")) <= LONGEST
    assert not any(f"{name}(" in shown for name in EXPORTED)
    assert repr(report).startswith(f"{kind.__name__}(")


@pytest.mark.parametrize(
    "kind",
    [
        found
        for module in (ckstore, provisional, training)
        for name in module.__all__
        if is_dataclass(found := getattr(module, name)) and found not in {*GIVEN, Best}
    ],
    ids=lambda kind: kind.__name__,
)
@pytest.mark.parametrize("held", ["text", "lines", "tuple", "dict", "integer", "nested"])
def test_the_repr_of_a_result_is_at_most_a_screen_whatever_it_holds(kind: Any, held: str) -> None:
    leaf = DiffLeaf("x" * 300, "torch", "float32", (1,) * 64, 8)
    values: dict[str, object] = {
        "text": "very " * 2000,
        "lines": "line\n" * 2000,
        "tuple": tuple(f"layer{i}.weight" for i in range(2000)),
        "dict": {f"layer{i}.weight": [i] * 50 for i in range(2000)},
        "integer": 10**5000,
        "nested": (LeafChange(leaf, leaf, 1),) * 204,
    }
    report = kind.__new__(kind)
    for one in fields(kind):
        object.__setattr__(report, one.name, values[held])

    lines = repr(report).split("\n")

    assert lines[0].startswith(f"{kind.__name__}(")
    assert lines[-1].endswith(")")
    assert len(lines) <= 24
    assert max(map(len, lines)) <= 120
    assert len(repr(report)) <= 1500


def test_a_repr_is_one_line_where_that_is_enough_and_says_how_many_there_are() -> None:
    one = PlainChange("lr", "changed", 0.1, 0.2)
    assert repr(one) == "PlainChange(name='lr', kind='changed', before=0.1, after=0.2)"

    shown = repr(Diff("main@1000", "main@2000", plain=(one,) * 204)).split("\n")

    assert shown[0] == "Diff("
    assert shown[6] == "    plain=<204 PlainChange>,"


def info(new_bytes: int, reused_bytes: int = 0, *, damaged: bool = False) -> CheckpointInfo:
    """Return a checkpoint of 382.3 KiB."""
    created = "2026-11-25T09:30:00.000000Z"
    checkpoint_id = f"xxh3-0123456789{'a' * 22}"
    return CheckpointInfo(
        checkpoint_id, "exp", 500, 3, created, 391_475, new_bytes, reused_bytes, 7, "xxh3-cc", damaged=damaged
    )


@pytest.mark.parametrize(
    "shown,text",
    [
        (info(0, 391_475), "exp@500 0123456789: 382.3 KiB, 0 B new (0.0 %)"),
        (info(12_288, 379_187), "exp@500 0123456789: 382.3 KiB, 12.0 KiB new (3.1 %)"),
        (info(392_397), "exp@500 0123456789: 382.3 KiB, all new"),  # with the padding of a pack
        (info(392_397, 40), "exp@500 0123456789: 382.3 KiB, 382.3 KiB new (99.9 %)"),
        (info(0, 391_475, damaged=True), "exp@500 0123456789: 382.3 KiB, 0 B new (0.0 %), damaged"),
    ],
)
def test_a_checkpoint_is_one_line(shown: CheckpointInfo, text: str) -> None:
    assert str(shown) == text


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """Return a store with two checkpoints of a run."""
    store = Store.init(tmp_path / "store", run="exp")
    weight = np.arange(3000, dtype=np.float32)
    store.save({"lr": 0.1, "model": {"w": weight, "old": np.zeros(2)}}, step=100)
    store.save({"lr": 0.01, "model": {"w": weight + 1, "b": np.ones(3)}}, step=200)
    return store


def test_a_difference_is_a_line_each_and_the_summary_below(store: Store) -> None:
    assert str(store.diff(100, 200, values=True)).split("\n") == [
        "added    model.b: <f8 [3], 24 B",
        "removed  model.old: <f8 [2], 16 B",
        "changed  model.w: <f4 [3000], 11.7 KiB, 11.7 KiB changed, at most 1 apart (1 relative)",
        "changed  lr = 0.1 -> 0.01",
        (
            "from exp@100 to exp@200: tensors: 1 changed, 1 added, 1 removed, 0 unchanged, 11.7 KiB changed; "
            "other values: 1 changed"
        ),
    ]


def test_a_long_difference_is_cut_short(store: Store) -> None:
    store.save({f"w{i}": i for i in range(410)}, step=300)
    store.save({f"w{i}": i + 1 for i in range(410)}, step=400)

    lines = str(store.diff(300, 400)).split("\n")

    assert lines[0] == "changed  w0 = 0 -> 1"
    assert lines[-2:] == ["and 380 more", "from exp@300 to exp@400: tensors: none; other values: 410 changed"]


def test_a_plan_and_what_became_of_it_say_which_checkpoints_go(store: Store) -> None:
    plan = plan_of(store, RetentionPolicy(keep_last=1))
    done = carry_out(store._context, plan)

    assert str(plan).split("\n") == [
        "exp@100 dropped because it is not the newest",
        "exp@200 kept because it is the newest valid checkpoint of the run exp; it is the newest",
        "would drop 1 of 2 checkpoints",
    ]
    assert str(done).split("\n") == ["exp@100 dropped because it is not the newest", "dropped 1 of 2 checkpoints"]


def test_a_verification_says_what_was_read(store: Store) -> None:
    report = store.verify()

    assert str(report) == f"2 checkpoints, {size_text(report.checked_bytes)} read: no damage"


def test_gc_says_what_it_freed_and_who_has_the_rest() -> None:
    mine, other = Holder(12, "python train.py", "descriptor 5", "/blob"), Holder(13, "vim\x1b[2J", "mapping", "/blob")
    report = GcReport(
        freed_bytes=4096,
        freed_count=2,
        held=(HeldBlob("xxh3-aa", 1024, (mine, other)), HeldBlob("xxh3-bb", 2048, (mine,))),
        linked_outside=(LinkedBlob("xxh3-cc", 512, 1),),
        dead_pack_bytes=16384,
    )

    assert str(report).split("\n") == [
        "freed 4.0 KiB in 2 blobs",
        "kept 3.0 KiB in 2 blobs that processes have open:",
        "  PID 12 (python train.py), descriptor 5: 3.0 KiB",
        "  PID 13 (vim\\x1b[2J), mapping: 1.0 KiB",
        "gc frees it once they close it",
        "512 B are not freed: xxh3-cc has 1 name outside the store",
        "16.0 KiB cannot be freed yet: it is in packs of small tensors, some of which are still needed",
    ]


WAITING = Waiting("main", 3, "xxh3-aa", "2026-11-27T07:17:49.5Z", "2026-11-28T07:17:49.5Z", 2048, "main@3.aa")


@pytest.mark.parametrize(
    "report,said",
    [
        (GcReport(), "no unused data"),
        (
            GcReport(next_to_free=NextToFree("main@1", 2048)),
            "no unused data; deleting the oldest checkpoint main@1 would free 2.0 KiB",
        ),
        (
            GcReport(next_to_free=NextToFree("main@1"), dry_run=True),
            (
                "no unused data; deleting the oldest checkpoint main@1 would free nothing, "
                "since other checkpoints use the same bytes"
            ),
        ),
        (
            GcReport(plan=GcPlan(trash=("main@3.aa",))),
            (
                "the dropped checkpoints free nothing: other checkpoints have the same blobs, "
                "or were compacted and are decoded with them"
            ),
        ),
        (
            GcReport(waiting=(WAITING,), next_to_free=NextToFree("main@1", 2048)),
            (
                "no other unused data; 1 dropped checkpoint with 2.0 KiB can be restored (ckstore undo) until "
                "2026-11-28 07:17 UTC; ckstore gc --now frees that at once; "
                "deleting the oldest checkpoint main@1 would free 2.0 KiB"
            ),
        ),
        (
            GcReport(waiting=(replace(WAITING, nbytes=0),)),
            (
                "no other unused data; 1 dropped checkpoint with 0 B can be restored (ckstore undo) until "
                "2026-11-28 07:17 UTC; deleting it frees nothing: other checkpoints have the same blobs, "
                "or were compacted and are decoded with them, or the data is only on a remote"
            ),
        ),
        (
            GcReport(trash_left=("a",), waits_for_grace=True),
            (
                "1 entry of trash/ waits for the grace period (config.grace_s), since other hosts may be using the "
                "store; "
                "if none does, ckstore gc --exclusive frees at once"
            ),
        ),
        (
            GcReport(trash_left=("a",)),
            (
                "1 in trash/ left for a later gc: another process is using them, "
                "or on a shared filesystem they wait for the grace period"
            ),
        ),
        (
            GcPlan(blobs=(PlannedBlob("xxh3-aa", 512),), waits_for_grace=True),
            "would free 1 blob, 512 B; all of it at once only with --exclusive",
        ),
        (GcReport(freed_count=1, freed_bytes=512, waits_for_grace=True), "freed 1 blob, 512 B"),
    ],
)
def test_gc_explains_why_it_frees_no_more(report: GcReport | GcPlan, said: str) -> None:
    assert report.explanation == said


def test_the_doctor_says_what_to_do() -> None:
    report = DoctorReport((DoctorFinding("ok", "locks", "work"), DoctorFinding("warning", "space", "3 B", "free some")))

    assert str(report).split("\n") == [
        "ok       locks: work",
        "warning  space: 3 B",
        "         do: free some",
        "1 warning, 1 ok",
    ]


def test_other_results_are_printed_as_the_command_line_says_them(store: Store, tmp_path: Path) -> None:
    store.tag("best", 200)
    exported = store.export_safetensors(200, tmp_path / "out")
    index = str(store.reindex()).split("\n")

    assert str(store.tags()[0]) == "best is exp@200"
    assert str(exported).split("\n")[-1].startswith(f"exported exp@200 to {tmp_path / 'out'}: 2 tensors, 2 files, ")
    assert index[0].startswith("2 checkpoints, ")
    assert str(store.du()).split("\n")[0].startswith("exp@100 holds ")


@pytest.mark.parametrize("item", ["name", "a name of\n two lines" * 200, LeafChange(LEAF, LEAF, 1)], ids=type)
def test_the_repr_of_a_list_is_at_most_a_screen_with_its_ends_and_how_many_there_are(item: object) -> None:
    lines = repr(BriefList([item] * 20_000)).split("\n")

    assert (lines[0], lines[-1]) == ("[", "] <20,000 in all>")
    assert len(lines) == 24
    assert max(map(len, lines)) <= 120
    assert "    ... 19,979 more ..." in lines


def test_a_short_list_shows_all_and_a_list_is_a_list() -> None:
    names = [f"w{i}" for i in range(300)]
    brief = BriefList(names)

    assert repr(brief[:100]) == repr(names[:100])
    assert repr(BriefList([])) == "[]"
    assert repr(brief[5:]).split("\n")[1::22] == ["    'w5'", "] <295 in all>"]
    assert repr(BriefList([LeafChange(LEAF, LEAF, 1)] * 4)).split("\n")[1:] == [
        *["    w: float32 [3], 12 B, 1 B changed"] * 4,
        "] <4 in all>",
    ]
    assert brief == names
    assert brief[-1] == "w299"
    assert pickle.loads(pickle.dumps(brief)) == brief
