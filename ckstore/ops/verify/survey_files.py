"""Check the catalog and the small files of a store: settings, tags, pins, annotations."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from itertools import islice

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse, NewerFormat
from ckstore.fs import files
from ckstore.fs.dirfd_stat import StorePath
from ckstore.model.checkpoint.annotations import parse_annotations
from ckstore.model.checkpoint.pins import parse_pin, pin_name
from ckstore.model.checkpoint.tag import parse_tag
from ckstore.model.manifest.info import CheckpointInfo, Published
from ckstore.model.names import CheckpointKey
from ckstore.model.reports.verify_report import FindingKind, StoreFinding
from ckstore.model.seal import check_seal
from ckstore.model.settings.settings import parse_config, parse_settings
from ckstore.model.words import arguments
from ckstore.objects.checkpoints import look
from ckstore.objects.layout import ANNOTATIONS
from ckstore.objects.trash import names_in
from ckstore.ops.check.verifier import Verifier
from ckstore.ops.config_file import rules_of
from ckstore.ops.context import Context
from ckstore.ops.index.catalog_update import catch_up
from ckstore.ops.index.facts import row_digest, same_facts
from ckstore.ops.refs.protection import doubtful_tags, way_out

_TIMEOUT_S = 10.0
_KEYS_AT_ONCE = 100  # this limits memory use, since a checkpoint can have many blobs
# The limit for annotations, which are the largest of these files (docs/format/v1.md, "Limits").
_MAX_BYTES = 16 * 2**20


def catalog_findings(context: Context, checker: Verifier, *, may_write: bool, thorough: bool) -> Iterator[StoreFinding]:
    """Compare the catalog with the directories that `checker` has checked. With `may_write`, repair the catalog."""
    try:
        context.catalog.listing()  # this raises if the catalog cannot be used at all
        problems = context.catalog.check() if thorough else []
        # `set_aside` checks the catalog again and keeps it if there was only a transient error of the disk.
        if problems and may_write and context.catalog.set_aside(timeout_s=_TIMEOUT_S) is not None:
            catch_up(context)
            yield StoreFinding("catalog", f"rebuilt the catalog, which was damaged: {problems[0]}", mended=True)
        elif problems:
            yield StoreFinding("catalog", f"the catalog is damaged: {problems[0]}")
        if may_write:
            catch_up(context)  # another process may have published a checkpoint that has no row yet
        # Compare twice: another process may have compacted or replaced some checkpoints between the reading of their
        # rows and the reading of their directories.
        stale = _differing(context, checker, sorted(checker.ids))
        stale = stale and _differing(context, checker, stale)
        if stale and may_write:
            _write_again(context, stale)
        for key in stale:
            yield StoreFinding(
                "catalog", f"the catalog does not agree with the manifest of {key.name}", mended=may_write
            )
    except (CatalogUnavailable, InUse, NewerFormat) as error:
        yield StoreFinding("catalog", f"the catalog cannot be compared: {error.message}")


def _differing(context: Context, checker: Verifier, keys: Iterable[CheckpointKey]) -> list[CheckpointKey]:
    """Return the complete checkpoints whose row in the catalog differs from the manifest."""
    listing = context.catalog.listing()
    rows = {info.key: info for info in context.catalog.infos()}
    found = []
    waiting, uses = deque(keys), dict[CheckpointKey, set[tuple[str, int]]]()
    while waiting:
        key = waiting.popleft()
        if key not in uses:  # query many checkpoints at a time, since each query opens the catalog
            uses = context.catalog.blobs_of([key, *islice(waiting, _KEYS_AT_ONCE - 1)])
        row = rows.get(key)
        digest = checker.row_digests.get(key)
        if digest and row is not None and digest == row_digest(row, uses[key], listing.get(key)):
            continue
        published = look(context.layout, key).published
        if published is None or published.manifest_id != checker.ids[key]:  # it is incomplete, or was replaced
            continue
        info = CheckpointInfo.of(published.manifest, published.manifest_id)
        same = row is not None and same_facts(row, info) and listing.get(key) == published.stamp
        # Also compare the blobs, since gc finds unused blobs by these rows. Blobs that only a remote has do not count.
        if not same or uses[key] != set(published.local_files):
            found.append(key)
    return found


def _write_again(context: Context, keys: list[CheckpointKey]) -> None:
    def nothing(_key: CheckpointKey) -> None:
        return None

    def present(key: CheckpointKey) -> Published | None:
        return look(context.layout, key).published

    # Remove the rows first, since `reconcile` keeps rows with the right id. Until the rows are written again, the links
    # in the checkpoints protect the blobs.
    context.catalog.reconcile(keys, nothing, timeout_s=_TIMEOUT_S)
    context.catalog.reconcile(keys, present, timeout_s=_TIMEOUT_S, tags=context.layout.tags)


def file_findings(context: Context) -> Iterator[StoreFinding]:
    """Yield findings about small files that cannot be read, were changed, or point to a missing checkpoint."""
    layout = context.layout
    for path in (layout.settings, layout.config):
        yield from _file(context, "settings", path)
    if _read(layout.config) is not None:
        try:
            rules_of(layout)
        except (CkstoreError, OSError) as error:
            yield StoreFinding("settings", str(error), layout.config.name, harmful=True)
    yield from _tags(context)
    yield from _pins(context)
    for key, _ in sorted(layout.published()):
        yield from _file(context, "notes", layout.checkpoint(key) / ANNOTATIONS)


def _read(path: StorePath) -> bytes | None:
    try:
        return files.read_file(path, most_bytes=_MAX_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None


def _file(context: Context, kind: FindingKind, path: StorePath) -> Iterator[StoreFinding]:
    """Check one file in the same way as the code that reads it. An optional file may be missing."""
    subject = path.inner
    try:
        data = _read(path)
        if data is None:
            if path == context.layout.settings:
                yield StoreFinding(kind, f"{path} is missing", subject, harmful=True)
            return
        _PARSERS[path.name if kind != "pin" else "pin"](data, str(path))
        if not check_seal(data, str(path)):
            message = f"{subject} has no digest of its content: an older ckstore wrote it, or it was edited by hand"
            yield StoreFinding(kind, message, subject)
    except (CkstoreError, OSError) as error:
        yield StoreFinding(kind, f"{subject} cannot be read: {error}", subject, harmful=True)


_PARSERS: dict[str, Callable[[bytes, str], object]] = {
    "store.json": parse_settings,
    "config.json": parse_config,
    ANNOTATIONS: parse_annotations,
    "pin": partial(parse_pin, "a"),
}


def _tags(context: Context) -> Iterator[StoreFinding]:
    layout = context.layout
    doubtful = doubtful_tags(layout)
    for name, text in sorted(layout.tag_texts().items()):
        subject = f"refs/{name}"
        if name in doubtful:
            yield StoreFinding("tag", f"{doubtful[name]}; {way_out(name)}", subject, harmful=True)
        elif text is None or (target := parse_tag(text)) is None:  # it changed after `doubtful_tags` read it
            continue
        elif not any(key.any_generation == target.key.any_generation for key in layout.of_step(*target.key.run_step)):
            message = f"the tag {name} points to {target.key.name}, which does not exist; {way_out(name)}"
            yield StoreFinding("tag", message, subject, harmful=True)
        elif not target.twice:
            message = (
                f"an older ckstore wrote the tag {name}, so a flipped bit in it is not detected. "
                f"To renew it: ckstore tag {arguments(name, name)}"
            )
            yield StoreFinding("tag", message, subject)


def _pins(context: Context) -> Iterator[StoreFinding]:
    layout = context.layout
    for entry in names_in(layout.pins):
        if pin_name(entry) is not None:
            yield from _file(context, "pin", layout.pins / entry)
        elif not entry.startswith("."):
            yield StoreFinding("pin", f"pins/{entry} does not have the name of a pin", f"pins/{entry}", harmful=True)
