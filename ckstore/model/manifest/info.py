"""Information on a checkpoint, from a store or from a copied directory of a checkpoint."""

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

    from ckstore.model.manifest.manifest import BlobRecord, Manifest


def shown_name(name: str, id: str, *, superseded: bool) -> str:
    """Return the displayed name of a checkpoint, with its id if ``RUN@STEP`` names a newer checkpoint."""
    return f"{name} ({short_id(id)}, superseded)" if superseded else name


@brief()
@dataclass(frozen=True, slots=True)
class SaveCounters:
    """Counters of one save.

    The phases with a duration run one after another. Within a phase, hashing and writing run in parallel.

    Attributes:
        hashed_bytes: Bytes of the state that were read and hashed.
        kept_bytes: Bytes reused from the previous checkpoint, of which only a sample was read (``unchanged=``).
        written_count: Number of blobs that were written. Their bytes are `CheckpointInfo.new_bytes`.
        reused_count: Number of blobs that the store already had.
        copied_s: Seconds that `save_async` took to copy the state, including its wait for other saves (0 for `save`).
        queued_s: Seconds from the copy until a saver received it (0 for `save`).
        staging_s: Seconds to create a staging directory.
        storing_s: Seconds to look up, hash and link blobs, and to write new ones durably.
        sealing_s: Seconds to write the manifest and make the directory durable.
        publishing_s: Seconds to rename the directory into place durably. In a background save, this includes the time
            in which the saver asks the training process whether it may publish the checkpoint.
        finishing_s: Seconds for the work after the checkpoint is durable (tags, catalog, retention, gc and so on).
        retry_count: Number of retries. All other counters describe the last attempt.
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
        kept = f", {size_text(self.kept_bytes)} reused unread" if self.kept_bytes else ""
        took_s = self.staging_s + self.storing_s + self.sealing_s + self.publishing_s + self.finishing_s
        blobs = f"{counted(self.written_count, 'blob')} written, {self.reused_count} reused"
        return f"{size_text(self.hashed_bytes)} hashed{kept}, {blobs}, in {took_s:.2f} s"


@brief()
@dataclass(frozen=True, slots=True)
class Note:
    """A note on a checkpoint, with its time of writing (UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``) and its text."""

    created: str
    text: str

    def __str__(self) -> str:
        return f"{time_text(self.created)}  {printable(self.text.strip())}"


@brief("run", "step", "id", "metrics", "tags")
@dataclass(frozen=True, slots=True)
class CheckpointInfo:
    """One published checkpoint.

    A save, a load and a listing return equal values for the same checkpoint. `==` ignores the fields that describe a
    single call (`catalogued`, `warnings`, `oldest_reading`, `counters`, `remotes`, `training`), where and how the
    checkpoint is stored (`directory`, `compacted`), and `superseded`.

    Attributes:
        id: Digest of its manifest.
        run, step: The run that it belongs to, and its training step.
        sequence: Position in the order of commits. The latest checkpoint has the greatest number.
        out_of_order: Whether its sequence number is ignored because it is far beyond all others (docs/format/v1.md).
            Such a checkpoint is ordered before all others and can be loaded by its step or id.
        created: Time of the save in UTC, ``YYYY-MM-DDTHH:MM:SS.ffffffZ``.
        logical_bytes: Size of all its data, which is the size of a copy without any sharing.
        new_bytes: Bytes of the blobs that the save wrote.
        reused_bytes: Bytes of its data that were already in the store.
        leaf_count: Number of tensors, arrays and other values that are stored as bytes.
        content: Digest that is equal for two checkpoints with the same content.
        parent: Id of the checkpoint that this one continues, or None.
        metrics: Name -> value. A metric from `Store.annotate` overrides a metric of the same name from the save.
        notes: Notes of `Store.annotate`, in the order in which they were written.
        tags: Tags that named the checkpoint when this information was read.
        durable: False if its filesystem is not known to preserve it through a power cut.
        damaged: Whether a read or a verification found damage that has not been repaired since.
        elsewhere: Whether some of its bytes are only on a remote. A load downloads these bytes.
        compacted: Whether its directory has encoded forms of blobs and so takes less than `logical_bytes`.
        remotes: Names of the remotes that have its remote-only bytes. Only `Store.info` returns them.
        catalogued: False if the catalog could not be updated in time. The next opening of the store updates it.
        oldest_reading: The earliest of the times at which saves and verifications last read or wrote its blobs, in the
            format of `created`. Empty if this time is unknown for one of the blobs. Only `Store.info` returns it.
        warnings: Problems after the checkpoint was durable, such as a tag or the catalog that could not be written, or
            retention that failed. Only a save returns them.
        counters: Counters and durations of the save that returned this object. None if another call returned it, if
            several ranks saved, or if the saver died after the checkpoint was durable.
        directory: Name of its directory in ``checkpoints/RUN/``. If empty, the name consists of the step and the first
            digits of the id.
        superseded: Whether the store has a newer checkpoint of its step.
        unhealthy: A sentence on the tensors with NaN, or with more infinite values than when they were first saved.
            Empty if the checkpoint is healthy, or was saved with `StoreConfig.health_share` 0. `OpenCheckpoint.health`
            has the counts.
        unchanged: The parts of its state that stopped changing although the step advances.
        training: Id of the training that the checkpoint belongs to. Calls other than a save may return an empty id.
            The id is also empty if an older ckstore started the training.
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
        """A ref of the checkpoint: ``RUN@STEP``, or the first digits of its id if it is superseded."""
        return short_id(self.id) if self.superseded else self.name

    @property
    def shown(self) -> str:
        """The `name`, followed by the first digits of its id if it is superseded."""
        return shown_name(self.name, self.id, superseded=self.superseded)

    @property
    def key(self) -> CheckpointKey:
        """The key under which it is published: run, step and directory."""
        return CheckpointKey(self.run, self.step, self.directory or directory_of(self.step, self.id))

    @property
    def order(self) -> tuple[int, str, str, int]:
        """Sort key for the order of commits; a later generation of the same checkpoint sorts later."""
        return 0 if self.out_of_order else self.sequence, self.created, self.id, self.key.generation

    def __str__(self) -> str:
        # A part of `new_bytes` may be padding between small tensors.
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
        """Return a copy with later annotations, whose metrics override metrics of the same name from the save."""
        return replace(self, metrics={**self.metrics, **metrics}, notes=notes)

    @classmethod
    def of(
        cls,
        manifest: Manifest,
        manifest_id: str,
        *,
        tags: tuple[str, ...] = (),
        directory: str = "",
        leaf_count: int | None = None,
    ) -> CheckpointInfo:
        """Return the information in a manifest.

        `directory` is the name of the checkpoint's directory. `leaf_count` is required if the manifest was parsed
        without its leaves.
        """
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
            leaf_count=len(manifest.leaves) if leaf_count is None else leaf_count,
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


def as_stored(info: CheckpointInfo, *, damaged: bool, lacks_blobs: bool, compacted: bool) -> CheckpointInfo:
    """Return `info` with the facts that its directory adds to the manifest."""
    if (info.damaged, info.elsewhere, info.compacted) == (damaged, lacks_blobs, compacted):
        return info
    return replace(info, damaged=damaged, elsewhere=lacks_blobs, compacted=compacted)


def is_local(info: CheckpointInfo) -> bool:
    """Whether the directory of a checkpoint has all of its files."""
    return not info.elsewhere


_MOST = 2**64


class Stamp(NamedTuple):
    """Identity of the directory and the manifest file of a checkpoint.

    A replaced or modified file has another stamp. Inode numbers are not sufficient for this, because a filesystem may
    assign the number of a removed directory to a new directory. No user can set the time of change (`ctime`) of a file.
    """

    dir_inode: int  # inode number of the directory
    inode: int  # inode number of its ``manifest.json``
    # `mtime_ns` and `ctime_ns` are the times of the ``manifest.json``, modulo 2^64.
    mtime_ns: int
    ctime_ns: int

    @classmethod
    def of(cls, dir_inode: int, manifest: os.stat_result) -> Stamp:
        """Return the stamp of the directory with this inode number and the status of its manifest."""
        return cls(dir_inode, manifest.st_ino, manifest.st_mtime_ns % _MOST, manifest.st_ctime_ns % _MOST)


@dataclass(frozen=True, slots=True)
class Published:
    """A complete checkpoint, in the state of its directory at the time of reading."""

    manifest: Manifest  # content of its ``manifest.json``; run and step are those of its key
    manifest_id: str  # digest of the manifest, the id of the checkpoint
    key: CheckpointKey  # run, step and directory
    stamp: Stamp  # identifies this directory in the rows of the catalog without reading the manifest again
    elsewhere: frozenset[str] = frozenset()  # digests of the blobs that are only on a remote

    @property
    def is_local(self) -> bool:
        """Whether its directory has all of its files."""
        return not self.elsewhere

    @property
    def local_files(self) -> tuple[BlobRecord, ...]:
        """The files that its directory has."""
        files = self.manifest.blobs if self.manifest.form.is_plain else self.manifest.stored
        return tuple(file for file in files if file.digest not in self.elsewhere) if self.elsewhere else files

    @property
    def order(self) -> tuple[int, str, str, int]:
        """Sort key for the order of commits; a later generation of the same checkpoint sorts later."""
        return self.manifest.sequence, self.manifest.created, self.manifest_id, self.key.generation


@brief()
@dataclass(frozen=True, slots=True)
class RunSummary:
    """A run of a store.

    Attributes:
        name: Name of the run.
        checkpoint_count: Number of complete checkpoints of the run.
        newest: The checkpoint that was committed last.
        highest_step: The highest step of the checkpoints. It is above the step of `newest` if the training was resumed
            from an earlier step.
    """

    name: str
    checkpoint_count: int
    newest: CheckpointInfo
    highest_step: int

    def __str__(self) -> str:
        """``gpt: 12 checkpoints, the newest gpt@1200``."""
        return printable(f"{self.name}: {counted(self.checkpoint_count, 'checkpoint')}, the newest {self.newest.name}")


def summaries(infos: Iterable[CheckpointInfo]) -> list[RunSummary]:
    """Return the runs of `infos`, ordered by the newest checkpoint of each run.

    `infos` must be in the order of commits.
    """
    by_run: dict[str, list[CheckpointInfo]] = {}
    for info in infos:
        by_run.setdefault(info.run, []).append(info)
    found = [RunSummary(run, len(own), own[-1], max(info.step for info in own)) for run, own in by_run.items()]
    return sorted(found, key=lambda summary: summary.newest.order)
