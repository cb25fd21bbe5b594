"""The remotes of a store, by name: ``store.remotes``."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

from ckstore.errors import BadInput, CkstoreError
from ckstore.model.names import check_run
from ckstore.model.reports.retention_report import RemotePruneReport, RetentionReport
from ckstore.model.reports.transfer import StoreClaims, TransferReport
from ckstore.model.times import duration_s, text_of_time
from ckstore.model.words import counted
from ckstore.objects.documents.remote_only import holder_names_at
from ckstore.ops import config_file
from ckstore.ops.api_calls import api_call, places_of
from ckstore.ops.context import Context
from ckstore.ops.failures import OF_ALL
from ckstore.ops.notices import warn
from ckstore.ops.refs.listing import infos
from ckstore.remote import keys
from ckstore.remote.pruning.prune import GRACE_S, LEAST_GRACE_S
from ckstore.remote.service.folder import make_folder, target_at
from ckstore.remote.service.remote_entries import MEMBER, RemoteEntry, check_name, entries, entry_named, open_objects
from ckstore.remote.service.target import Target, parse_target


class Remotes:
    """The remotes of a store, by name; they are read from ``config.json`` each time."""

    __slots__ = ("_context",)

    def __init__(self, context: Context) -> None:
        self._context = context

    def _act_places(self) -> tuple[object, ...]:
        return places_of(self._context.layout.root.path)

    def __repr__(self) -> str:
        return f"<remotes of {self._context.layout.root}>"

    def __iter__(self) -> Iterator[RemoteEntry]:
        return iter(self.list())

    @api_call
    def list(self) -> tuple[RemoteEntry, ...]:
        """Return all remotes, by their names."""
        return tuple(entries(self._context.layout).values())

    @api_call
    def get(self, name: str) -> RemoteEntry:
        """Return the remote of that name.

        Raises:
            NoSuchRemote: There is none.
        """
        return entry_named(self._context.layout, name)

    @api_call
    def add(
        self, name: str, target: str | os.PathLike[str], *, endpoint: str | None = None, region: str | None = None
    ) -> RemoteEntry:
        """Give a place a name, after trying what it does; what makes it a remote is written there if it is missing.

        Credentials come from the environment, a profile or a role whenever the remote is used, and are never kept.

        Args:
            name: 1 to 100 of the characters A-Z a-z 0-9 . _ -, beginning with neither a dot nor a dash.
            target: A URL of object storage, such as ``s3://BUCKET/PREFIX``; a directory, which is made if it is
                missing; or the directory of a store, to read from that.
            endpoint: URL of an S3-compatible service; None: that of the environment, or the provider's own.
            region: Of the bucket; None: that of the environment.

        Raises:
            BadInput: The name is taken by another place, the address is invalid, the remote has another hash, or the
                directory holds other files.
            RemoteError: The place cannot be reached or used.
        """
        return self._added(name, target, endpoint=endpoint, region=region)

    def _added(
        self, name: str, target: str | os.PathLike[str], *, endpoint: str | None = None, region: str | None = None
    ) -> RemoteEntry:
        self._context.check_writable()
        check_name(name)
        wanted = target_at(parse_target(target, endpoint=endpoint, region=region))
        self._refuse_taken(name, wanted)
        entry = self._tried(name, wanted, make=True)
        self._keep(entry)
        return entry

    @api_call
    def probe(self, name: str) -> RemoteEntry:
        """Try again what a remote does, and remember it.

        Raises:
            NoSuchRemote: There is none of that name, or no remote at its place any more.
            RemoteError: The place cannot be reached or used, or another remote is there.
        """
        from ckstore.remote.documents.remote_info import check_uuid_is

        self._context.check_writable()
        old = entry_named(self._context.layout, name)
        entry = self._tried(old.name, old.target, make=False)
        check_uuid_is(entry.uuid, old.uuid, old.name)
        self._keep(entry)
        return entry

    @api_call
    def remove(self, name: str) -> None:
        """Forget a remote; nothing at its place is touched.

        Where checkpoints have their bytes there alone, a `CkstoreWarning` says how many.

        Raises:
            NoSuchRemote: There is none of that name.
        """
        self._context.check_writable()
        entry = entry_named(self._context.layout, name)

        def without(found: Any) -> Any:
            return {other: value for other, value in (found or {}).items() if other != entry.name} or None

        config_file.edit(self._context.layout, MEMBER, without)
        places = (
            self._context.layout.checkpoint(info.key)
            for info in infos(self._context, superseded=True)
            if info.elsewhere
        )
        if count := sum(entry.name in holder_names_at(place) for place in places):
            have = f"{counted(count, 'checkpoint')} of {self._context.layout.path}"
            warn(f"{have} cannot be loaded until {entry.target} is added again as {entry.name}: it alone has the bytes")

    @api_call
    def prune(
        self, name: str, *, dry_run: bool = False, exclusive: bool = False, grace: float | str | timedelta = GRACE_S
    ) -> RemotePruneReport:
        """Remove from a remote the blobs that none of its checkpoints names, and no push under way.

        Of the mirror of the store the checkpoints go first that `StoreConfig.keep_remote` does not keep there.

        A blob that is found so is condemned, and removed by a later call when the grace is over: so long a reader may
        go on with a checkpoint that was removed. Pushes and other prunes may work at the same time. One call condemns
        at most 131,072 blobs; the next call condemns the rest.

        Args:
            name: Of the remote; "": the only one.
            dry_run: Change nothing; return what would be removed.
            exclusive: Says that no other process writes to the remote. Needed where the service does not compare an
                object's version before it writes; then blobs older than the grace are removed at once.
            grace: At least a minute; seconds, or text such as ``12h``.

        Raises:
            NoSuchRemote: There is none of that name.
            InUse: `exclusive` was given, and a push is under way.
            RemoteError: The service compares nothing, and `exclusive` was not given; or it does not answer.
            BadInput: It is a store, which `Store.gc` prunes.
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
        is_mirror = remote.name == config_file.setting_of(layout, config_file.MIRROR)
        policy = config_file.policy_of(layout, config_file.KEEP_REMOTE) if is_mirror else None
        retention = None
        if not dry_run:
            end_claims(self._context, remote)
        failure: CkstoreError | None = None
        if policy is not None:
            keep = KeepRemote(self._context, remote, policy)
            try:
                retention = RetentionReport(keep.plan()) if dry_run else keep.apply()
            except OF_ALL:
                raise
            except CkstoreError as error:  # blobs that no checkpoint names there can still go
                failure = error
        report = prune(remote, self._context.algorithm, grace_s=grace_s, dry_run=dry_run, exclusive=exclusive)
        if failure is not None:
            raise failure
        return replace(report, retention=retention)

    @api_call
    def claims(self, name: str) -> tuple[StoreClaims, ...]:
        """Return which stores rely on checkpoints at a remote, because they evicted their own copies.

        No store removes such a checkpoint there, neither by `StoreConfig.keep_remote` nor by `prune`.

        Raises:
            NoSuchRemote: There is none of that name.
            BadInput: It is a store.
            RemoteError: It does not answer.
        """
        from ckstore.remote.documents.claims import store_claims
        from ckstore.remote.documents.remote_info import read_info
        from ckstore.remote.remote_opener import open_remote

        remote = open_remote(self._context, name)
        read_info(remote.objects, remote.name)  # of a bucket that was emptied nothing is known
        return store_claims(self._context, remote)

    @api_call
    def release(self, name: str, store: str) -> StoreClaims:
        """End the claims of a store that is gone for good; what it relied on may be removed at the remote from then on.

        Args:
            name: Of the remote.
            store: The uuid of that store, as `claims` says it.

        Raises:
            NoSuchRemote: There is none of that name.
            BadInput: It is this store, whose claims end by themselves; or that store has no claim there.
            RemoteError: It does not answer.
        """
        from ckstore.remote.documents.claims import release_claims
        from ckstore.remote.remote_opener import open_remote

        self._context.check_writable()
        return release_claims(self._context, open_remote(self._context, name, writing=True), store)

    @api_call
    def take_over(self, name: str, run: str) -> None:
        """Let the mirror of this store bring a run to a remote from now on, where another store does so.

        The other store keeps what it saves from then on to itself, and says so; nothing that it brought is touched.

        Args:
            name: Of the remote.
            run: Which.

        Raises:
            NoSuchRemote: There is none of that name.
            BadInput: It is a store, or the name of the run is invalid.
            RemoteError: It does not answer.
        """
        from ckstore.remote.mirror.ownership import Ownership
        from ckstore.remote.remote_opener import open_remote

        self._context.check_writable()
        Ownership(self._context).own(open_remote(self._context, name, writing=True), check_run(run), 0, by_name=True)

    @api_call
    def convert(self, name: str, new: str, directory: str | os.PathLike[str]) -> TransferReport:
        """Copy a store that an earlier draft of ckstore pushed to into a remote, which takes its place here.

        What was evicted to the store is read from the remote then, and the remote is the mirror if the store was. The
        store itself is not changed. Stopped anywhere, it is called again.

        Args:
            name: Of the remote that is a store.
            new: What the remote is called; see `add`.
            directory: Where it is made; see `add`.

        Raises:
            NoSuchRemote: There is none of that name.
            BadInput: `name` is no store, or as in `add`.
            RemoteError: The directory cannot be used.
            CkstoreError: Some checkpoints could not be copied; those are still read from the store.
        """
        from ckstore.remote.remote_only.store_conversion import convert
        from ckstore.remote.remote_opener import OtherStore, open_remote, open_source

        self._context.check_writable()
        old = open_source(self._context, name)
        if not isinstance(old, OtherStore):
            raise BadInput(f"{name} is a remote already, at {entry_named(self._context.layout, name).target}")
        self._added(new, directory)
        return convert(self._context, old, open_remote(self._context, new, writing=True))

    def _refuse_taken(self, name: str, target: Target) -> None:
        taken = entries(self._context.layout).get(name)
        if taken is not None and taken.target != target:
            raise BadInput(f"{name} is the remote at {taken.target}", hint=f"ckstore remote rm {name}, or another name")

    def _keep(self, entry: RemoteEntry) -> None:
        config_file.edit(self._context.layout, MEMBER, lambda found: {**(found or {}), entry.name: entry.setting()})

    def _tried(self, name: str, target: Target, *, make: bool) -> RemoteEntry:
        """Return what is at a place, after trying it; `make`: a remote, if there is none."""
        if target.kind == "store":
            return RemoteEntry(name, target, self._store_at(target))
        if target.kind == "directory" and make:
            make_folder(target)
        from ckstore.remote.documents.remote_info import RemoteInfo, agreed_info, check_hash, read_info
        from ckstore.remote.service.service_probe import probe

        settings = self._context.settings
        abilities, now = probe(target)
        objects = open_objects(target, abilities)
        if make and abilities.writes and objects.head(keys.INFO) is None:
            created = text_of_time(now or datetime.now(UTC))
            objects.create(keys.INFO, RemoteInfo.of(settings, created).render())
        # Read back, also after it was written: of two clients that make one remote, both take the one that is there.
        is_shared = make and abilities.writes and abilities.cas == "no"
        info = agreed_info(objects, name) if is_shared else read_info(objects, name)
        check_hash(info, settings, name)
        return RemoteEntry(name, target, info.uuid, abilities)

    def _store_at(self, target: Target) -> str:
        from ckstore.ops.open.opening import open_context

        other, _ = open_context(target.path, readonly=True, recover=False, catalog_path=None)
        mine = self._context.settings
        if target.path.samefile(self._context.layout.path):
            raise BadInput(f"{target} is this store itself", hint="name another store")
        if other.settings.hash != mine.hash:
            msg = f"{target} names its blobs by {other.settings.hash}, and this store names them by {mine.hash}"
            raise BadInput(msg, hint="a store and its remote have the same hash")
        return other.settings.uuid
