"""The entry point, and the module of each command.

A command's module is imported only when the command runs or the help lists all commands, so ``ckstore log`` starts
about as fast as Python and click.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from ckstore_cli import _errors
from ckstore_cli._compat import override
from ckstore_cli._frame import Frame, json_option, store_option

COMMANDS = {
    "init": "store",
    "commit": "files",
    "import-history": "files",
    "checkout": "files",
    "export": "files",
    "publish": "files",
    "log": "look",
    "runs": "look",
    "events": "look",
    "show": "look",
    "ls": "look",
    "diff": "look",
    "du": "look",
    "why": "look",
    "watch": "look",
    "report": "look",
    "metrics": "look",
    "annotate": "names",
    "tag": "names",
    "pin": "names",
    "rename-run": "names",
    "delete": "space",
    "undo": "space",
    "prune": "space",
    "gc": "space",
    "compact": "space",
    "config": "store",
    "push": "remote",
    "pull": "remote",
    "evict": "remote",
    "clone": "remote",
    "remote": "remote",
    "verify": "store",
    "reindex": "store",
    "touch": "store",
    "migrate": "store",
    "doctor": "store",
    "savers": "store",
    "check-resume": "store",
    "demo": "store",
}
"""The commands in the order of the help, each with its package: `ckstore_cli.commands.<package>.<name>.<name>`."""

_GROUPS = {
    "init": "Create, save and export",
    "log": "Inspect",
    "annotate": "Names and notes",
    "delete": "Space and settings",
    "push": "Remotes",
    "verify": "Maintain",
}
"""The first command of each group in the help, and the title of the group."""

COMPLETE_VARIABLE = "_CKSTORE_COMPLETE"


class App(click.Group):
    """A group that imports a command on first use and reports every failure in the same way."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `COMMANDS`."""
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command, or return None if the name is unknown."""
        if cmd_name not in COMMANDS:
            return None
        module = import_module(f"ckstore_cli.commands.{COMMANDS[cmd_name]}.{cmd_name.replace('-', '_')}")
        command = getattr(module, cmd_name.replace("-", "_"))
        if not isinstance(command, click.Command):
            raise TypeError(f"{module.__name__}.{cmd_name} is not a command")
        return command

    @override
    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command. The error for an unknown name suggests similar names."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = _commands_like(name)
            suggestion = f", did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}{suggestion}", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups, each with its full first sentence, which click would shorten."""
        groups: list[tuple[str, list[tuple[str, str]]]] = []
        for name in COMMANDS:
            if name in _GROUPS:
                groups.append((_GROUPS[name], []))
            if (command := self.get_command(ctx, name)) is not None:
                groups[-1][1].append((name, command.get_short_help_str(200)))
        width = max(map(len, COMMANDS))
        for title, listed in groups:
            with formatter.section(title):
                formatter.write_dl([(name.ljust(width), text) for name, text in listed])

    @override
    def invoke(self, ctx: click.Context) -> Any:
        """Run the command and flush its output, so that a failed write changes the exit status."""
        try:
            try:
                result = super().invoke(ctx)
            except click.exceptions.Exit:
                sys.stdout.flush()
                raise
            # Do not leave this to the exit of the interpreter, because a full disk or a closed pipe must change the
            # exit status.
            sys.stdout.flush()
        except BrokenPipeError:
            _errors.drop_output()
            raise click.exceptions.Exit(_errors.BROKEN_PIPE) from None
        return result

    @override
    def main(self, args: Sequence[str] | None = None, *_ignored: Any, **extra: Any) -> NoReturn:
        """Run the command line and exit with its status. Without `args`, use the arguments of the process."""
        given = list(sys.argv[1:] if args is None else args)
        if COMPLETE_VARIABLE in os.environ:
            from ckstore_cli import _completion

            _completion.register()
        # Escape characters that the encoding of a stream lacks, so that printing them does not raise an error.
        for stream in (sys.stdout, sys.stderr):
            reconfigure = getattr(stream, "reconfigure", None)
            if reconfigure is not None:
                reconfigure(errors="backslashreplace")
        frame = Frame()
        # Help, errors and completion always name ``ckstore``. Without `standalone_mode`, click raises errors to this
        # method, which reports them and exits.
        extra |= {"obj": frame, "prog_name": "ckstore", "complete_var": COMPLETE_VARIABLE, "standalone_mode": False}
        try:
            result = super().main(given, **extra)
        except Exception as error:
            # A usage error is raised before click has read the options that follow it.
            as_json = frame.as_json or "--json" in given
            command = next((f"ckstore {word}" for word in given if word in COMMANDS), "ckstore")
            status = _errors.report(error, as_json=as_json, command=command)
            if status is None:
                raise  # a defect, which needs its traceback
            _errors.flush_or_drop_output()
            sys.exit(status)
        sys.exit(result if isinstance(result, int) else 0)


# Commands that are suggested only for very similar names, since a user who accepts the suggestion deletes checkpoints.
_DELETING = ("delete", "prune", "gc")
_OTHER_WORDS = {
    "rm": "delete",
    "remove": "delete",
    "untag": "tag -d",
    "unpin": "pin -d",
    "undo": "undo",
    "rename": "rename-run",
    "mv": "rename-run",
    "top": "watch",
    "status": "watch",
    "df": "du",
    "history": "log",
    "list": "log",
}
"""Commands of other programs, each with the command of ckstore that does the same."""
_VERY_LIKE = 0.8


def _commands_like(name: str) -> list[str]:
    """Return the commands similar to a misspelled name. A command that deletes must be very similar."""
    from difflib import SequenceMatcher, get_close_matches

    def is_very_like(one: str) -> bool:
        return name[0] == one[0] and SequenceMatcher(None, name, one).ratio() >= _VERY_LIKE

    if name in _OTHER_WORDS:
        return [_OTHER_WORDS[name]]
    near = get_close_matches(name, COMMANDS, n=2)
    return [one for one in near if one not in _DELETING or is_very_like(one)]


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if not value or ctx.resilient_parsing:
        return
    from ckstore.build_info import build_info

    click.echo(f"ckstore {build_info()}")
    ctx.exit()


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and the commit of the code, and exit.",
)
@store_option
@json_option
def app() -> None:
    """A durable, content-addressed store for training checkpoints.

    \b
    The store is --store, or CKSTORE_PATH. Without them, it is the nearest of the
    current directory and its parents that is a store or contains a .ckstore.
    A REF is STEP, latest, latest-valid, latest-healthy, best:METRIC[:min|max], TAG,
    or the first 6 or more digits of an id. Each may be preceded by RUN@.

    \b
    Example:
      ckstore init
      ckstore log -n 10
      ckstore show latest
    """


def main() -> NoReturn:
    """Run ``ckstore`` with the arguments of the process, and exit."""
    from ckstore.fs.dirfd_stat import open_closed_streams  # each command imports it anyway

    # Commands make few reference cycles, and a search for cycles takes a tenth of the time of `log`. So search rarely,
    # and not at exit.
    gc.set_threshold(100_000)
    # Do this before the store is opened, so that errors can be printed.
    open_closed_streams()
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - never closed
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
    try:
        app.main()
    except KeyboardInterrupt:  # before click started; afterwards click reports it
        sys.exit(_errors.INTERRUPTED)
    finally:
        gc.freeze()
