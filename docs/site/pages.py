"""What the documentation site does beyond mkdocs.yml: pages keep the paths of the repository, and builds are the same.

mkdocs calls the functions by their names. Nothing of ckstore is imported here: griffe reads its sources.
"""

from __future__ import annotations

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
FROM_THE_TOP = ("README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Give each page its path in the repository, so that links work here as they do on the forge.

    A page of ``docs/`` has the same address as without this; README.md is the first page.
    """
    ours = [file for file in files if file.src_dir == config.docs_dir]
    # Without the sitemap: it needs an address, and says when the site was built.
    theirs = [file for file in files if file.src_dir != config.docs_dir and file.src_uri != "sitemap.xml"]
    placed = [_file(config, f"docs/{file.src_uri}", dest_uri=file.dest_uri, like=file) for file in ours]
    placed += [_file(config, name) for name in FROM_THE_TOP]
    style = File("style.css", str(ROOT / "docs" / "site"), config.site_dir, config.use_directory_urls)
    return Files([*placed, style, *theirs])


def _file(config: MkDocsConfig, path: str, *, dest_uri: str | None = None, like: File | None = None) -> File:
    made = File(path, str(ROOT), config.site_dir, config.use_directory_urls, dest_uri=dest_uri)
    if like is not None:
        made.inclusion = like.inclusion
    return made
