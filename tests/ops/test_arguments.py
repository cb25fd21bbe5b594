"""Words of torch, and misspelt ones, as arguments of public methods."""

from __future__ import annotations

import operator
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from ckstore import BadInput, Budget, RetentionPolicy, Store
from tests.support.plans import plan_of


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
