"""The remotes of a store, by name: ``store.remotes``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any, NoReturn, SupportsIndex

from ckstore.errors import BadInput, CkstoreError
from ckstore.model.manifest.info import CheckpointInfo
from ckstore.model.names import check_run
from ckstore.model.remote.prune_report import RemotePruneReport
from ckstore.model.remote.transfer import StoreClaims, TransferReport
from ckstore.model.reports.progress import Progress
from ckstore.model.times import duration_s, text_of_time
from ckstore.model.words import counted
from ckstore.objects.checkpoints import holder_names_at
from ckstore.ops import config_file
from ckstore.ops.api_calls import api_call
from ckstore.ops.context import Context
from ckstore.ops.mirror_record import forget_copies
from ckstore.ops.mirror_settings import KEEP_REMOTE, MIRROR
from ckstore.ops.notices import warn
from ckstore.ops.refs.listing import infos
from ckstore.remote import keys
from ckstore.remote.objects import OF_ALL
from ckstore.remote.pruning.prune import GRACE_S, LEAST_GRACE_S
from ckstore.remote.service.folder import make_folder, target_at
from ckstore.remote.service.remote_entries import MEMBER, RemoteEntry, check_name, entries, entry_named, open_objects
from ckstore.remote.service.target import Target, parse_target
from ckstore.remote.verification.remote_verify_report import RemoteVerifyReport


class Remotes:
    """The remotes of a store, by name. Every call reads them from ``config.json``."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def _act_places(self) -> tuple[object, ...]:
        return self._context.act_places()

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied.

        Raises:
            BadInput: Always.
        """
        raise BadInput(f"{self!r} cannot be pickled", hint="pickle the store, and use the remotes of its copy")

    def __repr__(self) -> str:
        return f"<remotes of {self._context.layout.root}>"

    def __iter__(self) -> Iterator[RemoteEntry]:
        return iter(self.list())

    @api_call
    def list(self) -> tuple[RemoteEntry, ...]:
        """Return all remotes, sorted by name."""
        return tuple(entries(self._context.layout).values())

    @api_call
    def get(self, name: str) -> RemoteEntry:
        """Return the remote of that name.

        Raises:
            NoSuchRemote: The store has no such remote.
        """
        return entry_named(self._context.layout, name)

    @api_call
    def add(
        self, name: str, target: str | os.PathLike[str], *, endpoint: str | None = None, region: str | None = None
    ) -> RemoteEntry:
        """Probe a service and add the remote under a name. If the target has no remote yet, one is created.

        A remote that lost its ``remote.json``, but not its other objects, gets the same uuid again. Only a store that
        relies on the remote knows this uuid.

        Credentials are read from the environment, a profile or a role each time the remote is used, and never stored.

        Args:
            name: 1 to 100 of the characters A-Z a-z 0-9 . _ -, not beginning with a dot or a dash.
            target: A URL of object storage, such as ``s3://BUCKET/PREFIX``, or a directory, which is created if it is
                missing. The directory of a store is also allowed. That store is then only read.
            endpoint: URL of an S3-compatible service. If None, the URL in the environment or the provider's default.
            region: The region of the bucket. If None, the region in the environment.

        Raises:
            BadInput: The name is already used for another remote, the address is invalid, the remote uses another hash
                than the store, or the directory contains other files.
            NoSuchRemote: The remote lost its ``remote.json``, and only other stores know its uuid.
            RemoteError: The target cannot be reached or used.
        """
        return self._add(name, target, endpoint=endpoint, region=region)

    def _add(
        self, name: str, target: str | os.PathLike[str], *, endpoint: str | None = None, region: str | None = None
    ) -> RemoteEntry:
        self._context.check_writable()
        check_name(name)
        wanted = target_at(parse_target(target, endpoint=endpoint, region=region))
        self._check_is_at(name, wanted)
        entry, is_created = self._probed_entry(name, wanted, make=True)
        self._keep(entry, is_new=True)
        if is_created:  # a remote that lost its description may also have lost checkpoints
            forget_copies(self._context.layout, name)
        return entry

    @api_call
    def probe(self, name: str) -> RemoteEntry:
        """Probe the service of a remote again, and store the result.

        Raises:
            NoSuchRemote: No remote has that name, or its target no longer has a remote.
            BadInput: Another process has meanwhile given the name to another remote.
            RemoteError: The target cannot be reached or used, or it has another remote.
        """
        from ckstore.remote.documents.remote_info import check_uuid_is

        self._context.check_writable()
        old = entry_named(self._context.layout, name)
        entry, _ = self._probed_entry(old.name, old.target, make=False)
        check_uuid_is(entry.uuid, old.uuid, old.name)
        self._keep(entry, is_new=False)
        return entry

    @api_call
    def remove(self, name: str) -> None:
        """Remove a remote from the settings. The objects of the remote are not changed.

        If checkpoints of the store were evicted to this remote, a `CkstoreWarning` states their number.

        Raises:
            NoSuchRemote: No remote has that name.
            BadInput: The remote is the mirror of the store.
        """
        self._context.check_writable()
        entry = entry_named(self._context.layout, name)

        def without(found: Any) -> Any:
            # This is checked under the lock of the settings. Otherwise a remote that has just become the mirror could
            # be removed, and saves would silently not be mirrored.
            if config_file.setting_of(self._context.layout, MIRROR) == entry.name:
                msg = f"the remote {entry.name} is the mirror of the store; nothing was removed"
                off, command = "store.config.mirror = None", "ckstore config mirror off"
                then = "turns the mirror off; then remove the remote"
                raise BadInput(msg, hint=f"{off} {then}", command_hint=f"{command} {then}")
            return {other: value for other, value in (found or {}).items() if other != entry.name} or None

        config_file.edit(self._context.layout, MEMBER, without)
        places = (
            self._context.layout.checkpoint(info.key)
            for info in infos(self._context, superseded=True)
            if info.elsewhere
        )
        if count := sum(entry.name in holder_names_at(place) for place in places):
            have = f"{counted(count, 'checkpoint')} of {self._context.layout.path}"
            warn(f"{have} may fail to load until {entry.target} is added again as {entry.name}")

    @api_call
    def prune(
        self, name: str, *, dry_run: bool = False, exclusive: bool = False, grace: float | str | timedelta = GRACE_S
    ) -> RemotePruneReport:
        """Garbage-collect a remote: delete blobs that no checkpoint and no push under way references.

        If the remote is the mirror of the store, checkpoints that `StoreConfig.keep_remote` does not keep are deleted
        first.

        An unreferenced blob is first marked. A later call deletes it after the grace period. Until then, readers of a
        deleted checkpoint can continue. Pushes and other prunes may run at the same time. At most 131,072 blobs are
        marked at a time. Later calls mark the rest.

        Args:
            name: The name of the remote. "" stands for the only one.
            dry_run: Change nothing, and return what would be deleted.
            exclusive: The caller guarantees that no other process writes to the remote. Required if the service does
                not support compare-and-swap. On such a service, unreferenced blobs older than the grace period are
                deleted in the same call.
            grace: The grace period in seconds, or as text such as ``12h``. At least one minute.

        Raises:
            NoSuchRemote: No remote has that name.
            InUse: The service does not support compare-and-swap, and a push is under way although `exclusive` is True.
            RemoteError: The service does not answer, or it does not support compare-and-swap and `exclusive` is False.
            BadInput: The name is that of a store, which `Store.gc` cleans up, or `grace` is too short.
        """
        from ckstore.remote.documents.claims import end_claims
        from ckstore.remote.pruning.keep_remote import KeepRemote
        from ckstore.remote.pruning.prune import prune
        from ckstore.remote.remote_opener import open_remote

        grace_s = duration_s(grace, "grace")
        if grace_s < LEAST_GRACE_S:
            raise BadInput(f"grace must be at least {LEAST_GRACE_S:g} seconds, got {grace_s:g}")
        remote = open_remote(self._context, name, writing=not dry_run)
        layout = self._context.layout
        is_mirror = remote.name == config_file.setting_of(layout, MIRROR)
        policy = config_file.policy_of(layout, KEEP_REMOTE) if is_mirror else None
        retention = None
        if not dry_run:
            end_claims(self._context, remote)
        failure: CkstoreError | None = None
        if policy is not None:
            keep = KeepRemote(self._context, remote, policy)
            try:
                retention = keep.planned() if dry_run else keep.apply()
            except OF_ALL:
                raise
            except CkstoreError as error:  # unreferenced blobs can still be deleted
                failure = error
        report = prune(remote, self._context.algorithm, grace_s=grace_s, dry_run=dry_run, exclusive=exclusive)
        if failure is not None:
            raise failure
        return replace(report, retention=retention)

    @api_call
    def verify(
        self,
        name: str,
        ref: str | SupportsIndex | CheckpointInfo | None = None,
        *,
        sample: float | None = None,
        quick: bool = False,
        budget_s: float | None = None,
        rate_bytes_s: float | None = None,
        progress: Progress | None = None,
    ) -> RemoteVerifyReport:
        """Read the manifests and blobs of a remote back, and compare them with their digests.

        The checkpoints of all stores that push to the remote are verified. A checkpoint that this store evicted or
        pushed counts as missing if the remote no longer lists it, unless ckstore deleted it there. If the remote is the
        mirror, missing objects are pushed again while the store still has their data. Damaged objects must be deleted
        on the remote first, as the report explains.

        Args:
            name: The name of the remote. "" stands for the only one.
            ref: The checkpoint of the remote to verify, as in `Store.pull`. If None, all are verified.
            sample: Read only this fraction of the blobs, above 0. Blobs that this store never read back come first, and
                the others are drawn at random. Missing blobs and wrong sizes are still detected. If None, all blobs are
                read.
            quick: Read the manifests, but no blobs. The sizes of the blobs are taken from a listing.
            budget_s: Read blobs for this many seconds, in the order described for `sample`. At least one blob is read.
            rate_bytes_s: Maximum read rate, in bytes per second.
            progress: Called regularly with the number of bytes read so far and the total number of bytes.

        Raises:
            NoSuchRemote: No remote has that name, or its target no longer has a remote.
            NoSuchRef, AmbiguousRef: The ref does not name one checkpoint of the remote.
            BadInput: An option is out of range, two options exclude each other, or the name is that of a store.
            RemoteError: The remote does not answer.
        """
        from ckstore.ops.verify.verify import Options
        from ckstore.remote.remote_opener import open_remote
        from ckstore.remote.verification.verify_remote import RemoteVerification

        options = Options(sample, budget_s, rate_bytes_s, quick, progress=progress)
        return RemoteVerification(self._context, open_remote(self._context, name), options).run(ref)

    @api_call
    def claims(self, name: str) -> tuple[StoreClaims, ...]:
        """Return the stores that rely on checkpoints of a remote because they evicted their local copies.

        Neither `StoreConfig.keep_remote` nor `prune` of any store deletes such a checkpoint from the remote.

        Raises:
            NoSuchRemote: No remote has that name.
            BadInput: The name is that of a store.
            RemoteError: The remote does not answer.
        """
        from ckstore.remote.documents.claims import store_claims
        from ckstore.remote.documents.remote_info import read_info
        from ckstore.remote.remote_opener import open_remote

        remote = open_remote(self._context, name)
        read_info(remote.objects, remote.name)  # raises if the bucket was emptied, because its claims are then unknown
        return store_claims(self._context, remote)

    @api_call
    def release(self, name: str, store: str) -> StoreClaims:
        """End the claims of a store that no longer exists. Its evicted checkpoints may then be deleted from the remote.

        Args:
            name: The name of the remote.
            store: The uuid of that store, as `claims` returns it.

        Raises:
            NoSuchRemote: No remote has that name.
            BadInput: `store` has no claim on the remote, or it is this store, whose claims end when `pull` restores the
                data.
            RemoteError: The remote does not answer.
        """
        from ckstore.remote.documents.claims import release_claims
        from ckstore.remote.remote_opener import open_remote

        self._context.check_writable()
        return release_claims(self._context, open_remote(self._context, name, writing=True), store)

    @api_call
    def take_over(self, name: str, run: str) -> None:
        """Make this store the one that mirrors a run to a remote, instead of another store.

        The other store then no longer mirrors its later saves of the run, and reports this. Checkpoints that it pushed
        are not changed.

        Args:
            name: The name of the remote.
            run: The name of the run.

        Raises:
            NoSuchRemote: No remote has that name.
            BadInput: The name is that of a store, or the name of the run is invalid.
            RemoteError: The remote does not answer.
        """
        from ckstore.remote.mirror.ownership import Ownership
        from ckstore.remote.remote_opener import open_remote

        self._context.check_writable()
        Ownership(self._context).own(open_remote(self._context, name, writing=True), check_run(run), 0, by_name=True)

    @api_call
    def convert(self, name: str, new: str, directory: str | os.PathLike[str]) -> TransferReport:
        """Copy another store to a new remote, and replace that store in the settings with the remote.

        An earlier draft of ckstore pushed to stores instead of remotes. After the copy, evicted checkpoints are read
        from the new remote. If the other store was the mirror, the new remote becomes the mirror. The other store is
        not changed. An interrupted call can be repeated.

        Args:
            name: The name of the other store among the remotes.
            new: The name of the new remote, as in `add`.
            directory: The directory of the new remote, as in `add`.

        Raises:
            NoSuchRemote: No remote has that name.
            BadInput: The remote `name` is not a store. `add` can also raise this error.
            RemoteError: The directory cannot be used.
            CkstoreError: Some checkpoints could not be copied. They are still read from the other store.
        """
        from ckstore.remote.remote_only.store_conversion import convert
        from ckstore.remote.remote_opener import OtherStore, open_remote, open_source

        self._context.check_writable()
        old = open_source(self._context, name)
        if not isinstance(old, OtherStore):
            target = entry_named(self._context.layout, name).target
            raise BadInput(f"{name} is already a remote, at {target}; there is nothing to convert")
        self._add(new, directory)
        return convert(self._context, old, open_remote(self._context, new, writing=True))

    def _keep(self, entry: RemoteEntry, *, is_new: bool) -> None:
        def kept(found: Any) -> Any:
            # This runs under the lock of the settings: another process may have removed or added a remote during the
            # probe.
            if not is_new:
                entry_named(self._context.layout, entry.name)
            self._check_is_at(entry.name, entry.target)
            return {**(found or {}), entry.name: entry.setting()}

        config_file.edit(self._context.layout, MEMBER, kept)

    def _check_is_at(self, name: str, target: Target) -> None:
        """Raise `BadInput` if the name already belongs to a remote with another target."""
        taken = entries(self._context.layout).get(name)
        if taken is not None and taken.target != target:
            hint = f"remove it first with ckstore remote rm {name}, or choose another name"
            raise BadInput(f"{name} is the remote at {taken.target}", hint=hint)

    def _probed_entry(self, name: str, target: Target, *, make: bool) -> tuple[RemoteEntry, bool]:
        """Return the entry of a remote after probing its target, and whether the remote was created.

        If `make` is True, a missing remote is created.
        """
        if target.kind == "store":
            return RemoteEntry(name, target, self._store_at(target)), False
        if target.kind == "directory" and make:
            make_folder(target)
        from ckstore.remote.documents.remote_info import agreed_info, check_hash, read_info
        from ckstore.remote.remote_only.lost_description import new_info
        from ckstore.remote.service.service_probe import probe

        settings = self._context.settings
        abilities, now = probe(target)
        objects = open_objects(target, abilities)
        is_missing = make and abilities.writes and objects.head(keys.INFO) is None
        if is_missing:
            created = text_of_time(now or datetime.now(UTC))
            objects.create(keys.INFO, new_info(self._context, name, target, objects, created).render())
        # The description is read back even after it was written. If two clients create a remote at the same time, both
        # then use the same description.
        is_shared = make and abilities.writes and abilities.cas == "no"
        info = agreed_info(objects, name) if is_shared else read_info(objects, name)
        check_hash(info, settings, name)
        return RemoteEntry(name, target, info.uuid, abilities), is_missing

    def _store_at(self, target: Target) -> str:
        from ckstore.ops.open.opening import open_context

        other, _ = open_context(target.path, readonly=True, recover=False, catalog_path=None)
        mine = self._context.settings
        if target.path.samefile(self._context.layout.path):
            raise BadInput(f"{target} is this store itself", hint="name another store")
        if other.settings.hash != mine.hash:
            msg = f"{target} uses the hash {other.settings.hash}, but this store uses {mine.hash}"
            raise BadInput(msg, hint="a store and its remote must use the same hash")
        return other.settings.uuid
