"""Hatchling's build hook: record the commit in wheels and source packages, and put an SBOM into wheels.

A source package, and an archive of git, are built without a repository. They have the record that they were made with.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

SBOM = "ckstore.cdx.json"
"""In the top directory of the sources if `make dist` has made them."""


class CommitRecord(BuildHookInterface[Any]):
    """Adds ``ckstore/build.json``, which `ckstore.build_info` reads, and the SBOM if the sources have one."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Write the record to a temporary directory: a build must leave no file in the checkout.

        Args:
            version: ``editable`` if the wheel only refers to the sources, whose commit changes.
            build_data: Gets the files to add.
        """
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root))
        try:
            from ckstore.build_info import RECORD, read_build_info
        finally:
            sys.path.remove(str(root))
        found = read_build_info(root)
        self._folder = tempfile.TemporaryDirectory()
        record = Path(self._folder.name, RECORD)
        record.write_text(json.dumps({"commit": found.commit, "dirty": found.dirty}) + "\n", encoding="utf-8")
        build_data["force_include"][str(record)] = f"ckstore/{RECORD}"
        if self.target_name == "wheel" and (root / SBOM).exists():
            build_data["sbom_files"].append(SBOM)

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary directory."""
        if version != "editable":
            self._folder.cleanup()
