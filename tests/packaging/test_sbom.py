"""The SBOM names every dependency, with its licence and the range of its versions."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import shutil
import tomllib
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from tests.packaging import sbom

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"
ASSETS = "ckstore/ops/report/assets"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def export(folder: Path, commit: str = COMMIT) -> Path:
    """Make what an export of a commit has for the SBOM."""
    shutil.copytree(ROOT / ASSETS, folder / ASSETS)
    shutil.copy(ROOT / "pyproject.toml", folder)
    (folder / "ckstore" / "build.json").write_text(json.dumps({"commit": commit, "dirty": False}), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return sbom.document(export(tmp_path_factory.mktemp("export") / "code"), 1_700_000_000)


def required() -> list[tuple[str, Requirement]]:
    """Return each dependency with its extra."""
    extras = {"": PROJECT["dependencies"], **PROJECT["optional-dependencies"]}
    return [(extra, Requirement(line)) for extra, lines in extras.items() for line in lines]


def test_each_dependency_of_each_extra_has_its_range_and_a_licence(document: dict[str, Any]) -> None:
    components = {one["purl"]: one for one in document["components"] if "versionRange" in one}

    assert components.keys() == {f"pkg:pypi/{canonicalize_name(one.name)}" for _, one in required()}
    for extra, requirement in required():
        component = components[f"pkg:pypi/{canonicalize_name(requirement.name)}"]
        assert component["isExternal"]
        begin, _, versions = component["versionRange"].partition("/")
        assert begin == "vers:pypi"
        assert SpecifierSet(versions.replace("|", ",")) == requirement.specifier
        extras = {one["value"] for one in component["properties"] if one["name"] == "ckstore:extra"}
        assert extra in (extras or {""})
        ((licence,),) = (component["licenses"],)
        assert licence.get("expression") or licence["license"].get("id") or licence["license"]["name"]


def test_the_core_is_required_what_users_choose_is_optional_and_tools_are_excluded(document: dict[str, Any]) -> None:
    scopes = {component["name"]: component["scope"] for component in document["components"]}

    assert {name for name, scope in scopes.items() if scope == "required"} == {
        "uplot",
        *(canonicalize_name(Requirement(line).name) for line in PROJECT["dependencies"]),
    }
    assert scopes["torch"] == scopes["numpy"] == scopes["fsspec"] == "optional"
    assert scopes["pytest"] == scopes["mkdocs"] == scopes["transformers"] == "excluded"
    (graph,) = document["dependencies"]
    assert graph["ref"] == document["metadata"]["component"]["bom-ref"]
    assert {ref.partition("/")[2].partition("@")[0] for ref in graph["dependsOn"]} == {
        name for name, scope in scopes.items() if scope != "excluded"
    }


def test_each_file_from_third_parties_in_the_packages_is_named_with_its_digest(document: dict[str, Any]) -> None:
    own = {"page.css", "page.js", "py.typed", "build.json"}
    third_party = {
        path.relative_to(ROOT).as_posix()
        for package in ("ckstore", "cli/ckstore_cli", "migrations/ckstore_migrations")
        for path in (ROOT / package).rglob("*")
        if path.is_file() and path.suffix not in {".py", ".pyi", ".pyc"} and path.name not in own
    }

    (library,) = (one for one in document["components"] if not one.get("isExternal"))
    assert library["purl"] == f"pkg:npm/uplot@{library['version']}"
    assert {one["name"] for one in library["components"]} == third_party
    for one in library["components"]:
        assert one["hashes"] == [
            {"alg": "SHA-256", "content": hashlib.sha256((ROOT / one["name"]).read_bytes()).hexdigest()}
        ]
    assert {f"{ASSETS}/uPlot-LICENSE"} <= third_party & {*PROJECT["license-files"]}


def test_a_library_without_its_version_is_an_error(tmp_path: Path) -> None:
    code = export(tmp_path / "code")
    (code / ASSETS / "uPlot.iife.min.js").write_text("var uPlot", encoding="utf-8")

    with pytest.raises(SystemExit, match=r"uPlot\.iife\.min\.js does not begin with its version"):
        sbom.document(code, 0)


def test_licences_are_identifiers_of_spdx_where_the_packages_declare_them(document: dict[str, Any]) -> None:
    # The schema has identifiers of single licences only, and ours has two.
    assert document["metadata"]["component"]["licenses"] == [{"expression": "Apache-2.0 AND MIT"}]
    licences = {component["name"]: component["licenses"][0] for component in document["components"]}

    assert licences["click"] == {"license": {"id": "BSD-3-Clause", "acknowledgement": "declared"}}
    assert licences["xxhash"]["license"]["id"] == "BSD-2-Clause"
    assert " AND " in licences["torch"]["expression"]
    assert licences["safetensors"]["license"]["name"] == "Apache Software License"  # its classifier has no more
    assert licences["torch-checkpointing"]["license"]["name"] == "BSD License"  # its field is a text of many lines
    assert max(len(json.dumps(licence)) for licence in licences.values()) < 200


def test_it_depends_on_the_commit_alone(document: dict[str, Any], tmp_path: Path) -> None:
    again = sbom.document(export(tmp_path / "again"), 1_700_000_000)
    other = sbom.document(export(tmp_path / "other", COMMIT[::-1]), 1_700_000_001)

    assert json.dumps(again) == json.dumps(document)
    assert document["metadata"]["timestamp"] == "2023-11-14T22:13:20Z"
    assert document["metadata"]["component"]["properties"] == [{"name": "ckstore:commit", "value": COMMIT}]
    assert re.fullmatch(r"urn:uuid:[0-9a-f-]{36}", document["serialNumber"])
    assert other["serialNumber"] != document["serialNumber"]


@pytest.mark.parametrize(
    "specifiers,wanted",
    [
        ("", "vers:pypi/*"),
        (">=1.6", "vers:pypi/>=1.6"),
        ("<2,>=1.6", "vers:pypi/>=1.6|<2"),
        (">=9,!=10.1", "vers:pypi/>=9|!=10.1"),
        (">=1!2", "vers:pypi/>=1%212"),
    ],
)
def test_a_range_is_written_in_the_order_of_its_versions(specifiers: str, wanted: str) -> None:
    assert sbom.version_range(SpecifierSet(specifiers)) == wanted


def test_a_range_that_cannot_be_written_is_an_error() -> None:
    with pytest.raises(SystemExit, match=r"~=1\.4 cannot be written as a range; use >="):
        sbom.version_range(SpecifierSet("~=1.4"))


def test_extras_that_want_different_versions_are_an_error() -> None:
    uses = {"torch": Requirement("numpy>=1.26"), "compact": Requirement("numpy>=2")}

    with pytest.raises(SystemExit, match="torch, compact want different versions of numpy"):
        sbom.external_component("numpy", uses)


@pytest.mark.parametrize("installed", ["0.1", None])
def test_another_version_than_the_pinned_one_is_an_error(
    installed: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def version(name: str) -> str:
        if installed is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return installed

    monkeypatch.setattr(importlib.metadata, "version", version)

    with pytest.raises(SystemExit, match=rf"click [\d.]+ must be installed .*, found {installed or 'none'}: run"):
        sbom.pinned_version("click")


def test_sources_of_no_clean_commit_have_no_sbom(tmp_path: Path) -> None:
    code = export(tmp_path / "code")
    (code / "ckstore" / "build.json").write_text('{"commit": null, "dirty": null}', encoding="utf-8")

    with pytest.raises(SystemExit, match=r"made from a clean commit, and .* is of .* \(commit unknown\)"):
        sbom.document(code, 0)
