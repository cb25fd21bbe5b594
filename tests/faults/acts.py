"""Further acts of the store, for the law of the trace: every step of the protocol is in one of them or in `scenarios`.

They say themselves what they have done, by `mark`, since no journal is kept of it.
"""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import Any
from unittest.mock import patch

from ckstore import RetentionPolicy, Store
from ckstore.errors import DamagedBlob
from ckstore.fs import files, links
from ckstore.model.reports.retention_report import RetentionReport
from ckstore.model.settings.retention_plan import RetentionPlan
from ckstore.ops.api_calls import api_call
from ckstore.ops.free import reclaim
from ckstore.ops.free.retain import carry_out
from ckstore.ops.open import draft_conversion
from ckstore.training import import_history
from tests.faults.journal import Journal
from tests.faults.scenarios import RUN, SCENARIOS, Scenario, save, unseen
from tests.faults.states import CHUNK_BYTES, state
from tests.faults.straced import mark
from tests.support.checkpoint_dirs import checkpoint_dir, name_in_store
from tests.support.look import leaves_of
from tests.support.plans import plan_of

_SAVED = SCENARIOS["deduplicated_save"].prepare


def _open(path: Path, journal: Journal) -> Store:
    return Store.open(path)


def _name(store: Store, step: int) -> str:
    """Return the name of a checkpoint for `mark`."""
    return f"store/{name_in_store(unseen(store.path), RUN, step)}"


def _nothing_more(store: Store, journal: Journal) -> None:
    pass


def _saving_again(store: Store, journal: Journal) -> None:
    save(store, journal, 1, "first")


def _saving_with_tags(step: int, name: str) -> Callable[[Store, Journal], None]:
    def act(store: Store, journal: Journal) -> None:
        info = store.save(state(name), step=step, run=RUN, tags=("best", "other"))
        journal.done((RUN, step), name)
        mark(durable=[f"store/refs/{tag}" for tag in info.tags])

    return act


def _tagging(store: Store, journal: Journal) -> None:
    store.tag("best", f"{RUN}@1")
    mark(durable=["store/refs/best", _name(store, 1)])
    store.tag("best", f"{RUN}@2")
    mark(durable=["store/refs/best", _name(store, 2)])
    store.untag("best")
    mark(gone=["store/refs/best"])


def _pinning(store: Store, journal: Journal) -> None:
    name = store.pin(f"{RUN}@1", "figure 3").name
    mark(durable=[f"store/pins/{name}.json", _name(store, 1)])
    store.unpin(name)
    mark(gone=[f"store/pins/{name}.json"])


def _annotating(store: Store, journal: Journal) -> None:
    for bleu in (27.0, 28.0):
        store.annotate(f"{RUN}@1", metrics={"bleu": bleu})
        mark(durable=[f"{_name(store, 1)}/annotations.json", _name(store, 1)])


def _setting_retention(store: Store, journal: Journal) -> None:
    for keep_last in (3, 2):
        store.config.retention = RetentionPolicy(keep_last=keep_last)
        mark(durable=["store/config.json"])


def _rotated(path: Path, journal: Journal) -> None:
    _SAVED(path, journal)
    with Store.open(path) as store:
        store.config.retention = RetentionPolicy(keep_last=1)


def _rotating(store: Store, journal: Journal) -> None:
    one = _name(store, 1)
    info = store.save(state("second"), step=2, run=RUN)
    journal.done((RUN, 2), "second")
    if not info.warnings:
        mark(gone=[one])


class _KilledError(BaseException):
    """Ends a preparation as a kill would."""


def _killed_at(
    number: int,
    module: object,
    call: str,
    act: Callable[[Store, Journal], None],
    before: Callable[[Path, Journal], None] = SCENARIOS["replace"].prepare,
) -> Callable[[Path, Journal], None]:
    """A store in which an act was killed when it wanted to make that call for the `number`-th time."""

    def prepare(path: Path, journal: Journal) -> None:
        before(path, journal)
        original, numbers = getattr(module, call), count(1)

        def killed(*arguments: Any, **options: Any) -> Any:
            if next(numbers) >= number:
                raise _KilledError
            return original(*arguments, **options)

        with Store.open(path) as store:
            reclaim.discard = lambda *_, **__: None  # a dead process cleans up nothing
            reclaim.free_unused = lambda *_, **__: None
            setattr(module, call, killed)
            try:
                act(store, journal)
            except _KilledError:
                return
            finally:
                setattr(module, call, original)
        raise RuntimeError(f"{call} was not called {number} times")

    return prepare


def _replacing(store: Store, journal: Journal) -> None:
    save(store, journal, 1, "second", if_exists="replace", parent="main@1")


def _torn(path: Path, journal: Journal) -> None:
    """A store whose step 1 lost its manifest."""
    _SAVED(path, journal)
    (checkpoint_dir(path, RUN, 1) / "manifest.json").unlink()


def _half_converted(path: Path, journal: Journal) -> None:
    """A store of a draft in which a conversion was killed before its last step, and before its fsyncs of names."""

    def killed(*_: Any) -> None:
        raise _KilledError

    SCENARIOS["convert"].prepare(path, journal)
    with (
        patch.object(files, "sync_directory", lambda _: None),
        patch.object(draft_conversion, "require", killed),
        suppress(_KilledError),
    ):
        Store.open(path)


def _converted(store: Store, journal: Journal) -> None:
    if any(text.startswith(("not converted", "recovery")) for text in store.warnings):
        return  # an fsync failed, and that is said
    mark(durable=["store/store.json", "store/refs/kept", _name(store, 2)])
    mark(gone=[f"store/checkpoints/{RUN}/{step}" for step in (1, 2, 3)])


def _collecting_superseded(store: Store, journal: Journal) -> None:
    store.gc(now=True)


def _deleting(store: Store, journal: Journal) -> None:
    store.delete(f"{RUN}@2")


def _collecting(store: Store, journal: Journal) -> None:
    store.gc()


def _open_as_found(path: Path, journal: Journal) -> Store:
    """Open a store without emptying its trash, which is left for the act."""
    give_back, reclaim.free_unused = reclaim.free_unused, lambda *_: None
    try:
        return Store.open(path)
    finally:
        reclaim.free_unused = give_back


def _largest_blob(store: Path) -> Path:
    return max(store.glob("blobs/*/*"), key=lambda path: path.stat().st_size)


def _touched(path: Path, journal: Journal) -> None:
    _SAVED(path, journal)
    os.utime(_largest_blob(path), ns=(5, 5))


def _damaged(path: Path, journal: Journal) -> None:
    _SAVED(path, journal)
    blob = _largest_blob(path)
    blob.chmod(0o644)
    with blob.open("r+b") as file:
        file.write(b"damage")
        file.flush()
        os.fsync(file.fileno())
    blob.chmod(0o444)


def _marked(path: Path, journal: Journal) -> None:
    _damaged(path, journal)
    with Store.open(path) as store:
        _found_damaged(store, journal)


@api_call  # so that its errors are those that a caller of `prune` sees
def _drop(store: Store, plan: RetentionPlan) -> RetentionReport:
    return carry_out(store._context, plan)


def _pruning(store: Store, journal: Journal) -> None:
    # The drop alone: gc, which follows it in `prune`, would make it durable once more, and another gc may keep it away.
    names = {info.key: _name(store, info.step) for info in store.checkpoints()}
    report = _drop(store, plan_of(store, RetentionPolicy(keep_last=1)))
    mark(gone=[names[info.key] for info in report.dropped])


def _saving_more(store: Store, journal: Journal) -> None:
    save(store, journal, 2, "first")


def _without_a_name(path: Path, journal: Journal) -> None:
    _SAVED(path, journal)
    for blob in path.glob("blobs/*/*"):
        blob.unlink()


def _found_damaged(store: Store, journal: Journal) -> None:
    with suppress(DamagedBlob):  # whether the mark could be made is not reported
        store.load(f"{RUN}@1")


def _without_empty_directories(path: Path, journal: Journal) -> None:
    Store.init(path, chunk_bytes=2**20).close()
    for name in ("checkpoints", "staging", "trash", "refs", "pins", "quarantine"):
        (path / name).rmdir()


def _half_initialized(path: Path, journal: Journal) -> None:
    """The store has its name and settings, and the process that made it died before it made them durable."""

    def killed(*_: Any) -> None:
        raise _KilledError

    with patch.object(files, "sync_directory", killed), suppress(_KilledError):
        Store.init(path, chunk_bytes=2**20)


def _looking(store: Store, journal: Journal) -> None:
    """Everything that only looks, but what writes elsewhere."""
    listed = store.checkpoints()
    first = listed[0] if listed else store.info("latest")
    store.load(first)
    leaves_of(store, first)
    store.diff(first, "latest")
    store.latest(valid=True)
    store.why(min(path.name for path in unseen(store.path).glob("checkpoints/*/*/blobs/*")))
    store.tags()
    store.pins()
    store.du()
    store.gc(dry_run=True)
    plan_of(store, RetentionPolicy(keep_last=1))
    store.verify()
    store.verify(quick=True)
    store.doctor()


def _with_a_whole_blob(path: Path, journal: Journal) -> None:
    """A store with a committed file that is one blob, and the place for checkouts."""
    with Store.init(path, chunk_bytes=CHUNK_BYTES) as store:
        (path.parent / "data").mkdir()
        (path.parent / "data" / "one.bin").write_bytes(random.Random(5).randbytes(CHUNK_BYTES))
        (path.parent / "place").mkdir()
        store.commit(path.parent / "data", step=1, run=RUN)


def _writing_links(store: Store, journal: Journal) -> None:
    out = store.path.parent / "place" / "out"
    if out.exists():  # an attempt failed after its rename
        shutil.rmtree(out)
    report = store.checkout(f"{RUN}@1", out, link="hardlink")
    if report.hardlinked != ("one.bin",):
        raise RuntimeError(f"it was copied: {report}")


def _with_a_foreign_folder(path: Path, journal: Journal) -> None:
    Store.init(path, chunk_bytes=CHUNK_BYTES).close()
    deep = path.parent / "out" / "checkpoint-1" / "a" / "b"
    deep.mkdir(parents=True)
    (deep / "one.bin").write_bytes(b"1" * 5000)
    (deep.parent / "model.safetensors.index.json").write_text('{"weight_map": {"w": "b/one.bin"}}')
    (deep / "link").symlink_to("one.bin")
    (deep.parents[1] / "trainer_state.json").write_text('{"log_history": [{"step": 1, "loss": 0.5}]}')
    (path.parent / "out" / "latest").write_text("checkpoint-1")


def _importing(store: Store, journal: Journal) -> None:
    import_history(store, store.path.parent / "out", RUN)


FOREIGN = {
    act.name: act
    for act in (
        Scenario("import_folder", _with_a_foreign_folder, _open, _importing, hit=lambda store: store.parent / "out"),
        Scenario(
            "import_checkpoint",
            _with_a_foreign_folder,
            _open,
            _importing,
            hit=lambda store: store.parent / "out" / "checkpoint-1",
        ),
    )
}
"""Acts that read a folder of another program: below which the calls are looked at, and not below the store."""

ACTS = SCENARIOS | {
    act.name: act
    for act in (
        Scenario("save_again", _SAVED, _open, _saving_again),
        Scenario("save_with_tags", _SAVED, _open, _saving_with_tags(2, "second")),
        Scenario("save_again_with_tags", _SAVED, _open, _saving_with_tags(1, "first")),
        Scenario("save_into_a_copy", _without_empty_directories, _open, _saving_with_tags(1, "first")),
        Scenario("save_after_half_an_init", _half_initialized, _open, _saving_with_tags(1, "first")),
        Scenario("save_touched", _touched, _open, _saving_more),
        Scenario("save_heals", _damaged, _open, _saving_more),
        Scenario("save_offers_again", _without_a_name, _open, _saving_more),
        Scenario("save_heals_what_is_marked", _marked, _open, _saving_more),
        Scenario("load_marks", _damaged, _open, _found_damaged),
        Scenario("look", SCENARIOS["gc"].prepare, _open_as_found, _looking),
        Scenario("checkout_links", _with_a_whole_blob, _open, _writing_links),
        Scenario("tag", SCENARIOS["replace"].prepare, _open, _tagging),
        Scenario("pin", _SAVED, _open, _pinning),
        Scenario("annotate", _SAVED, _open, _annotating),
        Scenario("set_retention", _SAVED, _open, _setting_retention),
        Scenario("prune", SCENARIOS["replace"].prepare, _open, _pruning),
        Scenario("rotate", _rotated, _open, _rotating),
        Scenario("open_after_half_a_save", _killed_at(1, files, "sync_directory", _replacing), _open, _nothing_more),
        Scenario("save_beside_torn", _torn, _open, _saving_again),
        Scenario("open_draft", SCENARIOS["convert"].prepare, _open, _converted),
        Scenario("open_half_converted", _half_converted, _open, _converted),
        Scenario(
            "gc_after_half_a_replacement",
            _killed_at(1, files, "sync_open_directory", _replacing),
            _open_as_found,
            _collecting_superseded,
        ),
        Scenario(
            "gc_after_half_a_delete", _killed_at(4, files, "sync_directory", _deleting), _open_as_found, _collecting
        ),
        Scenario(
            "gc_after_half_a_gc",
            _killed_at(3, links, "unlink", _collecting, SCENARIOS["gc"].prepare),
            _open_as_found,
            _collecting,
        ),
    )
}
"""All scenarios and all further acts."""
