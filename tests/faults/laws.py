"""The law of the trace: what docs/protocol.md asks of every step, looked at on the weak filesystem of `weakfs`.

Each broken law is told once, with the call that broke it. The tree is that of one case: ``store`` in it is the store,
``place`` is where checkouts and exports go.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from tests.faults import survivors
from tests.faults.replay import Change
from tests.faults.straced import Call
from tests.faults.survivors import PUBLISHED, Path
from tests.faults.weakfs import Directory, Node, Opening, Tree

LAWS = {
    "D1": (
        "before another process can see a name of a file, the bytes of the file are made durable by an "
        "fsync on the descriptor that wrote them"
    ),
    "D2": "a failed fsync is not repeated on the same file",
    "D3": "a blob has its mode and time before its fsync",
    "N1": (
        "if a directory may have the name of a checkpoint after a power cut, the directory is whole, as defined below"
    ),
    "N2": "an acknowledged result has its name after a power cut, whatever other processes have made durable",
    "N3": "an acknowledged result has only one name",
    "N4": "the new parent of a rename is made durable before the old one",
    "T1": (
        "outside trash, a process unlinks only claims and temporary files in its own staging, and the "
        "exceptions that are listed below"
    ),
    "T2": "trash is made durable before anything below it is unlinked",
    "H1": "a mark of damage is removed only after the names in the checkpoint are durable",
    "K1": "a last link in trash is unlinked only after the kernel has granted a lease on the blob in trash",
    "L1": (
        "a process that moves a directory to trash has locked it, and a process that empties trash has "
        "locked trash and the entry"
    ),
    "L2": "a process that publishes, tags, annotates or marks a checkpoint has locked it",
    "L3": "a process that changes a small file has locked the store",
    "R1": "the checkpoints of a run that remain are made durable before another checkpoint of the run is dropped",
}

ACT = "act"
"""The act that is judged; those before it only make the store as it finds it."""

_TEMPORARY = re.compile(r"\..*|store\.json\.[0-9a-f]{12}")
_CATALOG = re.compile(r"catalog\.db.*|events\.jsonl.*")
_BLOB = re.compile(r"[a-z0-9]+-[0-9a-f]{32,}(\..*)?")
_IN_OWN_STAGING = re.compile(r"new-\d+|blobs/[a-z0-9]+-[0-9a-f]{32,}")
_TRIAL = re.compile(r"try-[0-9a-f]{12}")
_SMALL = {"config.json", "annotations.json"}
_NAMED_EXCEPTIONS = re.compile(
    r"refs/[^/]+ | pins/[^/]+\.json | reserve/space-\d | catalog\.db.* | checkpoints/[^/]+/[0-9a-f.]+/damaged\.json",
    re.VERBOSE,
)


class Laws:
    """Looks at a replay.

    Attributes:
        broken: What was wrong, one sentence each.
        strangers: The acts before this one belong to others, who died before they fsynced a directory that is shared.
    """

    def __init__(self, tree: Tree, *, strangers: bool) -> None:
        self.broken: list[str] = []
        self.strangers = strangers
        self._tree = tree
        self._told: set[tuple[str, str]] = set()
        self._dropped: set[str] = set()
        self._moved: list[Directory] = []
        self._failed = False

    def _tell(self, law: str, what: str, call: Call | None) -> None:
        if (law, what) in self._told:
            return
        self._told.add((law, what))  # what was so before the act is not its fault
        if self._tree.act == ACT:
            self.broken.append(f"{law} ({LAWS[law]}): {what}" + (f", at {call}" if call else ""))

    # ------------------------------------------------------------------------------------ what is watched

    def covers(self, node: Node) -> bool:
        """Return whether an fsync counts: those of shared directories do not, where strangers made them."""
        if not (self.strangers and self._tree.act != ACT and isinstance(node, Directory)):
            return True
        path = self._tree.path_of(node)
        return not (len(path) == 2 or (len(path) == 3 and path[1] in ("checkpoints", "blobs")))

    def syncing(self, opening: Opening) -> None:
        """D2."""
        if opening.node.lost:
            self._tell("D2", f"a second fsync of {'/'.join(opening.path)}", None)

    def before(self, change: Change, call: Call) -> None:
        """Look at what is about to happen."""
        if self._tree.act != ACT:
            return
        if change.what == "unlink" and change.source:
            self._unlink(change.node, (*self._tree.path_of(change.source[0]), change.source[1]), call)
        if change.target is not None:
            target = (*self._tree.path_of(change.target[0]), change.target[1])
            source = (*self._tree.path_of(change.source[0]), change.source[1]) if change.source else ()
            self._name(change, source, target, call)

    def after(self, call: Call) -> None:
        """N1, and N4 after an fsync."""
        for path, directory in survivors.checkpoints(self._tree):
            problems = list(survivors.lacking(directory)) if directory.required is None else []
            self._require(directory)
            for problem in problems or survivors.lacking(directory):
                self._tell("N1", f"{'/'.join(path)}: {problem}", call)
        if call.name == "fsync" and not self._failed:  # a drop whose fsync failed is not acknowledged
            self._nowhere(call)

    def _require(self, checkpoint: Directory) -> None:
        """Note the names in a checkpoint that its document may name: all that were there when it was put there."""
        document, blobs = checkpoint.now("manifest.json"), checkpoint.now("blobs")
        there = frozenset(name for name, _ in blobs.names()) if isinstance(blobs, Directory) else frozenset()
        if checkpoint.required is None:
            checkpoint.required = there
        elif document is not checkpoint.document:  # the one before may come back
            checkpoint.required |= there
            checkpoint.rewritten = True
        elif checkpoint.rewritten and checkpoint.is_certain("manifest.json"):
            checkpoint.required &= there  # what goes now only the one before named
        checkpoint.document = document

    def marked(self, said: Any) -> None:
        """Look at what the program says that it has done."""
        self._failed = self._failed or "failed_sync" in said
        for path in said.get("durable", ()):
            self._acknowledged(tuple(path.split("/")))
        for path in said.get("gone", ()):
            *above, name = path.split("/")
            parent = self._tree.lookup(*above)
            if isinstance(parent, Directory) and parent.survivors(name) != [None]:
                self._tell("N2", f"{path} is acknowledged as gone and may come back", None)

    # --------------------------------------------------------------------------------- names that appear

    def _name(self, change: Change, source: Path, target: Path, call: Call) -> None:
        node = change.node
        where = "/".join(target)
        if node.kind == "file" and _is_visible(target):
            if change.what == "make":
                self._tell("D1", f"{where} is made where others see it", call)
            elif not node.is_durable:
                self._tell("D1", f"{where} names bytes that are not durable", call)
        if node.kind == "file" and target[:2] == ("store", "blobs") and node.described and node.act == self._tree.act:
            self._tell("D3", f"{where} was given its mode or time after its fsync", call)
        if isinstance(node, Directory) and change.what == "rename":
            self._move(node, source, target, call)
        if target[:2] == ("store", "refs") and len(target) > 2 and not target[-1].startswith("."):
            named = posixpath.normpath(node.text).split("/")[1:]  # its text goes there and back, and there again
            self._locked(self._tree.lookup("store", *named), f"what {where} names", "L2", call)
        if target[:1] == ("store",) and change.what == "rename":
            if target[-1] in _SMALL or target[1:2] == ("pins",):
                self._locked(self._tree.lookup("store"), "the store", "L3", call, kinds={"LOCK_EX"})
            if target[-1] in ("annotations.json", "damaged.json") and change.target:
                self._locked(change.target[0], where, "L2", call)

    def _move(self, node: Directory, source: Path, target: Path, call: Call) -> None:
        if target[0] == "place":
            for problem in survivors.uncertain(node, "/".join(source)):
                self._tell("N1", problem, call)
        if PUBLISHED in (source[:2], target[:2]):
            self._moved.append(node)
        if target[:2] == ("store", "trash"):
            own = source[:2] == ("store", "staging") and node.act == self._tree.act
            kinds = {"LOCK_EX", "LOCK_SH"} if own else {"LOCK_EX"}
            self._locked(node, "/".join(source), "L1", call, kinds=kinds)
            if source[:2] == PUBLISHED:
                self._drop(source, call)
        if target[:2] == PUBLISHED:
            self._locked(node, "/".join(source), "L2", call)

    def _drop(self, source: Path, call: Call) -> None:
        """R1: the checkpoints that stay are durable by an fsync of the process itself."""
        self._dropped.add("/".join(source))
        run = self._tree.lookup(*source[:-1])
        checkpoints = self._tree.lookup(*source[:-2])
        if not isinstance(run, Directory) or not isinstance(checkpoints, Directory):
            return
        stays = [name for name, _ in run.names() if "/".join((*source[:-1], name)) not in self._dropped]
        doubtful = [name for name in stays if not run.is_certain(name)]
        staging = self._tree.lookup("store", "staging")
        past = staging.past.values() if isinstance(staging, Directory) else ()
        doubtful += [name for name in stays if any(run.now(name) in nodes for nodes in past)]
        if doubtful or (stays and not checkpoints.is_certain(source[-2])):
            self._tell(
                "R1",
                f"{'/'.join(source)} is dropped while {doubtful or source[-2]} may vanish, or lie in staging",
                call,
            )

    def _locked(
        self, node: Node | None, what: str, law: str, call: Call, kinds: frozenset[str] | set[str] = frozenset()
    ) -> None:
        if not self._tree.locks_on(node) & (kinds or {"LOCK_SH", "LOCK_EX"}):
            self._tell(law, f"{what} is not locked ({' or '.join(sorted(kinds)) or 'in any way'})", call)

    # ------------------------------------------------------------------------------------ names that go

    def _unlink(self, node: Node, path: Path, call: Call) -> None:
        where = "/".join(path)
        if isinstance(node, Directory) and self._tree.lookup("store", "store.json") is None:
            return  # a store that could not be made is taken away again; only empty directories can be
        if path[:2] == PUBLISHED and path[-1] == "damaged.json":
            blobs = self._tree.lookup(*path[:-1], "blobs")
            if isinstance(blobs, Directory) and not all(blobs.is_certain(name) for name in blobs.past):
                self._tell("H1", f"{where} is unlinked", call)
        if path[:2] == ("store", "trash") and path[2:]:
            self._unlink_in_trash(node, path, call)
        elif path[:2] == ("store", "staging") and path[2:]:
            own = self._tree.lookup(*path[:3])
            is_named = _TRIAL.fullmatch(path[2]) or _IN_OWN_STAGING.fullmatch("/".join(path[3:]))
            is_own = own is not None and own.act == self._tree.act and is_named
            if not is_own and not _TEMPORARY.fullmatch(path[2]):
                self._tell("T1", f"{where} is unlinked", call)
        elif path[:1] == ("store",) and not (
            _TEMPORARY.fullmatch(path[-1]) or _NAMED_EXCEPTIONS.fullmatch("/".join(path[1:]))
        ):
            self._tell("T1", f"{where} is unlinked", call)

    def _unlink_in_trash(self, node: Node, path: Path, call: Call) -> None:
        where, trash = "/".join(path), self._tree.lookup("store", "trash")
        if _TEMPORARY.fullmatch(path[2]):
            return
        if not isinstance(trash, Directory) or not trash.is_certain(path[2]):
            self._tell("T2", f"{where} is unlinked, and trash/{path[2]} may be elsewhere after a power cut", call)
        self._locked(trash, "trash", "L1", call, kinds={"LOCK_EX"})
        top = self._tree.lookup(*path[:3])
        if isinstance(top, Directory):
            self._locked(top, "/".join(path[:3]), "L1", call, kinds={"LOCK_EX"})
        leased = any(act == self._tree.act and there.startswith("store/trash/") for act, there in node.leased)
        if node.kind == "file" and node.links == 1 and _BLOB.fullmatch(path[-1]) and not leased:
            self._tell("K1", f"{where} is the last name of a blob", call)

    # ----------------------------------------------------------------------- what a power cut may leave

    def _nowhere(self, call: Call) -> None:
        """N4: a checkpoint that was moved has a name that it may not lose, or still the one that it had before."""
        directories = list(survivors.directories(self._tree.root))
        for node in self._moved:
            if node.place is None or node.place[0].is_certain(node.place[1]) or not node.links:
                continue
            known_to = [directory for directory in directories for past in directory.past.values() if node in past]
            if known_to == [node.place[0]]:
                self._tell("N4", f"{'/'.join(self._tree.path_of(node))} may have no name at all", call)

    def _acknowledged(self, path: Path) -> None:
        """N2 and N3: every name on the way is certain, and what it gives lies nowhere else."""
        at: Directory = self._tree.root
        for depth, name in enumerate(path):
            node = at.now(name)
            if node is None or ((depth or name == "store") and not at.is_certain(name)):
                self._tell(
                    "N2", f"{'/'.join(path)} is acknowledged, and {'/'.join(path[: depth + 1])} may vanish", None
                )
                return
            if not isinstance(node, Directory):
                if not node.is_durable:
                    self._tell("N2", f"{'/'.join(path)} is acknowledged, and its bytes are not durable", None)
                return
            at = node
        if path[0] == "place":
            for problem in survivors.uncertain(at, "/".join(path)):
                self._tell("N2", problem, None)
        for top in ("staging", "trash"):
            folder = self._tree.lookup("store", top)
            if isinstance(folder, Directory):
                for name in [name for name in folder.past if at in folder.survivors(name)]:
                    self._tell("N3", f"{'/'.join(path)} is acknowledged, and may also be {top}/{name}", None)


def _is_visible(path: Path) -> bool:
    """Whether others find a file by this name."""
    if path[0] == "place":
        return len(path) > 1 and not path[1].startswith(".")
    if path[0] != "store" or any(_TEMPORARY.fullmatch(part) for part in path) or _CATALOG.fullmatch(path[-1]):
        return False
    return len(path) == 2 or path[1] in ("blobs", "checkpoints", "refs", "pins")
