"""Arguments of public functions that are misspelt, words of torch, of a wrong type or out of range."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import math
import operator
import pickle
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ckstore import (
    BackgroundSaves,
    BadInput,
    Budget,
    CkstoreError,
    Follower,
    OpenCheckpoint,
    PendingSave,
    Remotes,
    RetentionPolicy,
    Store,
    training,
)
from ckstore.integrations import dcp
from ckstore.integrations.trackers import track
from tests.support.plans import plan_of
from tests.support.stores import check_store


@pytest.mark.parametrize(
    "method, argument, message",
    [
        ("load", "map_location", r"load\(\) has no argument 'map_location'; did you mean device=\?"),
        ("load", "weights_only", r"'weights_only': leave it out, a load never executes anything"),
        ("load", "devise", "did you mean device="),
        ("load_into", "dtype", "did you mean cast="),
        ("load_into", "map_location", "leave it out, the tensors of the target stay on their devices"),
        ("load_into", "stirct", "did you mean strict="),
        ("save", "global_step", "did you mean step="),
        ("save", "overwrite", "did you mean if_exists="),
        ("save", "pickle_protocol", "leave it out, nothing is pickled"),
        ("save_async", "tag", "did you mean tags="),
        ("push", "bwlimt", r"push\(\) has no argument 'bwlimt'; did you mean bwlimit=\?"),
        ("pull", "if_exist", r"pull\(\) has no argument 'if_exist'"),
        ("evict", "bwlimit", r"evict\(\) has no argument 'bwlimit'"),
        ("save", "qqqq", r"save\(\) has no argument 'qqqq'$"),
    ],
)
def test_an_argument_that_a_method_lacks_is_answered_with_the_one_that_is_meant(
    tmp_path: Path, method: str, argument: str, message: str
) -> None:
    store = Store.init(tmp_path / "store")
    store.save({"w": torch.ones(1)}, step=1)
    call: Any = getattr(store, method)

    with pytest.raises(TypeError, match=message):
        call({"w": torch.ones(1)}, **{argument: "cpu"})


def test_other_errors_of_types_are_as_they_were(tmp_path: Path) -> None:
    save: Any = Store.init(tmp_path / "store").save

    with pytest.raises(TypeError, match="missing 1 required positional argument: 'state'"):
        save()


def test_what_a_store_is_not_names_the_method_that_does_it(store: Store) -> None:
    assert store
    for wrong, method in (
        (lambda: store[7], r"store\.load\(7\)"),
        (lambda: len(store), r"store\.checkpoints\(\)"),
        (lambda: list(store), r"store\.checkpoints\(\)"),
        (lambda: 7 in store, r"store\.info\(7\)"),
        (lambda: operator.setitem(cast("Any", store), 7, {}), r"store\.save\(state, step=7\)"),
        (lambda: operator.delitem(cast("Any", store), 7), r"store\.delete\(7\)"),
    ):
        with pytest.raises(TypeError, match=method):
            wrong()


def test_a_notebook_shows_results_in_words_and_never_more_than_two_screens(store: Store) -> None:
    for step in range(60):
        store.save({"<b>": step}, step=step, metrics={"loss": 1 / (1 + step)})
    infos: Any = store.checkpoints()
    difference: Any = store.diff(0, 1)
    shown = infos._repr_html_()

    assert "main@0" in shown
    assert "... 12 more ..." in shown
    assert "60 in all" in shown
    results: list[Any] = [store, infos[0], difference, plan_of(store, RetentionPolicy(keep_last=1))]
    for one in results:
        assert len(one._repr_html_().splitlines()) <= 50
    assert "<b>" not in difference._repr_html_()


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda store, path: Store.open(f"{path}/a\0b"), r"a path has no NUL characters, got '.*a\\x00b'"),
        (lambda store, path: Store.init(f"{path}/a\0b"), "a path has no NUL"),
        (lambda store, path: Store.open(cast("Any", 5)), "a path is a str or a Path, got 5"),
        (lambda store, path: store.checkout(1, f"{path}/a\0b"), "a path has no NUL"),
        (lambda store, path: store.export(1, f"{path}/a\0b"), "a path has no NUL"),
        (lambda store, path: store.commit(f"{path}/a\0b", step=2), "a path has no NUL"),
        (lambda store, path: store.verify(repair=True, repair_from=f"{path}/a\0b"), "a path has no NUL"),
        (lambda store, path: store.report(f"{path}/a\0b"), "a path has no NUL"),
        (lambda store, path: store.push(remote=f"{path}/a\0b"), "a path has no NUL"),
        (lambda store, path: store.latest(run=1), "a run name has .*, got 1"),
        (lambda store, path: store.latest(run=["main"]), r"a run name has .*, got \['main'\]"),
        (lambda store, path: Budget(cast("Any", None)), "max_bytes must be an integer from 1, got None"),
        (lambda store, path: store.save({}, tags=None), "tags must be a list of names, got None"),
        (lambda store, path: store.save_async({}, tags=5), "tags must be a list of names, got 5"),
        (lambda store, path: store.save({}, progress=5), "progress must be a function .*, got 5"),
        (lambda store, path: store.load(1, progress="bar"), "progress must be a function .*, got 'bar'"),
        (lambda store, path: store.verify(progress=[]), r"progress must be a function .*, got \[\]"),
        (lambda store, path: store.checkpoints(newest="1"), "newest must be a number of checkpoints, .*, got '1'"),
        (lambda store, path: store.follow(timeout_s="1"), "timeout_s must be a number of seconds, .*, got '1'"),
        (lambda store, path: store.verify(sample="1"), "sample must be above 0 and at most 1, got '1'"),
        (lambda store, path: store.verify(budget_s="1"), "budget_s must be a number of seconds above 0, got '1'"),
        (lambda store, path: store.verify(rate_bytes_s="1"), "a rate is a number of bytes a second .*, got '1'"),
        (lambda store, path: store.touch(1, run=5), "a run name has .*, got 5"),
        (lambda store, path: store.untag(["a"]), r"the name of a tag is a str, got \['a'\]"),
        (lambda store, path: Store.open(""), "the path is empty"),
        (lambda store, path: store.verify(repair_from=""), "the path is empty"),
        (
            lambda store, path: store.commit(5),
            r"commit failed: paths must be of type str \| os.Path.*, got 5",
        ),
        (lambda store, path: store.checkout(1, path / "x", only=5), "only must be of type .*, got 5"),
        (lambda store, path: store.compact(refs=[None]), "a ref is a string, a step number or a CheckpointInfo"),
        (lambda store, path: store.verify(repair_from=5), "repair_from must be of type .*, got 5"),
        (lambda store, path: store.verify(sample=True), "sample must be above 0 and at most 1, got True"),
        (lambda store, path: store.write_metrics(path / "x", labels=5), "labels must be of type .*, got 5"),
        (lambda store, path: store.checkpoints(newest=1.5), "newest must be of type int .*, got 1.5"),
        (lambda store, path: store.push(remote=path, bwlimit=math.nan), "bwlimit must be a number .*, got nan"),
        (lambda store, path: store.push(remote=path, run=5), "a run name has .*, got 5"),
        (lambda store, path: store.events(run="*"), r"a run name has .*, got '\*'"),
        (lambda store, path: training.capture(extra=cast("Any", 5)), "extra must be of type Mapping.*, got 5"),
        (
            lambda store, path: training.check("missing:loop", steps=cast("Any", "3")),
            "steps must be of type int, got '3'",
        ),
        (lambda store, path: track(cast("Any", "store")), "store must be a Store, got 'store'"),
        (lambda store, path: pickle.dumps(store.config), "<settings of .*> cannot be pickled"),
        (lambda store, path: pickle.dumps(store.remotes), "<remotes of .*> cannot be pickled"),
    ],
)
def test_a_wrong_argument_is_refused_and_nothing_is_written(
    tmp_path: Path, call: Callable[[Any, Path], Any], message: str
) -> None:
    store = Store.init(tmp_path / "store")
    store.save({"w": torch.ones(1)}, step=1)

    with pytest.raises(BadInput, match=message):
        call(store, tmp_path)
    assert [info.step for info in store.checkpoints()] == [1]


VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


IN_STEP = {"state": {"w": torch.ones(4)}, "step": 2, "if_exists": "keep"}
CALLS: dict[str, dict[str, Any]] = {
    "annotate": {"ref": 1, "note": "x"},
    "best": {"metric": "loss"},
    "checkout": {"ref": 1, "destination": "NEW"},
    "checkpoints": {},
    "close": {},
    "commit": {"paths": "FILE", "step": 2, "if_exists": "keep"},
    "compact": {"dry_run": True},
    "delete": {"ref": 1, "dry_run": True},
    "diff": {"before": 1},
    "events": {},
    "evict": {"ref": 1, "dry_run": True, "run": None, "all": False, "tagged": False},
    "export": {"ref": 1, "destination": "NEW"},
    "export_safetensors": {"ref": 1, "destination": "NEW"},
    "follow": {"timeout_s": 0},
    "gc": {"dry_run": True},
    "info": {},
    "latest": {},
    "load": {},
    "load_into": {"target": {"w": torch.zeros(4)}, "strict": False},
    "metrics": {},
    "open_checkpoint": {},
    "pin": {"ref": 1, "reason": "x"},
    "prune": {"policy": RetentionPolicy(keep_last=2), "dry_run": True},
    "publish": {"run": "main", "directory": "NEW", "timeout_s": 0},
    "pull": {"dry_run": True, "run": None, "all": False, "tagged": False, "bwlimit": None},
    "push": {"dry_run": True, "run": None, "all": False, "tagged": False, "bwlimit": None},
    "reindex": {},
    "rename_run": {"old": "missing", "new": "other"},
    "report": {},
    "save": IN_STEP,
    "save_async": IN_STEP,
    "tag": {"name": "a-tag"},
    "touch": {},
    "undo": {"ref": "main@7"},
    "unpin": {"ref": 1},
    "untag": {"name": "missing"},
    "verify": {},
    "verify_export": {"export": "FILE"},
    "why": {"digest": "ffffff"},
    "write_metrics": {"path": "NEW"},
    "background.flush": {"timeout_s": 0},
    "background.prewarm": {},
    "background.staging_bytes": {"state": {}},
    "background.wait": {},
    "remotes.add": {"name": "other", "target": "NEW"},
    "remotes.claims": {"name": "copy"},
    "remotes.convert": {"name": "copy", "new": "new", "directory": "NEW"},
    "remotes.get": {"name": "copy"},
    "remotes.probe": {"name": "copy"},
    "remotes.prune": {"name": "copy", "dry_run": True},
    "remotes.release": {"name": "copy", "store": "missing"},
    "remotes.remove": {"name": "missing"},
    "remotes.take_over": {"name": "copy", "run": "main"},
    "remotes.verify": {"name": "copy"},
}
"""The methods that take arguments, with arguments that change nothing which a later call needs."""
FUNCTIONS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "Store": (Store, {"path": "STORE"}),
    "Store.clone": (Store.clone, {"source": "COPY", "path": "NEW"}),
    "Store.init": (Store.init, {"path": "NEW"}),
    "Store.open": (Store.open, {"path": "STORE"}),
    "Store.open_or_init": (Store.open_or_init, {"path": "NEW"}),
    "capture": (training.capture, {}),
    "import_history": (training.import_history, {"store": "OPEN", "folder": "FOLDER"}),
    "provenance": (training.provenance, {}),
    "restore": (training.restore, {"store": "OPEN"}),
    "dcp.save": (dcp.save, {"state": {"w": torch.ones(4)}, "store": "OPEN", "step": 1, "if_exists": "keep"}),
    "dcp.load": (dcp.load, {"state": {"w": torch.ones(4)}, "store": "OPEN", "ref": 1, "strict": False}),
    "CkstoreReader": (dcp.CkstoreReader, {"store": "OPEN"}),
    "CkstoreWriter": (dcp.CkstoreWriter, {"store": "OPEN", "step": 9}),
    "track": (track, {"store": "OPEN"}),
}
# A rate or a timeout of the large number is not waited for.
WRONG = (-1, math.nan, 1e6 + 0.5, b"x", object(), [None], {"a": None}, "x" * 300, torch.ones(2))
TAKING_NONE = {"du", "doctor", "migrate", "mirror_status", "pins", "runs", "savers", "tags", "undoable", "remotes.list"}


def test_each_public_method_with_arguments_is_called_with_wrong_ones() -> None:
    methods = {
        f"{prefix}{name}"
        for prefix, cls in (("", Store), ("background.", BackgroundSaves), ("remotes.", Remotes))
        for name, member in inspect.getmembers(cls, callable)
        if not name.startswith("_") and f"Store.{name}" not in FUNCTIONS
    }

    assert methods == CALLS.keys() | TAKING_NONE


@pytest.mark.parametrize("name", [*CALLS, *FUNCTIONS])
def test_a_value_of_a_wrong_type_is_accepted_or_refused_with_an_error_of_ckstore(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    store = Store.init("store")
    for step in (1, 2):
        store.save({"w": torch.full((4,), step)}, step=step, metrics={"loss": step})
    Path("file").touch()
    Path("folder").mkdir()
    store.remotes.add("copy", "copy")
    store.push(remote="copy")
    stand_ins = {"STORE": "store", "COPY": "copy", "FILE": "file", "FOLDER": "folder", "OPEN": store}
    method, arguments = FUNCTIONS.get(name) or (operator.attrgetter(name)(store), CALLS[name])
    options = {one.name for one in inspect.signature(method).parameters.values() if one.kind not in VARIABLE}
    for number, (option, value) in enumerate(itertools.product(sorted(options | arguments.keys()), WRONG)):
        stand_ins["NEW"] = f"new-{number}"
        given = {key: stand_ins.get(one, one) if isinstance(one, str) else one for key, one in arguments.items()}
        with contextlib.suppress(CkstoreError), warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            result = method(**given | {option: value})
            if name in ("follow", "publish"):
                next(iter(result), None)
            if name == "save_async":
                result.exception()
            if isinstance(result, Store | Follower | OpenCheckpoint | PendingSave):
                getattr(result, "close", bool)()

    assert [info.step for info in store.checkpoints()][:2] == [1, 2]
    store.close()
    check_store(Path("store"))


def test_the_name_of_a_value_is_text(store: Store) -> None:
    store.save({"w": torch.ones(1)}, step=1)

    with store.open_checkpoint(1) as checkpoint:
        for read in (checkpoint.slice, checkpoint.open_file, checkpoint.__getitem__):
            with pytest.raises(BadInput, match="must be of type str, got 5"):
                read(cast("Any", 5))
