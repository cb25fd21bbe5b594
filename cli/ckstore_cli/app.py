"""The entry point, and which command is in which module.

A command's module is imported when the command runs (or the help lists them all), so that
``ckstore log`` starts as fast as Python and click do.
"""

from __future__ import annotations

import gc
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any, NoReturn

import click

from ckstore.version import __version__
from ckstore_cli import _errors
from ckstore_cli._compat import override
from ckstore_cli._frame import Frame, json_option, store_option

COMMANDS = {
    "init": "store",
    "commit": "files",
    "import-history": "files",
    "checkout": "files",
    "export": "files",
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
"""The commands in the order of the help, and the room of each: `ckstore_cli.commands.<room>.<name>.<name>`."""

_GROUPS = {
    "init": "Files in and out",
    "log": "What is there",
    "annotate": "Names and notes",
    "delete": "Space",
    "push": "Other places",
    "verify": "Care",
}
"""The first command of each group in the help, and the title of the group."""

COMPLETE_VARIABLE = "_CKSTORE_COMPLETE"


class App(click.Group):
    """A group that imports a command when it is asked for, and ends every failure in one way."""

    @override
    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names in the order of `COMMANDS`."""
        return list(COMMANDS)

    @override
    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return a command; None if there is none of that name."""
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
        """Find the command; an unknown one is refused with those that look like it."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-") and not ctx.resilient_parsing:
            near = _commands_like(name)
            meant = f", did you mean {' or '.join(near)}?" if near else ""
            raise click.UsageError(f"there is no command {name!r}{meant}", ctx)
        return super().resolve_command(ctx, args)

    @override
    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands in groups, each with its whole first sentence, which click would cut."""
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
        """Run the command and write out what it printed, so that a failure of that is seen too."""
        try:
            result = super().invoke(ctx)
            # Here, not at the end of Python: a full disk or a closed pipe must change the exit status.
            sys.stdout.flush()
        except BrokenPipeError:
            _errors.drop_output()
            raise click.exceptions.Exit(_errors.BROKEN_PIPE) from None
        return result

    @override
    def main(self, args: Sequence[str] | None = None, *_ignored: Any, **extra: Any) -> NoReturn:
        """Run the command line and exit with its status; without `args` those of the process."""
        given = list(sys.argv[1:] if args is None else args)
        if COMPLETE_VARIABLE in os.environ:
            from ckstore_cli import _completion

            _completion.register()
        for stream in (sys.stdout, sys.stderr):
            _never_fail_to_encode(stream)
        frame = Frame()
        # Help, errors and completion always say ``ckstore``, and this always exits.
        extra |= {"obj": frame, "prog_name": "ckstore", "complete_var": COMPLETE_VARIABLE, "standalone_mode": False}
        try:
            result = super().main(given, **extra)
        except Exception as error:
            # A usage error comes before click has read the options behind it.
            as_json = frame.as_json or "--json" in given
            command = next((f"ckstore {word}" for word in given if word in COMMANDS), "ckstore")
            status = _errors.report(error, as_json=as_json, command=command)
            if status is None:
                raise  # a defect: the traceback is what helps
            sys.exit(status)
        sys.exit(result if isinstance(result, int) else 0)


# "did you mean delete" for a typo is one Enter away from deleting checkpoints.
_DELETING = ("delete", "prune", "gc")
_OTHER_WORDS = {
    "rm": "delete",
    "remove": "delete",
    "untag": "tag -d",
    "unpin": "pin -d",
    "undelete": "undo",
    "rename": "rename-run",
    "mv": "rename-run",
    "top": "watch",
    "status": "watch",
    "df": "du",
    "history": "log",
    "list": "log",
}
"""Words of other programs, and what they mean here."""
_VERY_LIKE = 0.8


def _commands_like(name: str) -> list[str]:
    """Return the commands that a misspelled one may mean, and one that deletes only where it is very like it."""
    from difflib import SequenceMatcher, get_close_matches

    def is_very_like(one: str) -> bool:
        return name[0] == one[0] and SequenceMatcher(None, name, one).ratio() >= _VERY_LIKE

    if name in _OTHER_WORDS:
        return [_OTHER_WORDS[name]]
    near = get_close_matches(name, COMMANDS, n=2)
    return [one for one in near if one not in _DELETING or is_very_like(one)]


def _never_fail_to_encode(stream: Any) -> None:
    """Print what the terminal's encoding lacks as an escape: a message must not break a listing."""
    reconfigure = getattr(stream, "reconfigure", None)
    if reconfigure is not None:
        reconfigure(errors="backslashreplace")


def _print_version(ctx: click.Context, _param: click.Parameter, value: bool) -> None:  # noqa: FBT001 - click's
    if not value or ctx.resilient_parsing:
        return
    click.echo(f"ckstore {__version__}")
    ctx.exit()


@click.group(cls=App, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_print_version,
    help="Print the version and exit.",
)
@store_option
@json_option
def app() -> None:
    """A durable, content-addressed store for training checkpoints.

    \b
    The store is --store, else CKSTORE_PATH, else the nearest of the current directory
    and its parents that is a store or has a .ckstore.
    A REF is one of: STEP, latest, latest-valid, latest-healthy, best:METRIC[:min|max], TAG,
    the first 6 or more digits of an id; each may begin with RUN@.

    \b
    Example:
      ckstore init
      ckstore log -n 10
      ckstore show latest
    """


def _open_closed_streams() -> None:
    """As a store does when it is opened, and before: here is said what it raises."""
    from ckstore.fs.dirfd_stat import open_closed_streams  # as each command does

    open_closed_streams()
    sys.stdout = sys.stdout or open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - as long as the process
    sys.stderr = sys.stderr or open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115


def main() -> NoReturn:
    """Run ``ckstore`` with the arguments of the process, and exit."""
    # Looking for cycles, of which there are few here, takes a tenth of the time of `log`: do it
    # seldom, and not once more while the interpreter ends.
    gc.set_threshold(100_000)
    _open_closed_streams()
    try:
        app.main()
    except KeyboardInterrupt:  # before click began, which else says so
        sys.exit(_errors.INTERRUPTED)
    finally:
        gc.freeze()
