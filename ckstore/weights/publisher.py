"""Publishes the weights of a growing run as versions for the engines that serve them.

Each check compares the newest version in the directory with the checkpoint that the ref names, and publishes this
checkpoint if they differ. So a publisher continues after a kill, and a rollback of the trainer is published. The only
other state is the greatest version number.
"""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Self, get_args

import xxhash

from ckstore.errors import BadInput, DamagedBlob, InUse, MissingExtra, NoSuchRef
from ckstore.model.checkpoint.refs import Ref
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import DEFAULT_RUN, check_run, expanded
from ckstore.model.reports.weight_version import WeightVersion
from ckstore.model.words import printable, some_of
from ckstore.objects.checkpoints import CheckpointDirectory
from ckstore.ops.api_calls import api_call
from ckstore.ops.context import Context, info_of
from ckstore.ops.notices import warn
from ckstore.ops.read.export_cast import CastTally, WeightDtype
from ckstore.ops.read.formats.export_pretrained import export_pretrained
from ckstore.ops.read.formats.model_files import UserFile, added_files, user_file_parts
from ckstore.ops.read.load import Select
from ckstore.ops.refs.find import find, open_directory
from ckstore.ops.refs.listing import in_one_run, infos, newest, run_meant
from ckstore.weights.model_weights import ModelWeights
from ckstore.weights.version_directory import VERSION_NAME, DifferenceForm, VersionDirectory, VersionRecord

_OTHER_WEIGHTS = "another part of the state is selected"
_OTHER_FILES = "the files to add changed"
_LOOK_S = 0.1  # how soon a waiting thread notices `close`


@dataclass(frozen=True, slots=True)
class PublishOptions:
    """The options of a publisher; see `ckstore.Store.publish`."""

    ref: str
    select: Select
    add: Sequence[str | os.PathLike[str]]
    dtype: WeightDtype | None
    difference: DifferenceForm
    full_every: int
    full_above: float
    keep_full: int
    timeout_s: float | None
    poll_s: float

    def __post_init__(self) -> None:
        """Check the values.

        Raises:
            BadInput: A value is invalid.
        """
        if self.dtype is not None and self.dtype not in get_args(WeightDtype):
            msg = f"dtype must be float16, bfloat16 or float32, or None for that of the checkpoint, got {self.dtype!r}"
            raise BadInput(msg)
        if self.difference not in get_args(DifferenceForm):
            raise BadInput(f"difference must be overwrite or xor, got {self.difference!r}")
        for name, value in (("full_every", self.full_every), ("keep_full", self.keep_full)):
            if type(value) is not int or value < 1:
                raise BadInput(f"{name} must be a number of versions, 1 or more, got {value!r}")
        if not 0 < self.full_above <= 1:
            raise BadInput(f"full_above must be a share of the weights, above 0 and at most 1, got {self.full_above!r}")
        if self.timeout_s is not None and not self.timeout_s >= 0:
            raise BadInput(f"timeout_s must be a number of seconds, 0 or more, or None, got {self.timeout_s!r}")
        if not 0 < self.poll_s < math.inf:
            raise BadInput(f"poll_s must be a number of seconds above 0, got {self.poll_s!r}")


class WeightPublisher:
    """An iterator and context manager that publishes versions, and yields each of them.

    Attributes:
        run: The run whose weights are published.
        path: The directory of the versions.
    """

    def __init__(
        self,
        context: Context,
        run: str,
        directory: VersionDirectory,
        options: PublishOptions,
        bring: Callable[[], None],
    ) -> None:
        self.run = run
        self.path = directory.path
        self._context = replace(context, run=run)  # a ref without a run means a checkpoint of this run
        self._directory = directory
        self._options = options
        self._dtype = options.dtype or ""  # in the form of `VersionRecord.dtype`
        self._bring = bring
        self._published: ModelWeights | None = None  # the weights of the newest version, if its checkpoint still exists
        self._added: tuple[tuple[UserFile, ...], str] = ((), "")  # the files to add at the last check, and their digest
        self._unresolved: NoSuchRef | None = None  # set while the ref names no checkpoint although the run has some
        self._closed = False
        self._in_use = threading.Lock()
        newest_one = self.newest
        self._told = 0 if newest_one is None else newest_one.version  # the caller knows the versions up to this one

    @property
    def newest(self) -> WeightVersion | None:
        """The newest version in the directory. After a restart, engines may not know it yet."""
        records = self._directory.records()
        return self._directory.version_of(records[-1]) if records else None

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> WeightVersion:
        """Publish the next version, waiting for a checkpoint if necessary, and return it.

        After an error, the next call tries again.

        Raises:
            StopIteration: There was nothing to publish for `timeout_s`, or `close` was called.
            NoSuchRef: After `timeout_s`, the ref names no checkpoint, although the run has some.
            CkstoreError: The checkpoint cannot be published.
        """
        deadline_s = math.inf if self._options.timeout_s is None else time.monotonic() + self._options.timeout_s
        try:
            with self._in_use:
                while not self._closed:
                    before = self._unresolved
                    if (version := self._publish()) is not None:
                        self._told = version.version
                        return version
                    again_s = time.monotonic() + self._options.poll_s
                    if again_s > deadline_s:
                        self._closed = True
                        if self._unresolved is not None:
                            raise self._unresolved
                        break
                    if before is None and self._unresolved is not None:
                        ref = self._options.ref
                        warn(f"nothing is published to {self.path} until {ref} names a checkpoint: {self._unresolved}")
                    self._wait(again_s)
        finally:
            if self._closed:  # another thread may have called `close`
                self.close()
        raise StopIteration

    def _wait(self, until_s: float) -> None:
        """Wait until that time, or until another thread calls `close`."""
        while not self._closed and (left_s := until_s - time.monotonic()) > 0:
            time.sleep(min(left_s, _LOOK_S))

    @api_call
    def _publish(self) -> WeightVersion | None:
        """Publish the checkpoint that the ref names. Return None if it is already published or does not exist."""
        self._bring()
        records = self._directory.records()
        last = records[-1] if records else None
        if last is not None and last.run != self.run:
            msg = f"{self.path} has the weights of the run {last.run}, and {self.run} is to be published"
            raise BadInput(msg, hint="publish each run to a directory of its own")
        added = self._read_added()
        greatest = self._directory.greatest()
        try:
            is_published = (
                last is not None
                and last.version == greatest  # otherwise engines may have a version that was removed
                and last.added == added
                and last.dtype == self._dtype
            )
            if last is not None and is_published and find(self._context, self._options.ref).id == last.id:
                problem = self._open_published(last)  # it is not open yet if the publisher was just started
                if problem != _OTHER_WEIGHTS:
                    # A version that was published, but not returned because of an error, is returned now.
                    return self._directory.version_of(last) if last.version > self._told else None
            directory = open_directory(self._context, self._options.ref)
        except NoSuchRef as error:
            # The ref may be wrong, or name a checkpoint only later, such as `best:reward` after the first evaluation.
            if self._options.ref != "latest" and newest(self._context, self.run) is not None:
                self._unresolved = error
            return None
        self._unresolved = None
        info = info_of(self._context, directory.manifest, directory.manifest_id)
        if info.run != self.run:
            directory.close()
            msg = f"{self._options.ref} names {info.name}, and the run {self.run} is to be published"
            raise BadInput(msg, hint="name a checkpoint of this run")
        weights = self._weights_in(directory)
        number = greatest + 1
        try:
            record = VersionRecord(number, info.run, info.step, info.id, weights.content, added, False, "", self._dtype)
            record, casts, nbytes = self._write(record, weights, info, records)
        except BaseException:
            weights.close()
            raise
        self._hold(weights)
        try:
            self._directory.record_greatest(number)
        except OSError as error:
            warn(f"the number of version {number} was not recorded in {self.path}: {error}")
        try:
            self._directory.prune(self._options.keep_full)
        except (OSError, InUse) as error:  # the version is published, and the next prune retries this
            warn(f"older versions in {self.path} were not removed: {error}")
        if casts.beyond:
            found = [f"{printable(name)}: {how}" for name, how in casts.beyond.items()]
            listed = some_of(found, separator="; ")
            warn(f"version {number} in {self.path} has values that {casts.dtype} cannot represent: {listed}")
        return self._directory.version_of(replace(record, out_of_range=casts.count), nbytes)

    def _weights_in(self, directory: CheckpointDirectory) -> ModelWeights:
        options = self._options
        return ModelWeights(directory, options.select, self._context.settings.chunk_bytes, options.dtype)

    def _write(
        self, record: VersionRecord, weights: ModelWeights, info: CheckpointInfo, records: list[VersionRecord]
    ) -> tuple[VersionRecord, CastTally, int]:
        """Write the differences from the last version, or all weights.

        Return the record, the weights that were converted, and the size of the files.
        """
        before, reason = self._before(record.version, info, records)
        if before is not None and not reason:
            reason = weights.difference_in_form(before)
        path = self._directory.place(record.version)
        if before is not None and not reason:
            from ckstore.codecs.byte_difference import LargeDifference
            from ckstore.weights.difference import UnreadableBase, write_difference

            casts = CastTally(self._options.dtype)
            all_bytes = sum(weight.tensor.nbytes for weight in weights.weights.values())
            try:
                nbytes = write_difference(
                    before,
                    weights,
                    path,
                    record,
                    form=self._options.difference,
                    most_bytes=self._options.full_above * all_bytes,
                    threads=self._context.threads,
                    casts=casts,
                )
            except LargeDifference:
                reason = f"the differences are larger than {self._options.full_above:g} of the weights"
            except UnreadableBase as error:
                reason = f"step {records[-1].step} cannot be read: {error}"
            else:
                return record, casts, nbytes
        # Start a new count, because the difference with the counted weights was not written.
        casts = CastTally(self._options.dtype)
        record = replace(record, is_full=True, reason=reason)
        report = export_pretrained(
            weights.directory,
            path,
            form="pretrained",
            chunk_bytes=self._context.settings.chunk_bytes,
            select=self._options.select,
            add=self._added[0],
            casts=casts,
            last={VERSION_NAME: lambda: replace(record, out_of_range=casts.count).rendered()},
        )
        return record, casts, report.nbytes

    def _read_added(self) -> str:
        """Return the digest of the names and the bytes of the files to add. Unchanged files are not read again."""
        found = added_files(self._options.add)
        if found != self._added[0]:
            digest = xxhash.xxh3_128()
            for one in found:
                digest.update(repr((one.name, one.entry.nbytes)).encode())
                for part in user_file_parts(one):
                    digest.update(part)
            self._added = found, digest.hexdigest()
        return self._added[1]

    def _before(
        self, number: int, info: CheckpointInfo, records: list[VersionRecord]
    ) -> tuple[ModelWeights | None, str]:
        """Return the weights of the last version, or the reason why a difference from them is not written."""
        if number == 1:
            return None, "the first version"
        since_full = next((i for i, record in enumerate(reversed(records)) if record.is_full), None)
        # Engines start at the newest version with all weights, and apply each later version.
        if since_full is None or records[-1 - since_full].version != number - 1 - since_full:
            return None, "an earlier version is missing"
        last = records[-1]
        if since_full + 1 >= self._options.full_every:
            return None, f"every {self._options.full_every} versions"
        if last.dtype != self._dtype:
            was, now = (one or "that of the checkpoint" for one in (last.dtype, self._dtype))
            return None, f"the dtype changed from {was} to {now}"
        problem = self._open_published(last)
        if problem == _OTHER_WEIGHTS:
            return None, problem
        if last.added != self._added[1]:
            return None, _OTHER_FILES
        listed = {one.id: one for one in infos(self._context, self.run, superseded=True)}
        if not _continues(info, last, listed):
            return None, f"the run no longer continues step {last.step}"
        return self._published, problem and f"step {last.step} cannot be read: {problem}"

    def _open_published(self, last: VersionRecord) -> str:
        """Open the checkpoint of the newest version, unless it is open. Return the reason if that fails, or ""."""
        if self._published is not None and self._published.directory.manifest_id == last.id:
            return ""
        self._hold(None)
        try:
            # The checkpoint may be superseded by another one of its step, and is then found only by its id.
            opened = open_directory(self._context, last.id)
            weights = self._weights_in(opened)
        except (NoSuchRef, DamagedBlob, InUse, BadInput) as error:
            return error.message
        if weights.content != last.content:
            weights.close()
            return _OTHER_WEIGHTS
        self._hold(weights)
        return ""

    def _hold(self, weights: ModelWeights | None) -> None:
        """Keep the weights of the last version open, so that their checkpoint exists until the next version."""
        held, self._published = self._published, weights
        if held is not None:
            held.close()

    def close(self) -> None:
        """Stop publishing, and let another process publish to the directory."""
        self._closed = True
        if self._in_use.acquire(blocking=False):  # otherwise another thread is publishing, and closes when it is done
            try:
                self._hold(None)
                self._directory.close()
            finally:
                self._in_use.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_in_use"):
            self.close()

    def _act_places(self) -> tuple[object, ...]:
        return self._context.act_places()


def _continues(info: CheckpointInfo, last: VersionRecord, listed: dict[str, CheckpointInfo]) -> bool:
    """Whether the checkpoint continues the checkpoint of the last version, as far as this is known."""
    published = listed.get(last.id)
    if info.step <= last.step or (published is not None and info.order < published.order):
        return False
    at: CheckpointInfo | None = info
    while at is not None and at.parent is not None:
        if at.parent == last.id:
            return True
        at = listed.get(at.parent)
        if at is not None and at.step < last.step:
            return False
    # Retention has dropped an ancestor, or a save named no parent. A difference from the published bytes is still
    # correct.
    return True


def publish(
    context: Context,
    run: str | None,
    destination: str | os.PathLike[str],
    options: PublishOptions,
    bring: Callable[[], None] = lambda: None,
) -> WeightPublisher:
    """Begin to publish; see `ckstore.Store.publish`. `bring` is called before each check, and may add checkpoints."""
    try:
        from ckstore.weights import difference

        if options.dtype is not None:
            from ckstore.tensors import dtype_cast

            del dtype_cast
    except ImportError as error:
        package = (error.name or "zstandard").partition(".")[0]
        raise MissingExtra.of(error, "differences of weights need", package, "torch,compact") from error
    del difference
    added_files(options.add)  # raises an error now, and not only at the next version with all weights
    options = replace(options, add=[expanded(one).absolute() for one in options.add])
    path = context.layout.outside(destination)
    bring()
    chosen = run_meant(context, run)
    if chosen is None:
        chosen = in_one_run(context, Ref(None, "latest", "latest")).run or next(
            iter(context.layout.runs()), DEFAULT_RUN
        )
    check_run(chosen)
    directory = VersionDirectory(path)
    try:
        return WeightPublisher(context, chosen, directory, options, bring)
    except BaseException:
        directory.close()
        raise
