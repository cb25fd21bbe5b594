"""What an open store has to say to its user, and what it has said: each warning comes once."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from ckstore.errors import CatalogUnavailable, CkstoreWarning
from ckstore.model.names import DEFAULT_RUN
from ckstore.model.settings.settings import StoreSettings
from ckstore.model.words import some_of
from ckstore.objects.layout import Layout

_CATALOG = "catalog"
_warned_left_out: set[str] = set()  # attributes of tensors that this process has warned of
_warned_not_durable: set[str] = set()  # why stores are not durable: what this process has warned of


@dataclass
class Notices:
    """What the user of one open store should know, and what was said already."""

    # Directories that only look like checkpoints, annotations that cannot be read, retention that failed.
    problems: dict[str, str] = field(default_factory=dict)
    # What was logged of saves of this store, as `interpreter.log_notes` keeps it.
    logged: set[str] = field(default_factory=set)
    run_was_open: bool = False  # the ref that was looked for last names no run, and means the only one, or main
    run_guessed: str = ""  # the run of what was loaded last, if its ref named none; "" else

    def tell_unavailable(self, error: CatalogUnavailable, *, is_private: bool) -> None:
        """Warn, once for an open store, that the directories are read because the catalog cannot be used."""
        # Not where this user cannot open it, or another process replaces it at this moment, or who only reads has none
        # of their own: then nothing is to be done.
        if error.why == "unreadable" or _CATALOG in self.problems or (is_private and error.why == "missing"):
            return
        hint = f"; {error.hint}" if error.hint else ""
        self.problems[_CATALOG] = f"{error.message}: reading the directories instead, which takes longer{hint}"
        warn(self.problems[_CATALOG])

    def tell_unnamed_run(self) -> None:
        """Warn, once for an open store, if a save that names no run leaves the run that a load without a name took."""
        # For a load that is the only run there is, for a save the run main. Only memory is looked at.
        run = self.run_guessed
        if run not in ("", DEFAULT_RUN):
            warn(
                f"this save names no run, so it goes to the run {DEFAULT_RUN}; what was loaded is of the run {run}: "
                f"to go on with that, open the store with run={run!r}; else give run={DEFAULT_RUN!r}"
            )
            # Said once; the next save of the same call site is the user's decision.
            self.run_guessed = ""


def tell_not_durable(reason: str, settings: StoreSettings) -> None:
    """Warn, once for each store, user and machine, if a power cut may lose what is saved in it."""
    if not reason or reason in _warned_not_durable:
        return
    # Before the file is looked at: where the home directory is read-only, this process still warns once.
    _warned_not_durable.add(reason)
    from ckstore.fs.host.own_folders import note_once

    # The reason names the path: a copy of the store elsewhere, with the same uuid, is warned of by itself.
    # Also across processes: each rank and each restart of a job would repeat it.
    told = settings.algorithm.digest(reason.encode("utf-8", "surrogatepass"))  # the path need not be UTF-8
    if note_once(settings.uuid, f"told-{told}"):
        warn(f"a power cut may lose what is saved here: {reason}")


def tell_left_out(attributes: Iterable[str]) -> None:
    """Warn, once in a process for each tensor, of attributes that a checkpoint does not keep: ``weight (tag)``."""
    new = [one for one in attributes if one not in _warned_left_out]
    if new:
        _warned_left_out.update(new)
        warn(f"attributes of tensors are not stored: {some_of(new)}; store them under keys of their own")


def warn(message: str) -> None:
    """Give a `CkstoreWarning` that points to the line, outside ckstore, from which the store was called."""
    import inspect  # seldom needed, and slow to import
    import warnings

    level, frame = 1, inspect.currentframe()
    # The user looks for the line in their script, and Python shows a warning once for each line it points to.
    while frame is not None and frame.f_globals.get("__name__", "").partition(".")[0] == "ckstore":
        level, frame = level + 1, frame.f_back
    warnings.warn(message, CkstoreWarning, stacklevel=level)


def way_in(layout: Layout, path: str) -> str:
    """Return what gives the owner of a store access to a directory in it, given by its path in the store."""
    root = layout.root
    return f"as root: chown -R --reference={root} {root}/{path}; chmod -R u+rX {root}/{path}"
