"""The report of a failure: ``error:`` and ``hint:`` on stderr, and an exit status.

Each error class in `ckstore.errors` has an exit status. This module has the other exit statuses of the process.
docs/reference/exit-statuses.md lists all exit statuses.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import sys

import click

from ckstore.errors import CkstoreError
from ckstore.model.words import printable
from ckstore_cli._output import JSON_VERSION, colored, style

DONE = 0
FAILED = 1
USAGE = 2
NO_SPACE = 6
INTERRUPTED = 130
BROKEN_PIPE = 141

EXIT_STATUSES = {
    DONE: "done",
    FAILED: "failed",
    USAGE: "wrong usage",
    3: "damage found",
    4: "no such store, checkpoint or ref, or several fit",
    5: "in use or locked by another process",
    NO_SPACE: "not enough space",
    INTERRUPTED: "interrupted (Ctrl-C)",
    BROKEN_PIPE: "the program that read the output stopped reading",
}
"""Every status with which ``ckstore`` exits. A status above 128 is 128 plus the number of a signal, as in a shell."""


_ARGUMENT = re.compile(
    r"\b(add|allow_incomplete|attempt|file|format|if_exists|link|max_shard_bytes|only|rank|run|select|step"
    r"|strip_prefix|timeout|timeout_s)=(?:'([^']*)'|True\b)?"
)
"""A Python argument with a corresponding option, such as ``step=``, ``format='torch'``, ``allow_incomplete=True``."""
_OPTIONS = {"max_shard_bytes": "max-shard", "timeout_s": "timeout"}
"""The options whose names differ from those of the arguments."""
_COMMANDS = {
    "Store.init(path)": "ckstore init",
    "store.pins()": "ckstore pin",
    "store.open_checkpoint(ref).files()": "ckstore ls REF",
    "export_safetensors(ref, destination, select=name)": "ckstore export REF DEST --select NAME",
    "readonly=True still reads it": "commands that only read still work",
    "with hash='blake3'": "made by ckstore init --hash blake3",
    "add=[path]": "--add PATH",
}
"""Python code in hints, and its equivalent in a shell. If a hint needs more changes, its error has a `command_hint`."""


def report(error: Exception, *, as_json: bool, command: str = "ckstore") -> int | None:
    """Print `error` on stderr and return the exit status, or return None for an unexpected exception."""
    # If click does not know the command of a usage error, the hint names the help of `command`.
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        click.echo(error.format_message(), err=True)
        return USAGE
    described = _tell(error, command)
    if described is None:
        return None
    name, message, hint, status = described
    if as_json:
        text = json.dumps({"v": JSON_VERSION, "error": name, "message": message, "hint": hint, "exit_status": status})
    else:
        on = colored(sys.stderr)
        text = f"{style('error:', 'red', on=on)} {printable(message, keep_lines=True)}"
        if hint:
            text += f"\n{style('hint:', 'cyan', on=on)} {printable(hint, keep_lines=True)}"
    # If the reader of stderr has ended, only the exit status reports the failure.
    with contextlib.suppress(BrokenPipeError):
        sys.stderr.write(text + "\n")
        sys.stderr.flush()
    return status


def _tell(error: Exception, command: str) -> tuple[str, str, str, int] | None:
    """Return the name, message, hint and exit status of an error, or None for an unexpected exception."""
    name = type(error).__name__
    if isinstance(error, CkstoreError):
        return name, error.message, error.command_hint or for_the_shell(error.hint), error.exit_status
    if isinstance(error, click.Abort):
        # click raises `Abort` both for Ctrl-C and for the answer "no".
        if isinstance(error.__cause__, KeyboardInterrupt):
            return "Interrupted", "interrupted", "", INTERRUPTED
        return "Aborted", "stopped: the answer was not yes", "", FAILED
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else command
        return "UsageError", error.format_message(), _how_to_name_a_run(error, path) or f"see {path} --help", USAGE
    if isinstance(error, click.ClickException):
        return name, error.format_message(), "", error.exit_code
    if isinstance(error, OSError):
        return _tell_os_error(error)
    return None


_REFS = {"ref", "refs", "before"}


def _how_to_name_a_run(error: click.UsageError, path: str) -> str:
    """Return a hint if a run was given in the wrong way for the command, otherwise an empty string."""
    params = [] if error.ctx is None else error.ctx.command.params
    arguments = {param.name for param in params if isinstance(param, click.Argument)}
    if isinstance(error, click.NoSuchOption) and error.option_name == "--run":
        if arguments & _REFS:
            return "write the run into the REF: RUN@latest, or RUN@STEP"
        return f"write the run without an option: {path} RUN" if "old" in arguments else f"{path} is not about one run"
    if not arguments and any("--run" in param.opts for param in params) and error.message.startswith("Got unexpected"):
        return f"name a run with --run: {path} --run RUN"
    return ""


def for_the_shell(hint: str) -> str:
    """Return the hint with options in place of Python arguments and commands in place of calls."""
    for python, shell in _COMMANDS.items():
        hint = hint.replace(python, shell)
    return _ARGUMENT.sub(_option, hint)


def _option(found: re.Match[str]) -> str:
    name = _OPTIONS.get(found[1], found[1].replace("_", "-"))
    return f"--{name} {found[2]}" if found[2] else f"--{name}"


def _tell_os_error(error: OSError) -> tuple[str, str, str, int]:
    problem = error.strerror or str(error)
    if error.filename is not None:
        where = os.fsdecode(error.filename) if isinstance(error.filename, bytes | str) else ""
        problem = f"{where or error.filename}: {problem}"
    # Scripts free space on status 6, so a full disk and an exceeded quota have the same status.
    full = error.errno in (errno.ENOSPC, errno.EDQUOT)
    hint = {
        errno.EACCES: "the store belongs to another user, or its permissions were changed",
        errno.EROFS: "the filesystem is mounted read-only",
        errno.EIO: "the disk or the network behind it failed; dmesg may say more",
        errno.ESTALE: "the network filesystem lost the file; is it still mounted?",
        errno.EMFILE: "raise the limit of open files: ulimit -n",
    }.get(error.errno or 0, "")
    return "OSError", problem, hint, NO_SPACE if full else FAILED


def flush_or_drop_output() -> None:
    """Flush stdout, or discard its buffer if that fails, so that Python's flush at exit keeps the exit status."""
    try:
        sys.stdout.flush()
    except (OSError, ValueError):
        drop_output()


def drop_output() -> None:
    """Discard buffered output, so that Python's flush of stdout at exit reports no error."""
    with contextlib.suppress(OSError, ValueError):  # a replaced stdout has no descriptor
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            # At exit Python flushes again, and would print a traceback for the closed pipe.
            os.dup2(nowhere, sys.stdout.fileno())
        finally:
            os.close(nowhere)
