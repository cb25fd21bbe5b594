"""What opening a store for writing sets right: dead saves go to trash, the catalog catches up with the directories."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from ckstore.errors import CatalogUnavailable, CkstoreError, InUse, NewerFormat
from ckstore.fs import files, links
from ckstore.fs.host import probe
from ckstore.objects import reserve, trash
from ckstore.ops.context import Context
from ckstore.ops.index.catch_up import catch_up
from ckstore.ops.notices import warn
from ckstore.ops.open import create
from ckstore.ops.os_errors import describe_os_error
from ckstore.ops.refs.listing import fill_dead


def recover(context: Context) -> list[str]:
    """Sweep dead stagings, adopt what was published, empty the trash; return what the user should know."""
    # Called twice, or by several processes at once, it does no harm. Raises OSError: the system refused; the store is
    # as it was or further on the way.
    notes: list[str] = []
    layout = context.layout
    try:
        links.make_missing(layout.directories)  # a copy may have left out empty ones
        with _unless_full():
            probe.check_able(layout.root, layout.directories, layout.staging, layout.linked)
    finally:
        # Even if the trial failed: other processes may have made the directories and died (rule F).
        _make_store_durable(context)
    if not context.shared:  # else a save of another host, whose lock is not seen from here, would be swept away
        # Before the sweep: a half-done replacement needs both of its stagings.
        fill_dead(context)
        trash.sweep_staging(layout)  # gc makes the move durable before it takes them apart (rule F)
    probe.remove_leftovers(layout.staging, layout.linked)
    said: list[str] = []
    try:
        # After the gaps are filled, so that the catalog hears of what came back.
        said = catch_up(context, "names")
    except NewerFormat:
        raise
    except (CatalogUnavailable, InUse) as error:
        notes.append(_left_aside(context, error))
    # After the catalog: emptying trash writes there which blobs lost their last use.
    if trash.names_in(layout.trash):
        from ckstore.ops.free.reclaim import give_back  # a tenth of the time of opening in a new process

        give_back(context)
    # Last: the space that the sweep has freed counts as room.
    reserve.fill(layout)
    create.remove_leftovers(layout)
    for note in said:
        warn(note)
    context.tell_passed_over()
    return said + notes


def _make_store_durable(context: Context) -> None:
    """Make the name of the store and those in it durable: no checkpoint is more durable (rule F)."""
    # Raises OSError: that did not work; this process must not write to the store.
    try:
        files.sync_directory(context.layout.root)
        files.sync_name(context.layout.path)
    except OSError as error:
        context.writes_disabled_because = f"{context.layout.root} could not be made durable: {error.strerror}"
        raise


@contextmanager
def _unless_full() -> Iterator[None]:
    """Go on when there is no room to try anything: gc must work on a full disk, and tries the same sooner or later."""
    try:
        yield
    except OSError as error:
        if error.errno not in files.NO_SPACE:
            raise


def _left_aside(context: Context, error: CkstoreError) -> str:
    if reserve.is_full(context.layout):
        return f"the filesystem of {context.layout.root} is full, so the catalog is not used; ckstore gc frees space"
    return f"the catalog is not used for now: {error.message}"


def try_recover(context: Context) -> list[str]:
    """As `recover`; on a place where this process cannot write, say so instead."""
    try:
        return recover(context)
    except CkstoreError:
        raise
    except OSError as error:
        return [f"recovery while opening the store failed: {describe_os_error(error)}"]
