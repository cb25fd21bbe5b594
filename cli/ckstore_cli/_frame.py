"""What every command gets: ``--store`` and ``--json``, and from them the store and the output."""

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
    """The options ``--store`` and ``--json``, which stand before or after the name of a command."""

    store: Path | None = None
    as_json: bool = False

    def output(self) -> Output:
        """Return what to print with."""
        return Output(as_json=self.as_json)

    def find_store(self) -> Path:
        """Return the path of the store that is meant."""
        return find_store(self.store, os.environ, Path.cwd())

    @contextmanager
    def reading(self) -> Iterator[Store]:
        """Open the store for reading, and close it afterwards."""
        # Before the library is imported: the usual mistake, no store here, is answered at once.
        path = self.find_store()
        from ckstore.store import Store  # after it is clear that there is one: this takes longer

        with self._printing_warnings(), Store.open(path, readonly=True) as store:
            yield store

    @contextmanager
    def writing(self, *, recover: bool = True) -> Iterator[Store]:
        """Open the store for writing, and close it afterwards; for reading where this user cannot write."""
        path = self.find_store()
        from ckstore.store import Store

        with self._printing_warnings(), Store.open(path, recover=recover) as store:
            yield store

    @contextmanager
    def saving(self) -> Iterator[Store]:
        """As `writing`, and print what saves log as the command line does, not as `logging` does."""
        import logging  # other commands need none

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
        """Print what the library warns of as the command line does, not as Python does."""
        with warnings.catch_warnings():
            warnings.simplefilter("always", CkstoreWarning)
            warnings.filterwarnings("ignore", "a power cut may lose what is saved here")  # init and doctor say it
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
    # The option exists before and after the command: only the place where it was given counts.
    if value is not None:
        ctx.ensure_object(Frame).store = value


def _keep_json(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if value:
        ctx.ensure_object(Frame).as_json = True


class UserPath(click.Path):
    """A path whose leading ``~`` is expanded before click looks at it; what only goes into the library is, there."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return super().convert(expanded(value), param, ctx)


# What stands after the command's name wins over what stands before it.
store_option = click.option(
    "--store",
    type=click.Path(path_type=Path, readable=False),  # else click says it, without a next step
    expose_value=False,
    callback=_keep_store,
    help="The store. Default: CKSTORE_PATH, else the current directory or a parent, or its .ckstore.",
)
json_option = click.option(
    "--json",
    is_flag=True,
    expose_value=False,
    callback=_keep_json,
    help="Print JSON: one document, or one line per item of a list; errors too.",
)


def framed(function: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command its frame, with ``--store`` and ``--json``."""
    return store_option(json_option(pass_frame(function)))
