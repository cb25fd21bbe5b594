"""The tree of errors: its shape, the exit statuses, and that every error survives a process."""

import builtins
import inspect
import pickle
import re

import pytest

from ckstore import errors
from ckstore.errors import CannotStore, CatalogUnavailable, CkstoreError

_ALL = [c for c in vars(errors).values() if inspect.isclass(c) and issubclass(c, CkstoreError)]

# Name -> (base, exit status); design of the public surface. Programs catch by these.
_TREE = {
    "CkstoreError": ("Exception", 1),
    "StoreNotFound": ("CkstoreError", 4),
    "NoSuchRef": ("CkstoreError", 4),
    "NoSuchFile": ("NoSuchRef", 4),
    "AmbiguousRef": ("CkstoreError", 4),
    "BadInput": ("CkstoreError", 2),
    "CannotStore": ("BadInput", 1),
    "CannotLoad": ("BadInput", 1),
    "DoesNotFit": ("BadInput", 2),
    "StepExists": ("CkstoreError", 1),
    "RunInUse": ("CkstoreError", 1),
    "StateChanged": ("CkstoreError", 1),
    "NotUnchanged": ("StateChanged", 1),
    "SaveFailed": ("CkstoreError", 1),
    "InsufficientSpace": ("SaveFailed", 6),
    "SaveAbandoned": ("SaveFailed", 1),
    "UnknownOutcome": ("CkstoreError", 1),
    "RankError": ("SaveFailed", 1),
    "ReadOnlyStore": ("SaveFailed", 1),
    "MissingRanks": ("RankError", 1),
    "RankMismatch": ("RankError", 1),
    "RankFailed": ("RankError", 1),
    "DamagedBlob": ("CkstoreError", 3),
    "MissingBlob": ("DamagedBlob", 3),
    "NoWholeCheckpoint": ("DamagedBlob", 3),
    "OtherHash": ("DamagedBlob", 3),
    "CatalogUnavailable": ("CkstoreError", 1),
    "CatalogFull": ("CatalogUnavailable", 6),
    "InUse": ("CkstoreError", 5),
    "Protected": ("InUse", 5),
    "LoopFailed": ("CkstoreError", 1),
    "NewerFormat": ("CkstoreError", 1),
    "MissingExtra": ("CkstoreError", 1),
    "UnsafePlace": ("CkstoreError", 1),
    "RemoteError": ("CkstoreError", 1),
    "NoSuchRemote": ("RemoteError", 4),
    "RemoteDenied": ("RemoteError", 1),
    "RemoteFull": ("RemoteError", 6),
    "RunIsOwned": ("RemoteError", 1),
    "RemoteUnavailable": ("RemoteError", 1),
    "BytesElsewhere": ("RemoteError", 1),
}


def _make(cls: type[CkstoreError]) -> CkstoreError:
    if issubclass(cls, CannotStore):
        return cls("model.w", "why", hint="do")
    return cls("what", why="damaged", hint="do") if cls is CatalogUnavailable else cls("what", hint="do")


def test_the_tree_is_the_public_contract() -> None:
    found = {c.__name__: (c.__bases__[0].__name__, c.exit_status) for c in _ALL}

    assert found == _TREE


def test_the_picture_of_the_tree_shows_every_class_with_its_exit_status() -> None:
    drawn = re.findall(r"^    [│├└─ ]*([A-Z]\w+)\s+(\d+)\b", inspect.getdoc(errors) or "", re.MULTILINE)

    assert {name: int(status) for name, status in drawn} == {n: status for n, (_, status) in _TREE.items()}


def test_a_hint_stands_behind_a_sentence_and_below_a_list() -> None:
    assert str(CkstoreError("it is so", hint="do that")) == "it is so (do that)"
    assert str(CkstoreError("these:\n  a\n  b", hint="do that")) == "these:\n  a\n  b\n(do that)"


def test_errors_are_what_python_programs_catch_too() -> None:
    assert issubclass(errors.NoSuchRef, LookupError)
    assert issubclass(errors.NoSuchFile, FileNotFoundError)
    assert issubclass(errors.AmbiguousRef, LookupError)
    assert issubclass(errors.BadInput, ValueError)
    assert not {c.__name__ for c in _ALL} & set(dir(builtins))


@pytest.mark.parametrize("cls", _ALL)
@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_error_survives_pickling(cls: type[CkstoreError], protocol: int) -> None:
    error = _make(cls)
    error.add_note("a note")

    found = pickle.loads(pickle.dumps(error, protocol))

    assert type(found) is cls
    assert (str(found), found.args, found.hint, found.exit_status) == (
        str(error),
        error.args,
        error.hint,
        error.exit_status,
    )
    assert vars(found) == vars(error)


def test_a_message_ends_with_the_hint_and_without_one_stands_alone() -> None:
    assert str(CkstoreError("what", hint="do")) == "what (do)"
    assert str(CkstoreError("what")) == "what"
    assert CkstoreError("what", hint="do").message == "what"


def test_what_cannot_be_stored_is_named_by_its_path() -> None:
    error = CannotStore("optimizer.param_groups[0].foo", "set cannot be stored", hint="use a list")

    assert error.path == "optimizer.param_groups[0].foo"
    assert str(error) == "optimizer.param_groups[0].foo: set cannot be stored (use a list)"
    assert str(CannotStore("", "no")) == "the state itself: no"
