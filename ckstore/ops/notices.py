"""Notices for the user of an open store, each issued once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckstore.errors import CatalogUnavailable, CkstoreWarning
from ckstore.model.names import DEFAULT_RUN
from ckstore.model.settings.settings import StoreSettings
from ckstore.model.words import some_of
from ckstore.objects.layout import Layout

_CATALOG = "catalog"
_warned_left_out: set[str] = set()  # the omitted parts of states about which this process has warned
_warned_not_durable: set[str] = set()  # reasons why a store is not durable about which this process has warned


@dataclass
class Notices:
    """The problems of one open store, and the state that decides which notices are still to be issued."""

    # Key -> text, for example about incomplete checkpoints, unreadable annotations, or failed retention.
    problems: dict[str, str] = field(default_factory=dict)
    # Messages that were logged about saves of this store, as `interpreter.log_notes` keeps them.
    logged: set[str] = field(default_factory=set)
    run_was_open: bool = False  # whether the last ref named no run, so that it meant the only run or the run main
    run_guessed: str = ""  # the run of the last loaded checkpoint if the ref named no run; otherwise ""

    def tell_unavailable(self, error: CatalogUnavailable, *, is_private: bool) -> None:
        """Warn, once per open store, that the directories are read because the catalog cannot be used."""
        # Do not warn in three cases in which the user need not act: this user may not open the catalog, another process
        # is replacing the catalog, or a reader has no private catalog.
        if error.why == "unreadable" or _CATALOG in self.problems or (is_private and error.why == "missing"):
            return
        hint = f"; {error.hint}" if error.hint else ""
        self.problems[_CATALOG] = f"{error.message}. Reading the directories instead, which takes longer{hint}"
        warn(self.problems[_CATALOG])

    def tell_unnamed_run(self) -> None:
        """Warn, once per open store, if a save without a run uses another run than the load without a run."""
        # Without a run, a load uses the only run in the store, but a save uses the run main.
        run = self.run_guessed
        if run not in ("", DEFAULT_RUN):
            warn(
                f"this save names no run, so it is saved to the run {DEFAULT_RUN}, but the loaded checkpoint belongs "
                f"to the run {run}. To continue {run}, open the store with run={run!r}; "
                f"otherwise pass run={DEFAULT_RUN!r}"
            )
            # Warn only once, since a further save without a run is then the user's decision.
            self.run_guessed = ""


def tell_not_durable(reason: str, settings: StoreSettings) -> None:
    """Warn, once per store, user and machine, if a power cut may lose saved checkpoints."""
    if not reason or reason in _warned_not_durable:
        return
    # Record the reason before `note_once`, so that this process warns only once, even with a read-only home directory.
    _warned_not_durable.add(reason)
    from ckstore.fs.host.own_folders import note_once

    # Warn once for all processes, so that ranks and restarts of a job do not repeat the warning. The reason contains
    # the path, so a copy of the store with the same uuid has its own warning.
    told = settings.algorithm.digest(reason.encode("utf-8", "surrogatepass"))  # the path need not be UTF-8
    if note_once(settings.uuid, f"told-{told}"):
        warn(f"a power cut may lose checkpoints in this store: {reason}")


def tell_left_out(left_out: Iterable[str]) -> None:
    """Warn, once per process and name, about parts of a state that a checkpoint does not contain."""
    new = [one for one in left_out if one not in _warned_left_out]
    if new:
        _warned_left_out.update(new)
        warn(f"{some_of(new)}. Store what you need under separate keys")


def warn(message: str) -> None:
    """Issue a `CkstoreWarning` that points to the line outside ckstore from which the store was called."""
    import inspect  # rarely needed, and slow to import
    import warnings

    level, frame = 1, inspect.currentframe()
    # The warning must show the line in the user's script, and Python shows a warning once for each line.
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckstore":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CkstoreWarning, stacklevel=level)


def way_in(layout: Layout, path: str) -> str:
    """Return the command that gives the owner of a store access to a directory, given by its path in the store."""
    root = layout.root
    return f"as root: chown -R --reference={root} {root}/{path} && chmod -R u+rX {root}/{path}"
