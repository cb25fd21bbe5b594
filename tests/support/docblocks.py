"""Find the fenced code blocks of a Markdown page, and run them in order as a reader would.

As a script (`python docblocks.py PAGE`) it runs the blocks of one page in the current directory,
needs nothing but the standard library, and exits with 1 and the block's place at the first that
fails:

- ``python`` blocks share one namespace;
- ``console`` blocks: lines after ``$ `` are run by bash (``> `` or a trailing backslash goes on),
  must exit 0, and what they print is compared with the lines below, if there are any (see
  `same_output`);
- ``bash`` and ``sh`` blocks are run whole. Directory and exported variables last until the next.

A comment above a block changes that: ``<!-- no-run: reason -->`` skips it, ``<!-- no-compare:
reason -->`` runs it but leaves its output aside, ``<!-- exit: N -->`` expects that status of its
last command.
"""

import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LANGUAGES = ("python", "console", "bash", "sh")

_FENCE = re.compile(r"^(?P<indent>\s*)(?P<fence>`{3,}|~{3,})\s*(?P<language>[\w-]*)")
_DIRECTIVE = re.compile(r"<!--\s*(?P<key>no-run|no-compare|exit)\s*:\s*(?P<value>.*?)\s*-->")
_COMMAND_TIMEOUT_S = 240.0


class BlockError(Exception):
    """A block of a page does not do what the page says."""


@dataclass(frozen=True)
class Block:
    """One fenced block.

    Attributes:
        language: The word behind the fence, in lower case; empty if there is none.
        line: Number of the block's first line inside the fence, from 1.
        text: What is inside, without the fence's indentation, ending in a newline.
        directives: What the comments above it say, by key.
    """

    language: str
    line: int
    text: str
    directives: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Command:
    """One command of a console block, and the lines printed below it."""

    text: str
    output: str


def blocks(page: str) -> list[Block]:
    """Return every fenced block of a page, whatever its language, in order."""
    found: list[Block] = []
    directives: dict[str, str] = {}
    lines = iter(enumerate(page.splitlines(), 1))
    for number, line in lines:
        opening = _FENCE.match(line)
        if opening is None:
            given = {m["key"]: m["value"] for m in _DIRECTIVE.finditer(line)}
            if given:
                directives |= given
            elif line.strip():
                directives = {}  # text in between: the comment was not about the next block
            continue
        indent, fence = opening["indent"], opening["fence"]
        inside: list[str] = []
        for _, following in lines:
            if re.fullmatch(rf"\s*{re.escape(fence)}{re.escape(fence[0])}*\s*", following):
                break
            inside.append(following.removeprefix(indent))
        language = opening["language"].lower()
        found.append(Block(language, number + 1, "\n".join([*inside, ""]), directives))
        directives = {}
    return found


def runnable(page: str) -> list[Block]:
    """Return the blocks that are to be run."""
    return [b for b in blocks(page) if b.language in LANGUAGES and "no-run" not in b.directives]


def commands(text: str) -> list[Command]:
    """Return the commands of a console block, each with the output shown below it."""
    found: list[tuple[list[str], list[str]]] = []
    goes_on = False
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append(([line[2:]], []))
        elif found and not found[-1][1] and (goes_on or line.startswith("> ")):
            found[-1][0].append(line.removeprefix("> "))
        elif found:
            found[-1][1].append(line)
        goes_on = line.endswith("\\")
    return [Command("\n".join(typed), "\n".join(shown).strip()) for typed, shown in found]


def same_output(shown: str, printed: str) -> bool:
    """Tell whether a program printed what a page shows.

    Numbers, ids and the width of columns differ from run to run and are not compared; ``...`` or
    ``…`` in the page stands for anything, also for many lines.
    """
    parts = re.split(r"\.\.\.|…", _without_values(shown))
    pattern = ".*".join(re.escape(part.strip()) for part in parts)
    return re.fullmatch(pattern, _without_values(printed).strip(), re.DOTALL) is not None


def _without_values(text: str) -> str:
    text = re.sub(r"\b(?=[0-9a-f]*\d)[0-9a-f]{6,}\b", "0", text)
    text = re.sub(r"\d+(?:[.,:]\d+)*(?: ?[KMGT]?i?B\b)?", "0", text)
    return re.sub(r"\s+", " ", text)


class Shell:
    """Runs commands one after another; directory and exported variables last."""

    def __init__(self, folder: Path) -> None:
        """Keep what lasts in `folder`."""
        self._state = folder / "state"
        self._state.write_text("", encoding="utf-8")

    def run(self, script: str) -> tuple[int, str]:
        """Run one command; return its exit status and all that it printed."""
        keep = f'{{ export -p; printf "cd %q\\n" "$PWD"; }} > {self._state}'
        whole = f"source {self._state}\ntrap '{keep}' EXIT\n{script}\n"
        done = subprocess.run(
            ["bash", "-c", whole],
            check=False,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_COMMAND_TIMEOUT_S,
        )
        return done.returncode, done.stdout


def run_page(name: str, page: str, folder: Path) -> int:
    """Run the blocks of a page in the current directory; return how many there were.

    Raises:
        BlockError: A block failed, or printed something else than the page shows.
    """
    namespace: dict[str, Any] = {"__name__": "__main__"}
    shell = Shell(folder)
    todo = runnable(page)
    for block in todo:
        where = f"{name}:{block.line}"
        if block.language == "python":
            _run_python(where, block, namespace)
        elif block.language == "console":
            _run_console(where, block, shell)
        else:
            _expect(where, block.text, shell.run(f"set -e\n{block.text}"), _status(block))
    return len(todo)


def _status(block: Block) -> int:
    return int(block.directives.get("exit", "0"))


def _expect(where: str, command: str, result: tuple[int, str], wanted: int) -> None:
    status, printed = result
    if status != wanted:
        message = f"{where}: exit status {status} instead of {wanted}: {command}\n{printed}"
        raise BlockError(message)


def _run_python(where: str, block: Block, namespace: dict[str, Any]) -> None:
    # Blank lines in front, so that a traceback tells the line of the page.
    source = "\n" * (block.line - 1) + block.text
    try:
        exec(compile(source, where.partition(":")[0], "exec"), namespace)  # noqa: S102
    except Exception as error:
        message = f"{where}: {type(error).__name__}: {error}"
        raise BlockError(message) from error


def _run_console(where: str, block: Block, shell: Shell) -> None:
    typed = commands(block.text)
    for command in typed:
        result = shell.run(command.text)
        _expect(where, command.text, result, _status(block) if command is typed[-1] else 0)
        compared = command.output and "no-compare" not in block.directives
        if compared and not same_output(command.output, result[1]):
            message = f"{where}: $ {command.text}\n--- the page shows\n{command.output}\n--- it printed\n{result[1]}"
            raise BlockError(message)


if __name__ == "__main__":
    _page = Path(sys.argv[1])
    with tempfile.TemporaryDirectory() as _folder:
        _count = run_page(_page.name, _page.read_text(encoding="utf-8"), Path(_folder))
    print(f"{_count} blocks ran")
