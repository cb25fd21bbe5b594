"""The options ``--store`` and ``--json`` of every command, and the store and the output that result from them."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckstore.errors import CkstoreWarning
from ckstore.model.names import expanded
from ckstore.model.words import printable
from ckstore_cli._output import Output
from ckstore_cli._place import find_store

if TYPE_CHECKING:
    from ckstore.store import Store


@dataclass
class Frame:
    """The values of ``--store`` and ``--json``, which may be given before or after the name of a command."""

    store: Path | None = None
    as_json: bool = False

    def output(self) -> Output:
        """Return the output of the command."""
        return Output(as_json=self.as_json)

    def find_store(self) -> Path:
        """Return the path of the store that the command uses."""
        return find_store(self.store, os.environ, Path.cwd())

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the store for reading, and close it afterwards."""
        # Find the store before the library is imported, so that the most common error, a missing store, is reported
        # quickly.
        path = self.find_store()
        from ckstore.store import Store  # this import is slow

        with self._printing_warnings(), Store.open(path, readonly=True) as store:
            yield store

    @contextmanager
    def writing(self, *, recover: bool = True) -> Iterator[Store]:
        """Open the store for writing, or for reading if this user cannot write to it, and close it afterwards."""
        path = self.find_store()
        from ckstore.store import Store

        with self._printing_warnings(), Store.open(path, recover=recover) as store:
            yield store

    @contextmanager
    def saving(self) -> Iterator[Store]:
        """Open the store as `writing` does, and print logged warnings of saves like other warnings of a command."""
        import logging  # other commands do not need it

        warn = self.output().warning

        class WarningHandler(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                warn(printable(record.getMessage()))

        logger, handler = logging.getLogger("ckstore"), WarningHandler(logging.WARNING)
        logger.addHandler(handler)
        try:
            with self.writing() as store:
                yield store
        finally:
            logger.removeHandler(handler)

    @contextmanager
    def _printing_warnings(self) -> Iterator[None]:
        """Print warnings of the library like other warnings of a command, not as Python prints them."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", CkstoreWarning)
            warnings.filterwarnings(
                "ignore", "a power cut may lose checkpoints in this store"
            )  # init and doctor report it
            as_python = warnings.showwarning

            def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
                if issubclass(category, CkstoreWarning):
                    self.output().warning(printable(str(message)))
                else:
                    as_python(message, category, *where, **more)

            warnings.showwarning = show
            yield


pass_frame = click.make_pass_decorator(Frame, ensure=True)


def _keep_store(ctx: click.Context, _param: click.Parameter, value: Path | None) -> None:
    # Click calls this for the option before and for the option after the command. If one of them was not given, it must
    # not reset the value of the other.
    if value is not None:
        ctx.ensure_object(Frame).store = value


def _keep_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value:
        ctx.ensure_object(Frame).as_json = True


class UserPath(click.Path):
    """A path whose leading ``~`` is expanded before click checks the path. The library expands its own paths."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(expanded(value), param, ctx)


# An option after the command's name overrides one before it.
store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, readable=False),  # click would report an unreadable path without a hint
    expose_value=False,
    callback=_keep_store,
    help="Directory of the store. Default: CKSTORE_PATH, or the nearest store at or above the current directory.",
)
json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Print JSON, one document or one line per list item. Errors are also JSON.",
)


def framed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--store`` and ``--json`` to a command, and pass it the frame."""
    return store_option(json_option(pass_frame(function)))
