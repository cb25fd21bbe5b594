"""The reference holds every public name, and all that a public name takes, returns or raises."""

from __future__ import annotations

import pkgutil
import re
import zlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import ckstore
from ckstore import provisional
from tests.docs.conftest import ROOT

if TYPE_CHECKING:
    import griffe

PUBLIC = [f"ckstore.{name}" for name in ckstore.__all__ if name != "__version__"]
PUBLIC += [f"ckstore.provisional.{name}" for name in provisional.__all__]
# Methods of values that only the library calls; the site leaves them out as well (`filters` in docs/site/mkdocs.yml).
INSIDE = ("algorithm", "from_json", "key", "of", "of_plan", "render", "to_json", "with_annotations")


@pytest.fixture(scope="module")
def anchors(site: Path) -> set[str]:
    """Return the names that the reference documents, from the inventory that other sites link by."""
    lines = (site / "objects.inv").read_bytes().split(b"\n", 4)
    return {line.partition(" ")[0] for line in zlib.decompress(lines[4]).decode().splitlines()}


@pytest.fixture(scope="module")
def sources(site: Path) -> griffe.Module:
    """Return the library as griffe reads it; where the site could be built, griffe is there."""
    import griffe

    read = griffe.load("ckstore", search_paths=[str(ROOT)])
    assert isinstance(read, griffe.Module)
    return read


@pytest.mark.parametrize("name", PUBLIC)
def test_every_public_name_and_its_methods_are_in_the_reference(name: str, anchors: set[str]) -> None:
    value = pkgutil.resolve_name(name)
    members = [
        member
        for member, attribute in (vars(value).items() if isinstance(value, type) else ())
        if not member.startswith("_") and member not in INSIDE and (callable(attribute) or is_property(attribute))
    ]

    assert {name, *(f"{name}.{member}" for member in members)} <= anchors


def is_property(attribute: object) -> bool:
    return isinstance(attribute, (property, classmethod, staticmethod))


def test_what_public_names_take_and_return_is_in_the_reference(sources: griffe.Module, anchors: set[str]) -> None:
    todo = [*PUBLIC]
    met: set[str] = set()
    missing = []
    while todo:
        thing = found(sources, todo.pop())
        if thing.canonical_path in met:
            continue
        met.add(thing.canonical_path)
        if thing.canonical_path not in anchors:
            missing.append(thing.canonical_path)
        todo += [path for path in mentioned(thing) if path.startswith("ckstore.")]

    assert len(met) > 50
    assert missing == []


def found(sources: griffe.Module, path: str) -> Any:
    thing: Any = sources[path.removeprefix("ckstore.")]
    return thing.final_target if thing.is_alias else thing


def mentioned(thing: Any) -> list[str]:
    """Return the paths of the names in the annotations of a class, a function or an alias of a type."""
    if thing.is_attribute:
        return names_in(thing.value)
    if thing.is_function:
        return names_in(thing.returns, *(parameter.annotation for parameter in thing.parameters))
    members = [
        member
        for name, member in thing.members.items()
        if not member.is_alias and name not in INSIDE and (not name.startswith("_") or name == "__getitem__")
    ]
    inside = [path for member in members if member.is_function for path in mentioned(member)]
    return [*inside, *names_in(*(member.annotation for member in members if member.is_attribute))]


def names_in(*expressions: Any) -> list[str]:
    import griffe

    given = [expression for expression in expressions if isinstance(expression, griffe.Expr)]
    parts = [part for expression in given for part in expression.iterate(flat=True)]
    return [part.canonical_path for part in parts if isinstance(part, griffe.ExprName)]


def test_every_error_is_in_the_reference(sources: griffe.Module, anchors: set[str]) -> None:
    errors = [
        thing.canonical_path
        for module in modules(sources)
        for thing in module.classes.values()
        if not thing.is_alias and "ckstore.errors.CkstoreError" in [base.canonical_path for base in thing.mro()]
    ]

    assert len(errors) > 15
    assert set(errors) <= anchors


def test_every_error_that_a_method_raises_is_a_link(site: Path, sources: griffe.Module) -> None:
    names = [name for name, thing in sources["errors"].members.items() if not thing.is_alias and thing.is_class]
    text = "".join((site / "reference" / f"{page}.html").read_text(encoding="utf-8") for page in ("store", "values"))
    plain = re.findall(r'field-body">\s*<code>(?!<a|\(<a)(.*?)</code>', text)

    assert len(re.findall(r'href="errors\.html#ckstore\.[A-Z]', text)) > 30
    assert [raised for raised in plain if any(name in raised for name in names)] == []


def test_names_that_share_a_line_stay_together(site: Path) -> None:
    text = (site / "reference" / "values.html").read_text(encoding="utf-8")
    attributes = re.findall(r"<b><code>(?:<span[^>]*>)?(.*?)(?:</span>)?</code></b>", text)

    assert "run, step" in attributes
    assert [name for name in attributes if name.endswith(",")] == []


def modules(root: Any) -> list[Any]:
    below = [module for child in root.modules.values() if not child.is_alias for module in modules(child)]
    return [root, *below]
