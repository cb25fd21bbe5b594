"""Loads are strict in both directions: what only the checkpoint has counts as what only the target has."""

from __future__ import annotations

import io
import itertools
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import save as torch_save

from ckstore import CkstoreError, CkstoreWarning, DoesNotFit, RankMismatch, Store, add_safe_globals
from ckstore.integrations import dcp
from ckstore.training import capture
from tests.support.gloo import Group
from tests.support.stores import check_store

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")
CASES = Path(__file__).with_name("dcp_cases.py")
Load = Callable[..., Any]


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.init(tmp_path / "store")


@pytest.fixture(scope="module")
def pair(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    with Group(2, tmp_path_factory.mktemp("pair"), CASES, python=warm / "python") as group:
        yield group


def by_dcp(store: Store, state: dict[str, Any], **options: Any) -> Any:
    return dcp.load(store, state, "latest", **options)


def by_load_into(store: Store, state: dict[str, Any], **options: Any) -> Any:
    return store.load_into(state, "latest", **options)


PARTS = ("model", "optim", "ema")
MORE, LESS, OTHER = "a name more", "a name less", "another shape"
STRICT: list[Any] = [True, False, "model", ["model", "ema"], ["*.w"]]


def part(how: str, value: float) -> dict[str, Any]:
    """Return a part of a target, as it differs from what was saved."""
    found = {"w": torch.full((5,) if how == OTHER else (4,), value), "b": torch.full((2,), value)}
    if how == LESS:
        del found["w"]
    return {**found, "more": torch.full((3,), value)} if how == MORE else found


def refuses(strict: Any, differing: dict[str, str]) -> bool:
    """Say what is to be: a difference at a name that `strict` has."""
    names = {f"{key}.more" if how == MORE else f"{key}.w" for key, how in differing.items()}
    if isinstance(strict, bool):
        return strict and bool(names)
    globs = [strict] if isinstance(strict, str) else strict
    return any(
        name.startswith(f"{glob}.") or (glob == "*.w" and name.endswith(".w")) for glob in globs for name in names
    )


@pytest.mark.parametrize("load", [by_dcp, by_load_into])
@pytest.mark.parametrize("strict", STRICT, ids=str)
def test_a_load_is_refused_if_a_part_that_is_strict_differs_and_reports_all_others(
    store: Store, load: Load, strict: Any
) -> None:
    dcp.save(store, {key: part("", 1.0) for key in PARTS}, 1)
    for hows in itertools.product(("", MORE, LESS, OTHER), repeat=len(PARTS)):
        differing = {key: how for key, how in zip(PARTS, hows, strict=True) if how}
        state = {key: part(how, 7.0) for key, how in zip(PARTS, hows, strict=True)}
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            if refuses(strict, differing):
                with pytest.raises(DoesNotFit) as caught:
                    load(store, state, strict=strict)
                found: Any = caught.value
                wrong = found.mismatched
            else:
                found = load(store, state, strict=strict)
                wrong = found.not_loaded

        loaded = not isinstance(found, DoesNotFit)
        said = [str(one.message) for one in told if issubclass(one.category, CkstoreWarning)]
        assert said == ([found.summary] if loaded and differing else [])
        assert loaded is False or bool(found.summary) == ("except:" in str(found))
        assert set(found.missing) == {f"{key}.more" for key, how in differing.items() if how == MORE}
        assert set(wrong) == {f"{key}.w" for key, how in differing.items() if how == OTHER}
        if load is by_load_into or loaded or not (found.missing or wrong):
            assert set(found.unexpected) == {f"{key}.w" for key, how in differing.items() if how == LESS}
        for key, how in zip(PARTS, hows, strict=True):
            for name, tensor in state[key].items():
                fits = loaded and name != "more" and not (name == "w" and how == OTHER)
                assert set(tensor.tolist()) == {1.0 if fits else 7.0}, (differing, key, name)


@pytest.mark.parametrize("load", [by_dcp, by_load_into])
def test_a_misspelt_part_is_an_error_and_does_not_make_a_load_lenient(store: Store, load: Load) -> None:
    dcp.save(store, {"model": part("", 1.0)}, 1)

    for strict in ("modle", ["model", "modle"]):
        with pytest.raises(CkstoreError, match="'modle'"):
            load(store, {"model": part(LESS, 7.0)}, strict=strict)


def test_a_name_that_another_rank_has_a_place_for_is_not_unexpected(pair: Group, store: Store) -> None:
    pair.run("save_stages", store=str(store.path), step=1)

    reports = pair.run("load_stages", store=str(store.path), step=1, count=2)
    assert [(report.unexpected, said) for report, said in reports] == [((), [])] * 2
    for error in pair.call("load_stages", store=str(store.path), step=1, count=1):
        assert isinstance(error, DoesNotFit)
        assert error.unexpected == ("stage.1.w",)
        assert "strict=False" in error.hint
    lenient = pair.run("load_stages", store=str(store.path), step=1, count=1, strict=False)
    assert [report.unexpected for report, _ in lenient] == [("stage.1.w",)] * 2
    assert [said for _, said in lenient] == [[lenient[0][0].summary], []]  # once, and not by each rank


def make(names: str = "ab") -> tuple[Any, Any]:
    torch.manual_seed(0)
    model = torch.nn.ModuleDict({name: torch.nn.Linear(4, 1) for name in names})
    return model, torch.optim.AdamW(model.parameters(), lr=0.1)


def train(model: Any, optimizer: Any, steps: range, used: str = "ab") -> None:
    for step in steps:
        torch.manual_seed(step)
        optimizer.zero_grad()
        inputs = torch.randn(8, 4)
        loss: Any = sum(model[name](inputs).square().mean() for name in used)
        loss.backward()
        optimizer.step()


def load_by_hand(store: Store, model: Any, optimizer: Any) -> None:
    state: Any = store.load("latest")
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optim"])


@pytest.mark.parametrize("keys", ["kept", "as text"])
@pytest.mark.parametrize("way", ["load", "load_into", "dcp.load"])
def test_numbers_that_are_keys_stay_numbers_and_the_optimizer_goes_on(store: Store, keys: str, way: str) -> None:
    model, optimizer = make()
    train(model, optimizer, range(3))
    state = {"model": model, "optim": optimizer, "epochs": {3: 0.5, "3b": 1, (1, "x"): 2}}
    if keys == "kept":
        dcp.save(store, state, 1)
        assert store.load(1)["epochs"] == {3: 0.5, "3b": 1, (1, "x"): 2}
    else:  # torch's own save gives its writer nothing but text
        torch_save(state, storage_writer=dcp.CkstoreWriter(store, 1))
        if way == "load":
            return
    train(model, optimizer, range(3, 6))
    again, its = make()
    if way == "load":
        load_by_hand(store, again, its)
    elif way == "load_into":
        store.load_into({"model": again, "optim": its}, 1, select=["model", "optim"])
    else:
        train(again, its, range(1))
        target = {"model": again, "optim": its, "epochs": {3: 0.0, "3b": 0, (1, "x"): 0}}
        assert str(dcp.load(store, target, 1)) == "main@1 loaded"
        assert target["epochs"] == {3: 0.5, "3b": 1, (1, "x"): 2}
    train(again, its, range(3, 6))

    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_a_directory_of_torch_names_the_keys_that_it_makes_text_of(store: Store, tmp_path: Path) -> None:
    store.save({"optim": {"state": {0: torch.ones(2)}}, "w": torch.ones(2)}, 1)

    report = store.export(1, tmp_path / "out", format="dcp")

    assert report.left_out == ("optim.state: the keys of this dict that are not strings: torch reads them as text",)


@pytest.mark.parametrize("key", [7, "7", "other"])
def test_what_is_kept_for_no_parameter_of_the_optimizer_is_a_difference(store: Store, key: object) -> None:
    model, optimizer = make()
    train(model, optimizer, range(1))
    saved = optimizer.state_dict()
    saved["state"][key] = saved["state"].pop(0)
    store.save({"optim": saved}, 1)
    _, target = make()

    with pytest.raises(DoesNotFit, match="the state of one of 4 parameters wanted, found another key") as caught:
        store.load_into({"optim": target}, 1)
    name = "optim.state[7]" if key == 7 else f"optim.state.{key}"
    assert list(caught.value.mismatched) == [name]
    assert not target.state


def test_an_optimizer_that_has_not_stepped_is_refused_by_dcp_with_the_way_that_works(store: Store) -> None:
    model, optimizer = make()
    train(model, optimizer, range(2))
    dcp.save(store, {"model": model, "optim": optimizer}, 1)
    again, its = make()

    with pytest.raises(DoesNotFit) as caught:
        dcp.load(store, {"model": again, "optim": its}, 1)
    assert len(caught.value.unexpected) == 12
    assert "optim has not stepped, so it has no state to load into: get_state_dict" in caught.value.hint
    weights, moments = get_state_dict(again, its)
    with pytest.raises(DoesNotFit) as caught:
        dcp.load(store, {"model": weights, "optim": moments}, 1)
    assert "the state of optim has numbers of parameters on one side and names on the other" in caught.value.hint
    weights, moments = get_state_dict(model, optimizer)
    dcp.save(store, {"optim": moments}, 2)
    with pytest.raises(DoesNotFit, match="groups with the numbers of parameters wanted, found names of parameters"):
        store.load_into({"optim": its}, 2)


@pytest.mark.parametrize("flat", [False, True], ids=["nested", "flattened"])
def test_parameters_without_a_gradient_begin_afresh_and_are_named(store: Store, flat: bool) -> None:
    from torch.distributed.checkpoint.state_dict import StateDictOptions

    options = StateDictOptions(flatten_optimizer_state_dict=flat)

    def state_of(model: Any, optimizer: Any) -> Any:
        weights, moments = get_state_dict(model, optimizer, options=options)
        return {"model": weights, "optim": moments}

    model, optimizer = make()
    train(model, optimizer, range(3), used="a")
    dcp.save(store, state_of(model, optimizer), 1)
    train(model, optimizer, range(3, 6))  # from here on b has gradients
    again, its = make()
    state = state_of(again, its)
    report = dcp.load(store, state, 1)
    set_state_dict(again, its, model_state_dict=state["model"], optim_state_dict=state["optim"], options=options)
    train(again, its, range(3, 6))

    assert report.missing == report.unexpected == ()
    entries = ("step", "exp_avg", "exp_avg_sq")
    assert set(report.fresh) == {f"optim.state.b.{name}.{one}" for name in ("weight", "bias") for one in entries}
    assert "of parameters that had no gradient yet, started without state (6):" in str(report)
    assert all(torch.equal(one, other) for one, other in zip(model.parameters(), again.parameters(), strict=True))


def test_a_parameter_that_the_saved_optimizer_did_not_have_is_missing(store: Store) -> None:
    model, optimizer = make("a")
    train(model, optimizer, range(3), used="a")
    weights, moments = get_state_dict(model, optimizer)
    dcp.save(store, {"model": weights, "optim": moments}, 1)
    weights, moments = get_state_dict(*make("ab"))

    with pytest.raises(DoesNotFit) as caught:
        dcp.load(store, {"model": weights, "optim": moments}, 1)
    assert {name for name in caught.value.missing if name.startswith("optim")} == {
        f"optim.state.b.{name}.{one}" for name in ("weight", "bias") for one in ("step", "exp_avg", "exp_avg_sq")
    }


def named(names: str, steps: int = 0) -> tuple[Any, Any]:
    """Return a model and an optimizer that has its parameters by name, in this order, and its moments by name."""
    model = torch.nn.ModuleDict({name: torch.nn.Linear(3, 3, bias=False) for name in "abc"})
    groups = [{"params": [(f"{name}.weight", model[name].weight) for name in group]} for group in names.split("|")]
    optimizer = torch.optim.AdamW(groups)
    for step in range(steps):
        for value, name in enumerate("abc", 1):
            model[name].weight.grad = torch.full((3, 3), float(value + step))
        optimizer.step()
    return model, optimizer


def moments(model: Any, optimizer: Any) -> dict[str, Any]:
    kept = optimizer.state
    return {name: {key: float(one.flatten()[0]) for key, one in kept[model[name].weight].items()} for name in "abc"}


@pytest.mark.parametrize("stepped", [False, True], ids=["new", "stepped"])
@pytest.mark.parametrize("order", ["abc", "cba", "bca", "ab|c", "ba|c"])
def test_moments_follow_the_names_of_parameters(store: Store, order: str, stepped: bool) -> None:
    saved = named("ab|c" if "|" in order else "abc", steps=2)
    store.save({"optim": saved[1]}, 1)
    target = named(order, steps=int(stepped))

    assert str(store.load_into({"optim": target[1]}, 1)) == "main@1 loaded"
    assert moments(*target) == moments(*saved)
    names = [group["param_names"] for group in target[1].param_groups]
    assert names == [[f"{name}.weight" for name in group] for group in order.split("|")]


@pytest.mark.parametrize("prefix, rename", [("module.", None), ("_orig_mod.", None), ("net.", {"net.": ""})])
def test_what_wrappers_put_into_names_and_what_is_renamed_is_not_another_parameter(
    store: Store, prefix: str, rename: dict[str, str] | None
) -> None:
    model, _ = saved = named("abc")
    wrapped = torch.optim.AdamW([(f"{prefix}{name}.weight", model[name].weight) for name in "cab"])
    for value, name in enumerate("abc", 1):
        model[name].weight.grad = torch.full((3, 3), float(value))
    wrapped.step()
    store.save({"optim": wrapped}, 1)
    target = named("abc")

    store.load_into({"optim": target[1]}, 1, rename=rename)
    assert moments(*target) == moments(saved[0], wrapped)


def test_other_names_of_parameters_are_a_difference(store: Store) -> None:
    store.save({"optim": named("ab|c", steps=1)[1]}, 1)
    _, target = named("ac|b")

    with pytest.raises(DoesNotFit) as caught:
        store.load_into({"optim": target}, 1)
    assert caught.value.mismatched == {
        "optim.param_groups[0].param_names": "c.weight wanted, found b.weight",
        "optim.param_groups[1].param_names": "b.weight wanted, found c.weight",
    }
    assert not target.state


def test_dcp_refuses_an_optimizer_whose_parameters_are_in_another_order(store: Store) -> None:
    dcp.save(store, {"optim": named("abc", steps=2)[1], "w": torch.ones(2)}, 1)
    same, other = named("abc", steps=1), named("bac", steps=1)
    before = moments(*other)

    dcp.load(store, {"optim": same[1], "w": torch.zeros(2)}, 1)
    with pytest.raises(DoesNotFit) as caught:
        dcp.load(store, {"optim": other[1], "w": torch.zeros(2)}, 1)
    assert caught.value.mismatched == {"optim": "parameter 0 of group 0 is b.weight, found a.weight"}
    report = dcp.load(store, {"optim": other[1], "w": (loaded := torch.zeros(2))}, 1, strict=False)
    assert loaded.tolist() == [1.0, 1.0]
    assert list(report.not_loaded) == ["optim"]
    assert moments(*other) == before


def test_what_dcp_converts_to_a_dtype_without_a_place_for_it_is_counted(store: Store) -> None:
    dcp.save(store, {"w": torch.tensor([1.0, 1e6, float("inf")]), "v": torch.ones(2)}, 1)
    target = {"w": torch.zeros(3, dtype=torch.float16), "v": torch.zeros(2, dtype=torch.float16)}

    with pytest.warns(CkstoreWarning, match="w: float32 to float16, 1 value outside the range of the new dtype"):
        report = dcp.load(store, target, 1)
    assert report.cast == {
        "w": "float32 to float16, 1 value outside the range of the new dtype",
        "v": "float32 to float16",
    }


COMPARED = (
    "a random state",
    "a view with gaps",
    "a scalar of bfloat16",
    "a complex conjugate",
    "a number",
    "a nested tuple",
    "an array",
    "a long list",
)


@pytest.mark.parametrize("differs", [False, True], ids=["the same", "another"])
def test_a_value_that_ranks_have_under_one_name_is_the_same_or_the_save_is_refused(
    pair: Group, store: Store, differs: bool
) -> None:
    for step, kind in enumerate((*COMPARED, "a large tensor", "a shard")):
        answers = pair.call("save_values", store=str(store.path), step=step, kind=kind, differs=differs)

        if differs and kind in COMPARED:
            assert [type(answer) for answer in answers] == [RankMismatch] * 2, kind
            assert "(rank 0 and rank 1); nothing was published" in answers[0].message
            assert "own" in answers[0].message
            assert store.latest() is None or store.info("latest").step < step
        else:
            assert answers == [[], []], kind


@pytest.mark.parametrize("caching", [False, True])
def test_other_values_are_refused_where_a_planner_caches_its_plans_as_well(
    pair: Group, store: Store, caching: bool
) -> None:
    for error, resolved_count in pair.run("refused_late", store=str(store.path), caching=caching):
        assert "own (rank 0 and rank 1); nothing was published" in error
        # Without a cache before anything is read; plans that are cached do not carry what is compared.
        assert caching or resolved_count == 0

    assert store.info("latest").step == 1
    # Of two ranks that clear up at once one may leave it to the next opener.
    Store.open(store.path).close()
    check_store(store.path)


def test_ranks_that_may_differ_are_named_by_one_warning(pair: Group, store: Store) -> None:
    given = {"store": str(store.path), "kind": "a random state", "differs": True, "if_ranks_differ": "warn"}
    said = pair.call("save_values", step=1, **given)

    refused = "ranks have different values under one name, and a checkpoint stores only one of them"
    assert said == [
        [f"{refused}: own (rank 0 and rank 1)"],
        [],
    ]
    assert {"of.0", "of.1"} <= set(store.load(1))


def test_a_save_in_the_background_compares_what_ranks_have_as_well(pair: Group, store: Store) -> None:
    given = {"store": str(store.path), "kind": "a random state", "differs": True, "background": True}
    answers = pair.call("save_values", step=1, **given)

    assert [type(answer) for answer in answers] == [RankMismatch] * 2
    assert all("ranks have different values under one name" in str(answer) for answer in answers)
    assert store.latest() is None
    for error in pair.call("save_values", **{**given, "step": 1, "background": False, "if_ranks_differ": "no"}):
        assert "if_ranks_differ must be one of error, warn, got 'no'" in str(error)


@pytest.mark.parametrize("background", [False, True])
def test_an_attribute_of_a_tensor_is_named_once(store: Store, background: bool) -> None:
    tagged = torch.zeros(2)
    tagged.tag = "x"  # type: ignore[attr-defined]
    tagged._own = "of a library"  # type: ignore[attr-defined]
    name = f"t{background}.w"
    module = torch.nn.Linear(2, 2)
    module.weight.tag = "x"  # type: ignore[attr-defined]
    state = {name: tagged, "module": module}

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(2):
            if background:
                store.save_async(state, step).result(60)
            else:
                store.save(state, step)
    store.close()
    said = [str(one.message) for one in told if "power cut" not in str(one.message)]
    assert said == [f"attributes of {name} are not stored (tag). Store what you need under separate keys"]


class _Point(NamedTuple):
    x: int


class _Named(_Point):
    """Has a `__dict__`, unlike other named tuples."""


class _Allowed(_Named):
    pass


@pytest.mark.parametrize(
    "make",
    [
        lambda: torch.eye(2).to_sparse(),
        lambda: torch.eye(2).to_sparse_csr(),
        lambda: Counter("ab"),
        lambda: io.BytesIO(b"x"),
        lambda: io.BytesIO(bytes(1000)),
        lambda: _Named(1),
        lambda: _Allowed(1),
    ],
    ids=["coo", "csr", "counter", "file", "long-file", "named-tuple", "allowed"],
)
@pytest.mark.filterwarnings("ignore:Sparse CSR")
def test_attributes_that_were_set_on_other_values_are_named(
    store: Store, request: pytest.FixtureRequest, make: Callable[[], Any]
) -> None:
    add_safe_globals([_Allowed])
    value = make()
    value.tag = "x"
    vars(value)[3] = 4
    name = f"v.{request.node.callspec.id}"

    with pytest.warns(CkstoreWarning, match=rf"attributes of {name} are not stored \(tag, 3\)"):
        store.save({"v": {request.node.callspec.id: value}})
    assert store.load()["v"]


class _Warmup:
    """A schedule whose state contains the schedule that follows it, like that of warmup-scheduler."""

    def __init__(self, after: torch.optim.lr_scheduler.LRScheduler) -> None:
        self.after = after

    def state_dict(self) -> dict[str, Any]:
        return {"after": self.after, "count": 3}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


@pytest.mark.parametrize("captured", [False, True])
def test_an_object_in_the_state_of_another_is_named_once(store: Store, captured: bool) -> None:
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))], lr=1.0)
    schedule = _Warmup(torch.optim.lr_scheduler.StepLR(optimizer, 2))
    name = f"schedule{captured}"

    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for step in range(2):
            store.save(capture(**{name: schedule}) if captured else {name: schedule}, step)  # type: ignore[arg-type]
    said = [str(one.message) for one in told if "power cut" not in str(one.message)]

    wanted = f"{name}.after is stored as its state_dict() (load_state_dict of "
    assert len(said) == 1
    assert said[0].startswith(wanted)
    assert "_Warmup gets this dict instead of the torch.optim.lr_scheduler.StepLR)" in said[0]
    assert isinstance(store.load()[name]["after"], dict)
    check_store(store.path)


def test_a_resume_by_dcp_names_the_settings_of_optimizers_that_it_replaces(store: Store) -> None:
    model, optimizer = make()
    train(model, optimizer, range(2))
    dcp.save(store, {"model": model, "optim": optimizer}, 1)
    again, its = make()
    train(again, its, range(1))
    its.param_groups[0]["lr"] = 0.5

    with pytest.warns(CkstoreWarning) as told:
        dcp.load(store, {"model": again, "optim": its}, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error", CkstoreWarning)
        dcp.load(store, {"model": again, "optim": its}, 1)

    (said,) = [str(one.message) for one in told if one.category is CkstoreWarning]
    assert said == (
        "resuming from main@1: optim.param_groups[0]['lr'] is 0.1 as in the checkpoint, your program gave 0.5"
    )
