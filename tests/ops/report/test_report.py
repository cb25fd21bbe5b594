"""The report is one page that asks for nothing, whatever a store holds."""

from __future__ import annotations

import ast
import html as html_module
import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ckstore import BadInput, RetentionPolicy, Store
from ckstore.model.sizes import size_text
from ckstore.model.times import seconds_text
from ckstore.ops.report import html
from tests.support.checkpoint_dirs import checkpoint_dir


def fill(store: Store) -> None:
    for step in range(4):
        state = {"frozen": np.arange(9000), "head": np.full(500, step), "<b>&": np.full(10, step)}
        store.save(state, step=step, run="gpt", metrics={"loss": 3.0 - step, "nan": float("nan")})
    store.save({"w": np.arange(5000)}, step=1, run="sweep-1")
    store.tag("good", "gpt@2")


class Looker(HTMLParser):
    """Collects what a page would load, and its headings and tags."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []
        self.open: list[str] = []
        self.headings = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        asked = [value or "" for name, value in attrs if name in ("src", "href")]
        self.loads += [value for value in asked if not value.startswith("#")]
        if tag not in ("meta", "link", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "h2":
            self.headings += f"{data}\n"


def data_of(page: str) -> Any:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert found
    return json.loads(found[1])


def test_the_page_asks_for_nothing_and_is_well_formed(store: Store, tmp_path: Path) -> None:
    fill(store)
    store.config.retention = RetentionPolicy(keep_last=2, keep_best="loss")

    page = store.report(tmp_path / "report.html").html

    looker = Looker()
    looker.feed(page)
    assert looker.loads == []
    assert looker.open == []
    assert (tmp_path / "report.html").read_text() == page
    assert len(page) < 150_000
    for heading in ("Runs", "Timeline", "Rules", "What changed in gpt", "Largest tensors", "Health", "What happened"):
        assert heading in looker.headings
    assert [one["new"] for one in data_of(page)["checkpoints"]] == [info.new_bytes for info in store.checkpoints()]
    assert data_of(page)["checkpoints"][0]["metrics"] == {"loss": 3.0}


def cards_of(page: str) -> dict[str, str]:
    """Return the text of each card, by its heading."""
    assert page.index("<article>") < page.index('<h2 id="overview">')
    found = re.findall(r"<article><h3>(.*?)</h3>(.*?)</article>", page, re.DOTALL)
    return {name: html_module.unescape(re.sub(r"<.*?>", " ", text)) for name, text in found}


def test_it_begins_with_the_best_the_newest_and_what_a_prune_frees(store: Store) -> None:
    fill(store)
    for step in (4, 5):
        store.save({"own": np.arange(50_000) * step}, step=step, run="gpt")
    store.save({"w": np.arange(5000)}, step=2, run="sweep-1", metrics={"loss": -5.0, "width": 3, "it's": 1})
    store.annotate("gpt@1", metrics={"width": 7, "top:acc": 0.5, "tokens": 4})
    store.config.retention = RetentionPolicy(keep_last=1, keep_best="tokens:max")

    cards = cards_of(store.report().html)

    assert [*cards] == ["Best", "Newest", "Prune"]
    lines = [" ".join(line.split()) for line in cards["Best"].splitlines() if line.strip()]
    assert lines == [
        "it's (min) 1 in sweep-1@2 store.load(\"sweep-1@best:it's:min\")",
        "it's (max) 1 in sweep-1@2 store.load(\"sweep-1@best:it's:max\")",
        "loss (min) -5 in sweep-1@2 store.load('sweep-1@best:loss')",
        "tokens (max) 4 in gpt@1 store.load('gpt@best:tokens:max')",
        "top:acc (max) 0.5 in gpt@1 store.load('gpt@best:top:acc:max')",
        "width (min) 3 in sweep-1@2 store.load('sweep-1@best:width:min')",
        "width (max) 7 in gpt@1 store.load('gpt@best:width:max')",
    ]
    for line in lines:
        name, _, code = line.partition(" in ")[2].partition(" ")
        assert store.info(ast.literal_eval(code.removeprefix("store.load"))).name == name
    assert "sweep-1@2" in cards["Newest"]
    assert re.search(r"saved \d+ seconds? before this report", cards["Newest"])
    assert "store.load('sweep-1@latest')" in cards["Newest"]
    report = store.prune(dry_run=True)
    assert report.retention is not None
    assert report.freed_bytes > 390_000
    assert f"would free  {size_text(report.freed_bytes)}" in cards["Prune"]
    assert f"by dropping {len(report.retention.plan.dropped)} checkpoints of 8" in cards["Prune"]


def test_the_cards_say_what_a_store_lacks(store: Store) -> None:
    assert "<article>" not in store.report().html
    store.save({"w": np.arange(9)}, step=1, metrics={"loss": float("nan")})

    cards = cards_of(store.report().html)

    assert "No checkpoint has a metric." in cards["Best"]
    assert "main@1" in cards["Newest"]
    assert "ckstore prune --keep-last 3 --dry-run" in cards["Prune"]


def test_names_from_the_store_are_text(store: Store) -> None:
    fill(store)
    store.save({"</script><script>alert(1)</script>": np.full(600, 1)}, step=9, run="gpt", metrics={"</script>": 1.0})

    page = store.report().html

    assert "<script>alert" not in page
    assert "&lt;b&gt;&amp;" in page
    assert "</script>" in data_of(page)["checkpoints"][-1]["metrics"]


def test_a_tensor_that_stayed_has_an_empty_cell(store: Store) -> None:
    for step in range(4):
        state = {"same": np.arange(9), "all": np.full(9, step), "once": np.full(9, step == 2)}
        store.save(state if step else {**state, "gone": np.ones(9)}, step=step)

    table = store.report().html.partition('<table class="map">')[2].partition("</table>")[0]

    rows = re.findall('<th scope="row">([^<]*)</th>((?:<td[^>]*>[^<]*</td>)+)', table)
    assert {name: re.findall("<td[^>]*>(.*?)</td>", row) for name, row in rows} == {
        "all": ["100 %"] * 3,
        "once": ["", "100 %", "100 %"],
        "gone": ["gone", "", ""],
    }


@pytest.mark.parametrize(
    "share,shown",
    [(0.0, ""), (1e-9, "&lt;1 %"), (0.0099, "&lt;1 %"), (0.014, "1 %"), (0.5, "50 %"), (0.999, "99 %"), (1.0, "100 %")],
)
def test_a_share_is_0_or_100_percent_only_where_it_is(share: float, shown: str) -> None:
    assert html._cell(share).partition(">")[2] == f"{shown}</td>"


@pytest.mark.parametrize(
    "seconds,shown",
    [(0.0, "0 s"), (0.0004, "0 s"), (0.0316, "0.032 s"), (0.99, "0.99 s"), (1.26, "1.3 s"), (754.04, "754.0 s")],
)
def test_a_short_time_has_two_digits(seconds: float, shown: str) -> None:
    assert seconds_text(seconds) == shown


def test_an_empty_store_and_a_damaged_checkpoint_have_a_report(store: Store) -> None:
    assert "no checkpoint yet" in store.report().html
    fill(store)
    manifest = checkpoint_dir(store.path, "gpt", 3) / "manifest.json"
    whole = manifest.read_bytes()
    manifest.write_bytes(b"{}")
    assert "gpt@2" in store.report().html
    manifest.write_bytes(whole)


def test_a_notebook_shows_it_in_a_frame_and_a_file_that_cannot_be_written_is_refused(
    store: Store, tmp_path: Path
) -> None:
    made = store.report()

    assert made._repr_html_().startswith("<iframe")
    assert len(repr(made)) < 100
    with pytest.raises(BadInput, match="cannot be written"):
        store.report(tmp_path / "nowhere" / "report.html")


def test_the_reasons_of_all_runs_have_one_row_each_and_are_whole_sentences(store: Store) -> None:
    for run in ("gpt", "gpt-lowlr"):
        for step in (1, 2):
            store.save({"w": np.arange(step)}, step=step, run=run, metrics={"eval_loss": step} if run == "gpt" else {})
    store.pin("gpt@1", "the seed of the run gpt")
    store.config.retention = RetentionPolicy(keep_best="eval_loss")

    rules = store.report().html.partition("What each rule keeps")[2].partition("</table>")[0]
    rows = dict(re.findall(r'<th scope="row"[^>]*>([^<]*)</th><td[^>]*>([^<]*)</td>', rules))

    assert rows["no checkpoint of its run has a number for the metric eval_loss"] == "2"
    assert rows["it is the newest valid checkpoint of its run"] == "2"
    assert any(reason.startswith("it is pinned: the seed of the run gpt (") for reason in rows)
