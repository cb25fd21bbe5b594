"""What the store says about a checkpoint, and what a look at its directory gives."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

from ckstore.model.brief import brief
from ckstore.model.digest import short_id
from ckstore.model.manifest.describe import decoded_metadata
from ckstore.model.manifest.health import Health
from ckstore.model.names import CheckpointKey, directory_of
from ckstore.model.sizes import size_text
from ckstore.model.words import counted, metrics_text, new_text, printable, time_text

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

    from ckstore.model.manifest.manifest import Manifest


def shown_name(name: str, id: str, *, superseded: bool) -> str:
    """Return how people see a checkpoint; ``RUN@STEP`` of a superseded one names another."""
    return f"{name} ({short_id(id)}, superseded)" if superseded else name


@brief()
@dataclass(frozen=True, slots=True)
class SaveCounters:
    """What one save did. Its parts come one after another; hashing and writing go on side by side.

    Attributes:
        hashed_bytes: So many bytes of the state were read and hashed.
        kept_bytes: So many were taken from the checkpoint before, unread but for a sample (``unchanged=``).
        written_count: Blobs that were written; their bytes are `CheckpointInfo.new_bytes`.
        reused_count: Blobs that the store had.
        copied_s: Seconds that `save_async` took to copy the state, with what it waited for other saves; 0 for `save`.
        queued_s: From then until a saver had it; 0 for `save`.
        staging_s: To make a staging directory.
        storing_s: To look up, hash, link and write blobs, each of them durable.
        sealing_s: To write the manifest, and make the directory durable.
        publishing_s: To rename it into place, durably; in the background with the question whether it may be.
        finishing_s: For what follows when the checkpoint is durable: tags, the catalog, retention, gc and the like.
        retry_count: How often it was tried again. All else is of the last try.
    """

    hashed_bytes: int
    kept_bytes: int
    written_count: int
    reused_count: int
    copied_s: float = 0.0
    queued_s: float = 0.0
    staging_s: float = 0.0
    storing_s: float = 0.0
    sealing_s: float = 0.0
    publishing_s: float = 0.0
    finishing_s: float = 0.0
    retry_count: int = 0

    def __str__(self) -> str:
        kept = f", {size_text(self.kept_bytes)} taken over unread" if self.kept_bytes else ""
        took_s = self.staging_s + self.storing_s + self.sealing_s + self.publishing_s + self.finishing_s
        blobs = f"{counted(self.written_count, 'blob')} written, {self.reused_count} reused"
        return f"{size_text(self.hashed_bytes)} hashed{kept}, {blobs}, in {took_s:.2f} s"


@brief()
@dataclass(frozen=True, slots=True)
class Note:
    """A note on a checkpoint: when it was written (UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``) and what it says."""

    created: str
    text: str

    def __str__(self) -> str:
        return f"{time_text(self.created)}  {printable(self.text.strip())}"


@brief("run", "step", "id", "metrics", "tags")
@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One published checkpoint.

    What a save, a load and a listing return of one checkpoint is equal: `==` compares all but what a single call had to
    say (`catalogued`, `warnings`, `oldest_reading`, `counters`, `remotes`, `training`), and how it is kept
    (`compacted`).

    Attributes:
        id: Digest of its manifest.
        run, step: Which run it belongs to, and the step of the training.
        sequence: Order of commits; the greatest is the latest.
        out_of_order: Its sequence number is so far beyond all others that it does not count (`model.order`); it comes
            before all others then, and can be loaded by its step or id.
        created: UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``.
        logical_bytes: Bytes of everything it holds; what a copy without any sharing would take.
        new_bytes: Bytes of the blobs that the save wrote.
        reused_bytes: Bytes of it that the save found in the store.
        leaf_count: Tensors, arrays and other values kept as bytes.
        content: Says whether two checkpoints hold the same.
        parent: Id of the checkpoint that this one continues, or None.
        metrics: Name -> number; those of `Store.annotate` come before those of the save.
        notes: Notes of `Store.annotate`, in the order in which they were written.
        tags: Tags that name it when this was read.
        durable: False if it lies on a filesystem that is not known to keep it through a power cut.
        damaged: Whether a read or a verification found it damaged, and nothing has put it right since.
        elsewhere: Whether bytes of it are at a remote alone; a load fetches them.
        compacted: Whether its directory has encoded forms of blobs: it takes less than `logical_bytes` says.
        remotes: From `Store.info`: the names of the remotes that have what is elsewhere.
        catalogued: False if the catalog could not be brought up to date in time; the next opening does it.
        oldest_reading: From `Store.info`: since when every blob of it was read or written, by saves and verifications;
            UTC, as `created`. Empty: that is not known of each of them.
        warnings: From the save that returned this: what went wrong after the checkpoint was durable (a tag or the
            catalog that could not be written, retention).
        counters: From the save that returned this: what it did, and how long its parts took; None from other calls,
            where several ranks saved, and where the saver died after the checkpoint was durable.
        directory: The name of its directory in ``checkpoints/RUN/``; empty: its step and the first digits of its id.
        superseded: Whether a newer checkpoint of its step is in the store.
        unhealthy: Why it is unhealthy: which tensors have NaN, or infinite values that they did not always have. Empty:
            it is healthy, or was saved with `StoreConfig.health` off. `OpenCheckpoint.health` has the counts.
        unchanged: The parts of its state that have stopped to change while the step advances.
        training: From the save that returned this: the id of the training that it belongs to. Empty from other calls,
            and if an older ckstore began the training.
    """

    id: str
    run: str
    step: int
    sequence: int
    created: str
    logical_bytes: int
    new_bytes: int
    reused_bytes: int
    leaf_count: int
    content: str
    parent: str | None = None
    message: str = ""
    metrics: dict[str, int | float] = field(default_factory=dict)
    metadata: dict[str, Any] = field(default_factory=dict)
    tags: tuple[str, ...] = ()
    durable: bool = True
    catalogued: bool = field(default=True, compare=False)
    notes: tuple[Note, ...] = ()
    damaged: bool = False
    out_of_order: bool = False
    elsewhere: bool = False
    compacted: bool = field(default=False, compare=False)
    remotes: tuple[str, ...] = field(default=(), compare=False)
    warnings: tuple[str, ...] = field(default=(), compare=False)
    oldest_reading: str = field(default="", compare=False)
    counters: SaveCounters | None = field(default=None, compare=False)
    directory: str = field(default="", compare=False)
    superseded: bool = field(default=False, compare=False)
    unhealthy: str = ""
    unchanged: tuple[str, ...] = ()
    training: str = field(default="", compare=False)

    @property
    def name(self) -> str:
        """``RUN@STEP``: the full ref of the checkpoint, unless it is superseded."""
        return f"{self.run}@{self.step}"

    @property
    def ref(self) -> str:
        """A ref that names it: ``RUN@STEP``; of a superseded one the first digits of its id."""
        return short_id(self.id) if self.superseded else self.name

    @property
    def shown(self) -> str:
        """As `name`; of a superseded one with the first digits of its id."""
        return shown_name(self.name, self.id, superseded=self.superseded)

    @property
    def key(self) -> CheckpointKey:
        """Where it is published: run, step and directory."""
        return CheckpointKey(self.run, self.step, self.directory or directory_of(self.step, self.id))

    @property
    def order(self) -> tuple[int, str, str, int]:
        """Sort key of the order of commits; of one checkpoint the later generation comes later."""
        return 0 if self.out_of_order else self.sequence, self.created, self.id, self.key.generation

    def __str__(self) -> str:
        # Of `new_bytes` a part may be padding between small tensors.
        new_bytes = min(self.new_bytes, max(0, self.logical_bytes - self.reused_bytes))
        sizes = new_text(self.logical_bytes, new_bytes)
        at = f" at {' and '.join(self.remotes)}" if self.remotes else ""
        words = f"{', damaged' if self.damaged else ''}{f', elsewhere{at}' if self.elsewhere else ''}"
        words += f"{', compacted' if self.compacted else ''}{', superseded' if self.superseded else ''}"
        words += f"{', unhealthy' if self.unhealthy else ''}{', unchanged' if self.unchanged else ''}"
        metrics = f", {metrics_text(self.metrics)}" if self.metrics else ""
        tags = f" ({', '.join(self.tags)})" if self.tags else ""
        return printable(f"{self.name} {short_id(self.id)}: {sizes}{words}{metrics}{tags}")

    def with_annotations(self, metrics: dict[str, int | float], notes: tuple[Note, ...]) -> CheckpointInfo:
        """Return this with what was added after the save: such a metric comes before one of the same name."""
        return replace(self, metrics={**self.metrics, **metrics}, notes=notes)

    @classmethod
    def of(
        cls, manifest: Manifest, manifest_id: str, *, tags: tuple[str, ...] = (), directory: str = ""
    ) -> CheckpointInfo:
        """Return what a manifest says; `directory` is the name of the directory that it is in."""
        about = manifest.description
        health = manifest.health or Health()
        return cls(
            id=manifest_id,
            run=manifest.run,
            step=manifest.step,
            sequence=manifest.sequence,
            created=manifest.created,
            logical_bytes=manifest.logical_bytes,
            new_bytes=manifest.new_bytes,
            reused_bytes=manifest.reused_bytes,
            leaf_count=len(manifest.leaves),
            content=manifest.content,
            parent=about.parent,
            message=about.message,
            metrics=about.metrics,
            metadata=decoded_metadata(about.metadata),
            tags=tags,
            directory=directory,
            unhealthy=health.unhealthy,
            unchanged=health.unchanged,
            training=manifest.training,
        )


_MOST = 2**64


class Stamp(NamedTuple):
    """Which directory a checkpoint lies in, and which file its manifest is: another one, or one written to, differs."""

    # Inode numbers alone do not tell: a filesystem gives that of a removed directory to the next one. No user can set
    # the time of change (`ctime`) of a file.

    dir_inode: int  # inode number of the directory
    inode: int  # inode number of its ``manifest.json``
    # `mtime_ns` and `ctime_ns`: Times of that file, modulo 2^64.
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, dir_inode: int, manifest: os.stat_result) -> Stamp:
        """Return the stamp of the directory with this inode number and the status of its manifest."""
        return cls(dir_inode, manifest.st_ino, manifest.st_mtime_ns % _MOST, manifest.st_ctime_ns % _MOST)


@dataclass(frozen=True, slots=True)
class Published:
    """A complete checkpoint, as its directory was when it was read."""

    manifest: Manifest  # what its ``manifest.json`` says; its run and step are those of its key
    manifest_id: str  # digest of the manifest, the id of the checkpoint
    key: CheckpointKey  # where it is
    stamp: Stamp  # tells that the rows of the catalog are about this directory, without reading the manifest again
    elsewhere: frozenset[str] = frozenset()  # digests of the blobs that are not in it, but at a remote

    @property
    def order(self) -> tuple[int, str, str, int]:
        """Sort key of the order of commits; of one checkpoint the later generation comes later."""
        return self.manifest.sequence, self.manifest.created, self.manifest_id, self.key.generation


@brief()
@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run of a store.

    Attributes:
        name: Its name.
        checkpoint_count: How many complete checkpoints it has.
        newest: The one that was committed last.
        highest_step: The highest step of them; that of `newest` is lower after a run went back.
    """

    name: str
    checkpoint_count: int
    newest: CheckpointInfo
    highest_step: int

    def __str__(self) -> str:
        """``gpt: 12 checkpoints, the newest gpt@1200``."""
        return printable(f"{self.name}: {counted(self.checkpoint_count, 'checkpoint')}, the newest {self.newest.name}")


def summaries(infos: Iterable[CheckpointInfo]) -> list[RunSummary]:
    """Return the runs of checkpoints, which are given in the order of their commits, in the order of the newest."""
    by_run: dict[str, list[CheckpointInfo]] = {}
    for info in infos:
        by_run.setdefault(info.run, []).append(info)
    found = [RunSummary(run, len(own), own[-1], max(info.step for info in own)) for run, own in by_run.items()]
    return sorted(found, key=lambda summary: summary.newest.order)
