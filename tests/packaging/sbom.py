"""Print the SBOM of the packages, in CycloneDX JSON: ``python -m tests.packaging.sbom`` in an export of a commit.

The packages contain one third-party library, uPlot, which the report shows its charts with. All other components are
external: an installer chooses their versions from the ranges in `pyproject.toml`. Their licences are read from the
metadata of the installed packages, whose versions must be those in `constraints.txt`. The same commit gives the same
bytes.

This module writes the document itself because cyclonedx-python-lib 11.12 does not support ``versionRange``, and
cyclonedx-py lists installed versions. `tests.packaging.dist` validates the document with that library's schema.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import os
import re
import sys
import tomllib
import uuid
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import quote

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from ckstore.build_info import read_build_info

ROOT = Path(__file__).resolve().parents[2]
NOT_OF_USERS = frozenset({"dev", "docs", "integrations"})
"""Extras that only developers need: ckstore imports none of their packages."""

_UPLOT = "ckstore/ops/report/assets/uPlot"
"""What the names of its files begin with."""


def document(root: Path, time_s: int) -> dict[str, Any]:
    """Return the SBOM.

    Args:
        root: The sources, which record their commit.
        time_s: When the commit was made, in seconds since 1970.

    Raises:
        SystemExit: An installed package is not of the pinned version or declares no licence, or the sources have no
            record of a clean commit.
    """
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    built = read_build_info(root)
    if built.commit is None or built.dirty is not False:
        raise SystemExit(f"error: an SBOM is made from a clean commit, and {root} is of {built}")
    me = f"pkg:pypi/{project['name']}@{project['version']}"
    components = [bundled_uplot(root)]
    components += [external_component(name, uses) for name, uses in sorted(requirements(project).items())]
    return {
        "$schema": "http://cyclonedx.org/schema/bom-1.7.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.7",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, f'{me}#{built.commit}')}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(time_s, UTC).isoformat().replace("+00:00", "Z"),
            "lifecycles": [{"phase": "build"}],
            "component": {
                "type": "library",
                "bom-ref": me,
                "name": project["name"],
                "version": project["version"],
                "description": project["description"],
                "licenses": [{"expression": project["license"]}],
                "purl": me,
                "properties": [{"name": "ckstore:commit", "value": built.commit}],
            },
        },
        "components": components,
        "dependencies": [
            {"ref": me, "dependsOn": [one["bom-ref"] for one in components if one["scope"] != "excluded"]}
        ],
    }


def requirements(project: dict[str, Any]) -> dict[str, dict[str, Requirement]]:
    """Return name -> extra -> requirement for each dependency. The extra of the core is the empty string."""
    found: dict[str, dict[str, Requirement]] = {}
    for extra, lines in {"": project["dependencies"], **project["optional-dependencies"]}.items():
        for requirement in map(Requirement, lines):
            found.setdefault(canonicalize_name(requirement.name), {})[extra] = requirement
    return found


def bundled_uplot(root: Path) -> dict[str, Any]:
    """Return the component of the library that the packages contain, with the digests of its files.

    Raises:
        SystemExit: Its code does not begin with its version.
    """
    code = (root / f"{_UPLOT}.iife.min.js").read_text(encoding="utf-8")
    found = re.match(r"/\*! https://github\.com/leeoniya/uPlot \(v([\d.]+)\) \*/", code)
    if found is None:
        raise SystemExit(f"error: {_UPLOT}.iife.min.js does not begin with its version")
    purl = f"pkg:npm/uplot@{found[1]}"
    return {
        "type": "library",
        "bom-ref": purl,
        "name": "uplot",
        "version": found[1],
        "scope": "required",
        "licenses": [{"license": {"id": "MIT", "acknowledgement": "declared"}}],
        "purl": purl,
        "components": [
            {
                "type": "file",
                "name": path.relative_to(root).as_posix(),
                "hashes": [{"alg": "SHA-256", "content": hashlib.sha256(path.read_bytes()).hexdigest()}],
            }
            for path in sorted((root / _UPLOT).parent.glob(f"{Path(_UPLOT).name}*"))
        ],
    }


def external_component(name: str, uses: dict[str, Requirement]) -> dict[str, Any]:
    """Return the component of a dependency.

    Args:
        name: Its canonical name.
        uses: Its requirement by extra.

    Raises:
        SystemExit: Extras require different ranges of versions. Also the errors of `pinned_version` and `licence_of`.
    """
    ranges = {version_range(requirement.specifier) for requirement in uses.values()}
    if len(ranges) > 1:
        raise SystemExit(f"error: the extras {', '.join(uses)} want different versions of {name}: {sorted(ranges)}")
    scope = "required" if "" in uses else "excluded" if uses.keys() <= NOT_OF_USERS else "optional"
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}",
        "name": name,
        "scope": scope,
        "isExternal": True,
        "versionRange": ranges.pop(),
        "licenses": [licence_of(name)],
        "purl": f"pkg:pypi/{name}",
        "properties": [
            *({"name": "ckstore:extra", "value": extra} for extra in sorted(uses) if extra),
            {"name": "ckstore:licence-of-version", "value": pinned_version(name)},
        ],
    }


def version_range(specifiers: SpecifierSet) -> str:
    """Return a range of versions as ``vers`` of Package URL: ``vers:pypi/>=1.6|<2``.

    Raises:
        SystemExit: ``vers`` has no such operator.
    """
    parts = sorted(specifiers, key=lambda one: Version(one.version))
    if wrong := [str(one) for one in parts if one.operator not in {">=", ">", "<=", "<", "!="}]:
        raise SystemExit(f"error: {', '.join(wrong)} cannot be written as a range; use >=, >, <=, < or !=")
    return f"vers:pypi/{'|'.join(f'{one.operator}{quote(one.version)}' for one in parts) or '*'}"


def pinned_version(name: str) -> str:
    """Return the pinned version of a dependency, after a check that this version is installed.

    Raises:
        SystemExit: It is not installed, or of another version.
    """
    pins = (line.split("==") for line in (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines())
    (pinned,) = (pin[1] for pin in pins if len(pin) == 2 and canonicalize_name(pin[0]) == name)
    try:
        installed = Version(importlib.metadata.version(name)).public  # torch+cpu is torch
    except importlib.metadata.PackageNotFoundError:
        installed = "none"
    if installed != pinned:
        raise SystemExit(
            f"error: {name} {pinned} must be installed to read its licence, found {installed}: run make venv"
        )
    return pinned


def licence_of(name: str) -> dict[str, Any]:
    """Return the declared licence of an installed package: an SPDX identifier or expression, otherwise its name.

    Raises:
        SystemExit: It declares none.
    """
    for text in _declared(name):
        with suppress(InvalidLicenseExpression):
            expression = str(canonicalize_license_expression(text))
            if " " in expression:
                return {"expression": expression, "acknowledgement": "declared"}
            return {"license": {"id": expression, "acknowledgement": "declared"}}
    names = [text for text in _declared(name) if "\n" not in text]
    if not names:
        raise SystemExit(f"error: the metadata of {name} has no licence")
    return {"license": {"name": names[-1], "acknowledgement": "declared"}}


def _declared(name: str) -> Iterator[str]:
    """Yield the licence in each form of the metadata of an installed package, the most exact form first."""
    metadata = importlib.metadata.metadata(name)
    for field in ("License-Expression", "License"):
        if field in metadata:
            yield metadata[field]
    for classifier in metadata.get_all("Classifier") or ():
        if classifier.startswith("License :: OSI Approved :: "):
            yield classifier.rpartition(" :: ")[2]


if __name__ == "__main__":
    made = document(ROOT, int(os.environ["SOURCE_DATE_EPOCH"]))
    json.dump(made, sys.stdout, indent=2)
    sys.stdout.write("\n")
