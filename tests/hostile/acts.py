"""All that a user does with a store, in the library and on the command line."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import ckstore
from ckstore import Best, RetentionPolicy, Store
from ckstore_cli.app import app
from tests.hostile.places import state
from tests.hostile.scene import Scene
from tests.support.checkpoint_dirs import checkpoint_dir
from tests.support.look import files_of, leaves_of
from tests.support.plans import plan_of

REFS = ("main@2", "main@3", "files@3", "latest", "best")


class Act(NamedTuple):
    """One thing that a user does.

    Attributes:
        name: For messages.
        do: Does it.
    """

    name: str
    do: Callable[[], object]


def acts(scene: Scene) -> Iterator[Act]:
    """Give all acts, in their order; a store that cannot be opened is only tried on the command line."""
    for readonly in (True, False):
        store: list[Store] = []
        yield Act(f"open, readonly={readonly}", partial(_open, scene, store, readonly))
        if store:
            how = f"readonly={readonly}"
            for act in _looks(store[0], scene, how):
                yield Act(f"{act.name}, {how}", act.do)
            if not readonly:
                yield from _changes(store[0], scene)
    yield from _alone(scene)
    yield from _commands(scene)


def _open(scene: Scene, opened: list[Store], readonly: bool) -> None:
    opened.append(Store.open(scene.store, readonly=readonly))


def _looks(store: Store, scene: Scene, how: str) -> Iterator[Act]:
    policy = RetentionPolicy(keep_last=1, keep_best=Best("loss"))
    yield Act("list", store.checkpoints)
    yield Act("runs", store.runs)
    yield Act("warnings", lambda: store.warnings)
    yield Act("latest", store.latest)
    yield Act("latest valid", lambda: store.latest(valid=True))
    yield Act("tags", store.tags)
    yield Act("pins", store.pins)
    yield Act("retention", lambda: store.config.retention)
    yield Act("plan retention", lambda: plan_of(store, policy))
    yield Act("du", store.du)
    yield Act("doctor", store.doctor)
    for ref in REFS:
        to = scene.out / f"{ref}-{how}"
        yield Act(f"info {ref}", partial(store.info, ref))
        yield Act(f"leaves {ref}", partial(leaves_of, store, ref))
        yield Act(f"files {ref}", partial(files_of, store, ref))
        yield Act(f"load {ref}", partial(store.load, ref))
        yield Act(f"map {ref}", partial(store.load, ref, mmap=True))
        yield Act(f"map {ref} unverified", partial(store.load, ref, mmap=True, verify=False))
        yield Act(f"load into {ref}", partial(_load_into, store, ref))
        yield Act(f"slice {ref}", partial(_slice, store, ref))
        yield Act(f"diff {ref}", partial(store.diff, "main@1", ref))
        yield Act(f"diff values {ref}", partial(store.diff, ref, "main@1", values=True))
        yield Act(f"checkout {ref}", partial(store.checkout, ref, f"{to}-checkout"))
        yield Act(f"export {ref}", partial(store.export_safetensors, ref, f"{to}-export"))
        yield Act(f"verify {ref}", partial(store.verify, ref))
    yield Act("why", partial(store.why, "000000"))
    yield Act("verify", store.verify)


def _load_into(store: Store, ref: str) -> None:
    target = state(7)
    target["w"] = target["w"].copy()
    with contextlib.suppress(ckstore.CkstoreError):
        store.load_into(target, ref, strict=False)
    with store.open_checkpoint(ref) as checkpoint:
        target = {key: checkpoint[key] for key in checkpoint.keys()[:3]}
    store.load_into(target, ref, strict=False)


def _slice(store: Store, ref: str) -> None:
    with store.open_checkpoint(ref) as checkpoint:
        for leaf in checkpoint.leaves()[:3]:
            if leaf.shape and leaf.shape[0]:
                checkpoint.slice(leaf.name)[0:2]
                checkpoint.slice(leaf.name)[-1]


def _changes(store: Store, scene: Scene) -> Iterator[Act]:
    files = scene.out / "files"
    files.mkdir(exist_ok=True)
    (files / "data.bin").write_bytes(bytes(5000))
    yield Act("tag", lambda: store.tag("again", "main@2"))
    yield Act("move a tag", lambda: store.tag("best", "main@1"))
    yield Act("annotate", lambda: store.annotate("main@2", metrics={"bleu": 28.0}, note="more"))
    yield Act("pin", lambda: store.pin("main@2", "why not", "30d"))
    yield Act("save", lambda: store.save(state(9), step=9, metrics={"loss": 0.5}))
    yield Act("save the same again", lambda: store.save(state(2), step=10, tags=["tenth"]))
    yield Act("commit", lambda: store.commit(files, step=11))
    yield Act("replace", lambda: store.save(state(11), step=9, if_exists="replace"))
    yield Act("gc", store.gc)
    yield Act("set a policy", lambda: setattr(store.config, "retention", RetentionPolicy(keep_last=2)))
    yield Act("compact", store.compact)
    yield Act("compact all", lambda: store.compact(keep_newest=1))
    yield Act("save with a policy", lambda: store.save(state(12), step=12))
    yield Act("unpin", lambda: store.unpin("main@2"))
    yield Act("untag", lambda: store.untag("again"))
    yield Act("delete", lambda: store.delete("main@2"))
    yield Act("gc after that", store.gc)
    yield Act("reindex", lambda: store.reindex(relink=True))
    yield Act("verify after that", store.verify)
    yield Act("prune", lambda: store.prune(RetentionPolicy(keep_last=1)))
    yield Act("the last save", lambda: store.save(state(13), step=13))
    yield Act("the last load", lambda: store.load("main@13"))


def _alone(scene: Scene) -> Iterator[Act]:
    """Open checkpoints by their directories."""
    for step in ("1", "2", "3"):
        yield Act(f"open checkpoint {step}", partial(_open_alone, scene, step))


def _open_alone(scene: Scene, step: str) -> None:
    with ckstore.open_checkpoint(checkpoint_dir(scene.store, "main", step)) as checkpoint:
        checkpoint.keys()
        checkpoint.leaves()
        checkpoint.files()
        checkpoint.load(mmap=True)


COMMANDS: tuple[tuple[str, ...], ...] = (
    ("log", "-n", "20"),
    ("log", "--json"),
    ("runs",),
    ("show", "main@2"),
    ("show", "main@3", "--json"),
    ("ls", "main@3"),
    ("ls", "files@3"),
    ("diff", "main@1", "main@3"),
    ("du",),
    ("doctor",),
    ("config",),
    ("pin", "main@2", "--reason", "because"),
    ("tag", "command", "main@2"),
    ("tag", "-d", "command"),
    ("prune", "--keep-last", "2", "--dry-run"),
    ("prune", "--keep-last", "1"),
    ("gc", "--dry-run"),
    ("gc",),
    ("compact", "--dry-run"),
    ("compact", "--keep-newest", "1"),
    ("verify",),
    ("reindex",),
    ("log",),
)


def _commands(scene: Scene) -> Iterator[Act]:
    for command in COMMANDS:
        yield Act("ckstore " + " ".join(command), partial(_run, ["--store", str(scene.store), *command]))
    yield Act(
        "ckstore export", partial(_run, ["--store", str(scene.store), "export", "main@3", str(scene.out / "exported")])
    )
    yield Act(
        "ckstore checkout",
        partial(_run, ["--store", str(scene.store), "checkout", "main@3", str(scene.out / "checked")]),
    )


class ExitStatus(Exception):
    """A command ended with a status that is in no table."""


def _run(arguments: list[str]) -> None:
    from ckstore_cli._errors import EXIT_STATUSES

    try:
        app.main(arguments)
    except SystemExit as ended:
        if ended.code not in EXIT_STATUSES:
            raise ExitStatus(f"exit status {ended.code}") from ended


def as_json(told: Any) -> bytes:
    """Return what a child says, as bytes."""
    return json.dumps(told).encode()
