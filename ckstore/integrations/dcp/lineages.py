"""The parents of the next saves in stores that are given by path, and that each call therefore opens again."""

from __future__ import annotations

from pathlib import Path

from ckstore.model.training_identity import Parent
from ckstore.ops.save.continuation import know_training
from ckstore.store import Store, context_of

Continues = dict[str, Parent]
"""Parents in the form of `ProcessCache.last_parents`."""
_by_path: dict[Path, tuple[Continues, dict[str, frozenset[str]]]] = {}
"""Path of a store -> the parents and `ProcessCache.seen_names`."""
_received: dict[Path, Continues] = {}


def open_again(path: Path, received: Continues | None = None, *, readonly: bool = False) -> Store:
    """Open a store by its path, with the parents that this process loaded or saved there.

    `received` are the parents that another process sent.
    """
    store = Store.open(path, readonly=readonly)
    continues, seen_names = _by_path.setdefault(store.path, ({}, {}))
    # Use only entries that changed since the last call. Other entries may be older than saves of this process.
    known = _received.get(store.path, {})
    continues.update({run: one for run, one in (received or {}).items() if known.get(run) != one})
    if received is not None:
        _received[store.path] = received
    known_here = context_of(store).known
    known_here.last_parents, known_here.seen_names = continues, seen_names
    return store


def sent(store: Store | None, path: Path, run: str) -> Continues:
    """Return the parents that another process needs for a save to a run."""
    if store is None:
        return dict(_by_path.get(path, ({}, {}))[0])
    context = context_of(store)
    know_training(context, run)
    return dict(context.known.last_parents)
