"""A committed file is loaded as what torch.load with ``weights_only``, or safetensors, gives."""

from __future__ import annotations

import io
import pickle
import warnings
from argparse import Namespace
from collections import OrderedDict, UserDict
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

from ckstore import CannotLoad, NoSuchRef, Store
from ckstore.errors import BadInput, DamagedBlob, DoesNotFit
from tests.containers.files import pickle_file, torch_file
from tests.support.damage import blobs_by_size, flip
from tests.support.states import arrays, assert_same, scalars, states, tensors

FILES = Path(__file__).parents[2] / "containers" / "torch_files"
OF_TORCH_2_6 = sorted(path for path in FILES.iterdir() if path.suffix != ".py" and path.is_file())
OF_LATER_TORCH = sorted(path for path in FILES.glob("*.*/*") if path.is_file())
_NUMPY_CORE: Any = getattr(np, "_core", None) or np.core  # the second is NumPy 1
OF_NUMPY: list[Any] = [
    *(
        (getattr(_NUMPY_CORE.multiarray, name), f"numpy.{core}.multiarray.{name}")
        for name in ("_reconstruct", "scalar")
        for core in ("_core", "core")  # as NumPy 2 and NumPy 1 write it
    ),
    np.ndarray,
    np.dtype,
    *{type(np.dtype(code)) for code in "?bhilqBHILQefdgFDGMmSU"},
]


pytestmark = pytest.mark.filterwarnings("ignore:Sparse CSR tensor support", "ignore:ComplexHalf support")
"""What torch warns of when it loads such tensors."""


def by_torch(data: bytes) -> Any:
    """Return what torch loads, when it was told to trust NumPy."""
    with torch.serialization.safe_globals(OF_NUMPY), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Validating sparse tensor invariants")  # torch 2.14 says it
        return torch.load(io.BytesIO(data), weights_only=True)


def committed(store: Store, tmp_path: Path, data: bytes, name: str = "x.pt") -> Store:
    """Commit a file with these bytes at the next step."""
    (tmp_path / name).write_bytes(data)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        store.commit(tmp_path / name, step=len(store.checkpoints()))
    return store


def assert_loaded(want: Any, got: Any) -> None:
    """Compare, sparse tensors apart, which lie nowhere in one row."""
    if isinstance(want, dict):
        tensors = {name: value for name, value in want.items() if isinstance(value, torch.Tensor)}
        for name in [name for name, tensor in tensors.items() if tensor.layout is not torch.strided]:
            one, other = want.pop(name), got.pop(name)
            assert one.layout is other.layout
            assert one.shape == other.shape
            assert torch.equal(one.to_dense(), other.to_dense())
    assert_same(want, got)


@pytest.mark.parametrize("path", OF_TORCH_2_6 + OF_LATER_TORCH, ids=lambda path: str(path.relative_to(FILES)))
def test_a_file_of_an_earlier_torch_is_what_torch_loads(path: Path, store: Store) -> None:
    store.commit(path, step=0)

    assert_loaded(by_torch(path.read_bytes()), store.load(file=path.name))


@pytest.mark.parametrize("path", OF_TORCH_2_6, ids=lambda path: path.name)
def test_a_file_written_now_is_what_torch_loads(path: Path, store: Store, tmp_path: Path) -> None:
    if path.name == "rng_state.pth":
        pytest.importorskip("numpy._core", reason="NumPy 1.26.0 cannot unpickle arrays of NumPy 2")
    state = torch.load(path, weights_only=False)
    data = torch_file(state, _use_new_zipfile_serialization="legacy" not in path.name)
    committed(store, tmp_path, data)

    assert_loaded(by_torch(data), store.load(file="x.pt"))


@pytest.mark.property
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=states(), legacy=st.booleans())
def test_what_torch_loads_is_loaded_the_same(state: Any, legacy: bool, store: Store, tmp_path: Path) -> None:
    try:
        data = torch_file(state, _use_new_zipfile_serialization=not legacy)
        want = by_torch(data)
    except (RuntimeError, pickle.UnpicklingError, AttributeError, TypeError):  # what torch does not save or load
        reject()
    committed(store, tmp_path, data)
    try:
        got = store.load(file="x.pt")
    except CannotLoad as error:
        if any("pending conjugation" not in why for why in error.refused.values()):
            raise
        reject()

    assert_same(want, got)
    assert_same(want, store.load(file="x.pt", mmap=True))


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_every_protocol_of_pickle_is_read(protocol: int, store: Store, tmp_path: Path) -> None:
    state = {"w": torch.ones(2), "n": np.arange(5), "s": {1}, "b": b"ab", "o": OrderedDict(a=1.5), "x": np.float32(2)}
    for name, options in {"zip.pt": {}, "legacy.pt": {"_use_new_zipfile_serialization": False}}.items():
        committed(store, tmp_path, torch_file(state, pickle_protocol=protocol, **options), name)

        assert_same(state, store.load(file=name))


@pytest.mark.parametrize("protocol", [1, 2, 5])
def test_the_options_of_a_script_are_loaded_with_the_rest(protocol: int, store: Store, tmp_path: Path) -> None:
    args = Namespace(lr=0.1, data=["a"], inner=SimpleNamespace(w=torch.ones(3)))
    state = {"args": args, "more": UserDict(a=1), "again": args, "model": {"w": torch.ones(4)}}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        committed(store, tmp_path, torch_file(state, pickle_protocol=protocol))

    found: Any = store.load(file="x.pt")

    assert (found["args"].lr, found["args"].data, type(found["args"].inner)) == (0.1, ["a"], SimpleNamespace)
    assert torch.equal(found["args"].inner.w, torch.ones(3))
    assert (type(found["more"]), dict(found["more"])) == (UserDict, {"a": 1})
    assert torch.equal(found["model"]["w"], torch.ones(4))


def _endless() -> Namespace:
    args = Namespace()
    args.own = args
    return args


def _deep() -> Namespace:
    args = Namespace()
    for _ in range(150):
        args = Namespace(a=args)
    return args


def _often() -> Namespace:
    args = Namespace()
    for _ in range(60):
        args = Namespace(a=args, b=args)
    return args


@pytest.mark.parametrize(
    "make, why", [(_endless, "contains itself"), (_deep, "nested deeper"), (_often, "repeats values more often")]
)
def test_options_that_have_no_end_are_refused(
    make: Callable[[], Namespace], why: str, store: Store, tmp_path: Path
) -> None:
    committed(store, tmp_path, torch_file({"args": make()}))

    with pytest.raises(CannotLoad, match=why):
        store.load(file="x.pt")


@pytest.mark.parametrize("alignment", [1, 4096])
@pytest.mark.parametrize("crc32", [True, False])
def test_a_file_that_was_written_with_other_settings_of_torch_is_read(  # they are younger than torch 2.6
    alignment: int, crc32: bool, store: Store, tmp_path: Path
) -> None:
    config = pytest.importorskip("torch.utils.serialization.config")

    before = config.save.storage_alignment, torch.serialization.get_crc32_options()
    config.save.storage_alignment = alignment
    torch.serialization.set_crc32_options(crc32)
    try:
        data = torch_file({"a": torch.arange(1000.0), "b": [torch.ones(3).bfloat16(), torch.empty(0)], "n": 3})
    finally:
        config.save.storage_alignment = before[0]
        torch.serialization.set_crc32_options(before[1])

    committed(store, tmp_path, data)

    assert_loaded(by_torch(data), store.load(file="x.pt"))


def test_a_safetensors_file_is_a_dict_of_its_tensors(store: Store, tmp_path: Path) -> None:
    state = {"a.b": torch.randn(3, 2), "c": torch.arange(3), "e": torch.zeros(0, 2, dtype=torch.bfloat16)}
    committed(store, tmp_path, safetensors.torch.save(state), "model.safetensors")

    found = store.load(file="model.safetensors")

    assert {name: found[name] for name in sorted(found)}.keys() == state.keys()
    for name, tensor in state.items():
        assert_same(tensor, found[name])


def test_views_of_one_memory_are_so_afterwards(store: Store, tmp_path: Path) -> None:
    base = torch.arange(12.0).reshape(3, 4)
    state = {"base": base, "row": base[1], "t": base.t(), "wide": base[:1].expand(5, 4)}
    for number, legacy in enumerate((False, True)):
        committed(store, tmp_path, torch_file(state, _use_new_zipfile_serialization=not legacy), f"{number}.pt")
        found = store.load(file=f"{number}.pt")

        assert_same(state, found)
        found["base"][1] = 7
        assert found["row"].tolist() == [7] * 4
        assert found["wide"].stride() == (0, 1)


class Arguments:
    """What a trainer keeps of its settings."""


def test_an_object_is_refused_by_name_with_its_path(store: Store, tmp_path: Path) -> None:
    committed(store, tmp_path, torch_file(Arguments()), "training_args.bin")
    with pytest.raises(CannotLoad) as caught:
        store.load(file="training_args.bin")

    assert str(caught.value).startswith(
        "training_args.bin of main@0 cannot be loaded as a state:\n"
        f"  the state itself: {__name__}.Arguments cannot be loaded"
    )
    assert caught.value.refused == {"": f"{__name__}.Arguments cannot be loaded"}
    assert (caught.value.file, caught.value.exit_status) == ("training_args.bin", 1)


def test_all_that_is_refused_is_named_and_the_rest_can_be_selected(store: Store, tmp_path: Path) -> None:
    wave = torch.ones(2, dtype=torch.complex64)
    state = {"model": {"w": torch.ones(2)}, "args": Arguments(), "list": [1, {"p": Path("a")}], "conj": wave.conj()}
    state |= {"storage": torch.ones(2).untyped_storage(), "meta": torch.zeros(3, device="meta"), "class": Arguments}
    committed(store, tmp_path, torch_file(state))
    with pytest.raises(CannotLoad) as caught:
        store.load(file="x.pt")

    assert set(caught.value.refused) == {"args", "list[1].p", "conj", "storage", "meta", "class"}
    assert "pathlib" in caught.value.refused["list[1].p"]
    assert "select= loads the other values" in str(caught.value)
    assert_same({"model": {"w": torch.ones(2)}}, store.load(file="x.pt", select="model"))
    assert_same([1, None], store.load(file="x.pt", select="list[0]")["list"])


@pytest.mark.parametrize(
    "data, why",
    [
        (b"", "wanted a safetensors file, or one that torch.save wrote"),
        (b"hello", "wanted a safetensors file, or one that torch.save wrote"),
        (pickle.dumps({"a": 1}), "found another file, or a plain pickle"),
        (pickle_file(b"\x80\x02}"), "the pickle: wanted an opcode"),
        (pickle_file(pickle.dumps({"a": 1}), byteorder=b"big"), "wanted little"),
        (pickle_file(pickle.dumps([[]] * 9)).replace(b"a/data.pkl", b"a/data.xyz"), "wanted one that torch.save wrote"),
        (torch_file([torch.ones(2)], _use_new_zipfile_serialization=False)[:-1], "wanted 2 elements inside the file"),
        (torch_file([torch.ones(2)], _use_new_zipfile_serialization=False) + b"x", "an end at the end of the file"),
    ],
)
def test_a_file_that_holds_no_state_is_refused(data: bytes, why: str, store: Store, tmp_path: Path) -> None:
    committed(store, tmp_path, data)
    with pytest.raises(CannotLoad, match=why):
        store.load(file="x.pt")


def test_a_path_that_is_no_file_is_refused_with_those_that_are(store: Store, tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-5"
    (folder / "below").mkdir(parents=True)
    (folder / "a.pt").write_bytes(torch_file({"a": 1}))
    (folder / "link.pt").symlink_to("a.pt")
    store.commit(folder)
    with pytest.raises(NoSuchRef, match=r"main@5 has no file 'b.pt' \(it has a.pt\)"):
        store.load(file="b.pt")
    with pytest.raises(CannotLoad, match=r"link.pt of main@5 is a symlink"):
        store.load(file="link.pt")
    with pytest.raises(CannotLoad, match=r"below of main@5 is a directory"):
        store.load(file="below")
    with pytest.raises(BadInput, match="file must be the path"):
        store.load(file=5)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match=r"file='a.pt' loads the state in that file"):
        store.load()
    assert store.load(file="a.pt") == {"a": 1}
    store.save({"a": 1})
    with pytest.raises(NoSuchRef, match=r"is a saved state, and has no file 'a.pt' \(leave file= out\)"):
        store.load(file="a.pt")


@pytest.mark.parametrize("legacy", [False, True])
def test_damage_in_a_file_is_found(legacy: bool, tmp_path: Path) -> None:
    store = Store.init(tmp_path / "store")
    state = {"w": torch.arange(2.0**16), "text": "x" * 5000}
    committed(store, tmp_path, torch_file(state, _use_new_zipfile_serialization=not legacy))
    flip(blobs_by_size(store, "latest")[-1])
    with pytest.raises(DamagedBlob):
        store.load(file="x.pt")


def trained() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """Return a model and its optimizer after a step."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.BatchNorm1d(2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(4, 3)).sum().backward()
    optimizer.step()
    return model, optimizer


@pytest.mark.parametrize("legacy", [False, True])
def test_what_a_trainer_wrote_goes_straight_into_a_model_and_its_optimizer(
    legacy: bool, store: Store, tmp_path: Path
) -> None:
    model, optimizer = trained()
    folder = tmp_path / "checkpoint-7"
    folder.mkdir()
    torch.save(model.state_dict(), folder / "pytorch_model.bin", _use_new_zipfile_serialization=not legacy)
    torch.save(optimizer.state_dict(), folder / "optimizer.pt", _use_new_zipfile_serialization=not legacy)
    safetensors.torch.save_file(model.state_dict(), folder / "model.safetensors")
    store.commit(folder)
    for name in ("pytorch_model.bin", "model.safetensors"):
        other, other_optimizer = trained()
        report = store.load_into(other, file=name)
        store.load_into(other_optimizer, file="optimizer.pt")

        assert str(report) == "main@7 loaded"
        assert_same(model.state_dict(), other.state_dict())
        assert_same(optimizer.state_dict(), other_optimizer.state_dict())
        assert store.load_into(other, file=name, since=report).read_bytes == 0
        assert store.load_into(other, file=name, since=7).read_bytes == 0


def test_a_file_that_does_not_fit_is_named(store: Store, tmp_path: Path) -> None:
    committed(store, tmp_path, torch_file({"0.weight": torch.ones(2, 4)}), "pytorch_model.bin")
    model, _ = trained()
    with pytest.raises(DoesNotFit, match=r"^pytorch_model.bin of main@0 does not fit the target, nothing was loaded"):
        store.load_into(model, file="pytorch_model.bin")
    with pytest.raises(DoesNotFit, match=r"file='pytorch_model.bin' loads the state in that file"):
        store.load_into(model)


@pytest.mark.property
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(state=st.dictionaries(st.text("ab.", max_size=2), tensors() | scalars() | arrays(), max_size=4))
def test_a_saved_state_and_its_file_differ_in_nothing(state: Any, store: Store, tmp_path: Path) -> None:
    for name, value in state.items():
        if isinstance(value, torch.Tensor):  # a file has all of a storage, a saved state what tensors look at
            state[name] = value.contiguous().clone().resolve_conj()
    try:
        data = torch_file(state)
    except RuntimeError:
        reject()
    committed(store, tmp_path, data)
    loaded = store.load(file="x.pt")
    saved = store.save(loaded)

    found = store.diff(saved.step - 1, saved, file="x.pt")

    assert not found
    assert found.same_content
    assert found.before == f"x.pt of main@{saved.step - 1}"
    assert found.after == f"main@{saved.step}"


def test_files_are_compared_by_what_they_hold(store: Store, tmp_path: Path) -> None:
    state = {"w": torch.zeros(4), "same": torch.ones(2), "rng": np.arange(9), "lr": 0.1, "text": "x" * 5000}
    committed(store, tmp_path, torch_file(state))
    committed(store, tmp_path, torch_file({**state, "w": torch.full((4,), 0.5), "lr": 0.2, "new": 1}), "y.pt")
    found = store.diff(0, 1, file=("x.pt", "y.pt"), values=True)

    assert [change.name for change in found.changed] == ["w"]
    assert found.changed[0].difference is not None
    assert found.changed[0].difference.largest_absolute == 0.5
    assert [(one.name, one.before, one.after) for one in found.plain] == [("lr", 0.1, 0.2), ("new", None, 1)]
    assert (found.unchanged_count, found.same_content) == (3, False)
    with pytest.raises(NoSuchRef, match=r"main@1 has no file 'x.pt' \(it has y.pt\)"):
        store.diff(0, 1, file="x.pt")
    with pytest.raises(BadInput, match="one for each of two checkpoints, got 3"):
        store.diff(0, 1, file=("x.pt", "y.pt", "z.pt"))  # type: ignore[arg-type]
    store.save(state)
    store.save(state)
    with pytest.raises(BadInput, match="both checkpoints are saved states"):
        store.diff(2, 3, file="x.pt")
    assert not store.diff(0, 2, file="x.pt")


def test_a_file_that_cannot_be_compared_is_refused_without_advice_to_select(store: Store, tmp_path: Path) -> None:
    committed(store, tmp_path, torch_file({"a": Arguments()}))
    with pytest.raises(CannotLoad) as caught:
        store.diff(0, 0, file="x.pt")

    assert "select=" not in str(caught.value)
