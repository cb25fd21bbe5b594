"""Find names of classes and modules that are no nouns, or mean two things: ``python -m tests.tools.names [--write]``.

A class or module is named by a noun of the domain or of computing, never by an adverb, a pronoun, a preposition or a
participle. ``names_baseline.txt`` lists the names that break the rules today. It only shrinks: ``--write`` removes the
names that no longer exist.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).parents[2]
BASELINE = "tests/tools/names_baseline.txt"
SOURCES = ("ckstore", "cli/ckstore_cli", "migrations/ckstore_migrations")
COMMANDS = "cli/ckstore_cli/commands/"
"""A command has the name of what it calls."""

_ADVERBS = """again ago ahead alone already also anew apart aside away back beforehand elsewhere else ever here how
instead maybe most never not now often once perhaps quite seldom so soon still then there therefore thus together
too twice very well when where why yet unchanged"""
_PRONOUNS = """all any anybody anyone both each either everybody everyone he her hers him his it its many mine most
neither nobody none nothing one other others our ours she some somebody someone such that their theirs them these they
this those us we what which who whoever whole whom whose you yours"""
_PREPOSITIONS = """about above across after against along among around as at before behind below beneath beside besides
between beyond by despite during except for from in inside into near of off on onto out outside over past per since
through throughout till to toward towards under until up upon via with within without"""
_PARTICIPLES = """begun bought bound broken brought built burnt caught chosen cut done drawn driven eaten fallen fed
found forgotten frozen given gone grown heard held hidden kept known laid lain left lent lost made meant met paid run
read rewritten ridden risen said seen sent shown shut sold spent spoken spread stolen stood stuck taken taught thought
told thrown understood worn won woven written"""
_VERBS = """be become bring come do give go have is join know let say see take tell"""
_NOUNS = """bed feed need seed speed shed string ring thing spring staging listing encoding decoding setting tiling
reading meeting finding mapping packing publishing pruning building ending cut read run ranking naming embedding padding
training opening parsing deepspeed lightning pretrained"""
"""Nouns that look like participles, and names of other projects."""

NO_NOUNS = frozenset(f"{_ADVERBS} {_PRONOUNS} {_PREPOSITIONS} {_PARTICIPLES} {_VERBS}".split())
NOUNS = frozenset(_NOUNS.split())
LEADING = frozenset(f"{_PREPOSITIONS} elsewhere here not there too".split())
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z][a-z0-9]*|[a-z0-9]+")


def is_no_noun(name: str) -> bool:
    """Whether the last word of a name is no noun, or its first one a preposition or a pronoun."""
    words = [word.lower() for word in _WORD.findall(name)]
    if not words:
        return False
    last = words[-1]
    looks_like_one = len(last) > 4 and last.endswith(("ed", "ing")) and last not in NOUNS
    return looks_like_one or (last in NO_NOUNS and last not in NOUNS) or (len(words) > 1 and words[0] in LEADING)


def modules(root: Path) -> Iterator[tuple[str, Path]]:
    """Give each module and package below the sources: its path in the project and its file."""
    for source in SOURCES:
        for path in sorted((root / source).rglob("*.py")):
            file = path.parent if path.name == "__init__.py" else path
            if path.name != "__main__.py" and file != root / source:
                yield file.relative_to(root).as_posix(), path


def broken(root: Path) -> set[str]:
    """Return a line for each name that breaks a rule.

    Errors say what happened, and may end in a participle. Two modules of one name mean the same if one imports the
    other: the value in ``model/``, and the file that keeps it. A module of the command line has the name of what it
    shows, and an integration that of the framework.
    """
    classes: dict[str, list[str]] = {}
    named: dict[str, list[str]] = {}
    found: set[str] = set()
    for file, path in modules(root):
        stem = Path(file).stem.lstrip("_")
        is_integration = file.startswith("ckstore/integrations/") and find_spec(stem) is not None
        if is_no_noun(stem) and not file.startswith(COMMANDS) and not is_integration:
            found.add(f"no noun: module {file}")
        tree = ast.parse(path.read_text(encoding="utf-8"))
        if path.name != "__init__.py" and not file.startswith("cli/") and stem not in _imported(tree):
            named.setdefault(stem, []).append(file)
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                if not node.name.startswith("_"):
                    classes.setdefault(node.name, []).append(file)
                if is_no_noun(node.name) and file != "ckstore/errors.py":
                    found.add(f"no noun: class {node.name} in {file}")
    for kind, places in (("class", classes), ("module", named)):
        found |= {f"{kind} twice: {name} in {', '.join(at)}" for name, at in places.items() if len(at) > 1}
    return found


def _imported(tree: ast.Module) -> set[str]:
    """Return the last parts of the names of modules of ckstore that a module may import."""
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    ours = [node for node in imports if (node.module or "").startswith("ckstore.")]
    return {name for node in ours for name in [(node.module or "").split(".")[-1], *(one.name for one in node.names)]}


def main(arguments: list[str]) -> int:
    """Compare the names with the baseline, or take out of it what is no more; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="take out of the baseline what is no more")
    options = parser.parse_args(arguments)
    path = ROOT / BASELINE
    found = broken(ROOT)
    listed = set(path.read_text(encoding="utf-8").splitlines()) if path.exists() else None
    if options.write:
        kept = found if listed is None else found & listed
        path.write_text("".join(f"{line}\n" for line in sorted(kept)), encoding="utf-8")
        return 0
    problems = [f"new: {line}" for line in sorted(found - (listed or set()))]
    problems += [f"no more, run with --write: {line}" for line in sorted((listed or set()) - found)]
    sys.stdout.writelines(f"{problem}\n" for problem in problems)
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
