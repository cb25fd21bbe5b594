"""The documentation site: it builds without a warning, fetches nothing, and every link in it leads somewhere."""

from __future__ import annotations

import hashlib
import re
import shutil
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.conftest import ROOT, build

# Attributes by which a browser fetches something without a click.
FETCHING = {
    ("script", "src"),
    ("link", "href"),
    ("img", "src"),
    ("iframe", "src"),
    ("source", "src"),
    ("object", "data"),
}


class Page(HTMLParser):
    """What a page links to, what it fetches, the anchors that it has, and its text outside code."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: list[str] = []
        self.fetched: list[str] = []
        self.anchors: set[str] = set()
        self.prose: list[str] = []
        self._silent = 0
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._silent += tag in ("code", "script", "style")
        for name, value in attrs:
            if name == "id" and value:
                self.anchors.add(value)
            elif tag == "a" and name == "href" and value:
                self.links.append(value)
            elif (tag, name) in FETCHING and value:
                self.fetched.append(value)

    def handle_endtag(self, tag: str) -> None:
        self._silent -= tag in ("code", "script", "style")

    def handle_data(self, data: str) -> None:
        if not self._silent:
            self.prose.append(data)


def pages(site: Path) -> dict[Path, Page]:
    # The page for a missing address is shown at any address, so its links begin at the root.
    return {
        path: Page(path.read_text(encoding="utf-8")) for path in sorted(site.rglob("*.html")) if path.name != "404.html"
    }


def test_the_site_builds_without_a_warning(site: Path) -> None:
    log = (site.parent / "log").read_text(encoding="utf-8")

    assert re.findall(r"^(?:WARNING|ERROR|DEPRECATED).*", log, re.MULTILINE) == []


def test_a_page_for_every_document_of_the_repository(site: Path) -> None:
    documents = [
        path.relative_to(ROOT / "docs")
        for path in (ROOT / "docs").rglob("*.md")
        if path.parent.name not in ("changelog.d", "site")
    ]
    wanted = {site / path.parent / f"{'index' if path.stem == 'README' else path.stem}.html" for path in documents}
    wanted |= {site / f"{name}.html" for name in ("index", "CONTRIBUTING", "SECURITY", "CHANGELOG")}

    assert len(documents) > 20
    assert set(pages(site)) == wanted


def test_every_link_and_every_anchor_leads_somewhere(site: Path) -> None:
    found = pages(site)
    broken = []
    for path, page in found.items():
        for link in page.links:
            parts = urlsplit(link)
            if parts.scheme or parts.netloc:
                continue
            target = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            anchors = found[target].anchors if target in found else set()
            if not target.is_file() or (parts.fragment and unquote(parts.fragment) not in anchors):
                broken.append(f"{path.relative_to(site)}: {link}")

    assert sum(len(page.links) for page in found.values()) > 1000
    assert broken == []


def test_a_browser_fetches_what_is_there_and_nothing_from_another_host(site: Path) -> None:
    elsewhere = [
        f"{path.relative_to(site)}: {address}"
        for path, page in pages(site).items()
        for address in page.fetched
        if urlsplit(address).netloc or not (path.parent / unquote(urlsplit(address).path)).exists()
    ]
    styles = [path.read_text(encoding="utf-8") for path in site.rglob("*.css")]

    assert len(styles) > 1
    assert elsewhere == []
    assert [address for style in styles for address in re.findall(r"(?:@import|url\()[^);]*//[^);]*", style)] == []


def markup(prose: str) -> Iterator[str]:
    """Yield what in the text of a page is Markdown that was not understood."""
    yield from re.findall(r"```.*|\]\([^)]*\)|^\s*[-*] .*|^\s*\|.*\||\*\*\w.*|^#+ .*|^:::.*", prose, re.MULTILINE)


def test_no_markdown_is_left_in_the_text_of_a_page(site: Path) -> None:
    left = [
        f"{path.relative_to(site)}: {found}"
        for path, page in pages(site).items()
        for found in markup("".join(page.prose))
    ]

    assert left == []


def test_markdown_that_is_left_would_be_seen() -> None:
    page = Page("<p>Say:\n- two\n```console [a](b.md)\n**bold\n| a | b |</p><code>- `x`</code>")

    assert len(list(markup("".join(page.prose)))) == 4


def digests(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of what the site is made of, beside links to the sources."""
    shutil.copytree(ROOT / "docs", tmp_path / "copy" / "docs")
    for page in ROOT.glob("*.md"):
        shutil.copy(page, tmp_path / "copy")
    (tmp_path / "copy" / "ckstore").symlink_to(ROOT / "ckstore")
    return tmp_path / "copy"


@pytest.mark.whole
def test_another_build_at_another_place_gives_the_same_bytes(site: Path, copy: Path) -> None:
    done = build(copy / "docs" / "site" / "mkdocs.yml", copy / "again")

    assert done.returncode == 0, done.stderr
    assert digests(copy / "again") == digests(site)


@pytest.mark.whole  # what the build of this repository says is looked at in the others
def test_what_leads_nowhere_fails_the_build(copy: Path) -> None:
    page = copy / "docs" / "tutorial.md"
    broken = "[a](how-to/nothing.md) [b](protocol.md#nothing) [c](../NOTHING.md) [d](#nothing)"
    page.write_text(f"{page.read_text(encoding='utf-8')}\n{broken}\n", encoding="utf-8")
    (copy / "docs" / "lonely.md").write_text("# In no menu\n", encoding="utf-8")

    done = build(copy / "docs" / "site" / "mkdocs.yml", copy / "site")

    assert done.returncode == 1
    warned = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    for name in ("how-to/nothing.md", "protocol.md#nothing", "../NOTHING.md", "'#nothing'"):
        assert [line for line in warned if name in line], done.stderr
    assert "lonely.md" in done.stderr
