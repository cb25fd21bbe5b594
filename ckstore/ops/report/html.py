"""Render a report as one HTML page that includes its charts, styles and data, and loads no other file."""

from __future__ import annotations

import html
import json
from collections import Counter
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from statistics import median

from ckstore.model.brief import HtmlReport
from ckstore.model.checkpoint.external_run import external_runs
from ckstore.model.digest import short_id
from ckstore.model.doctor.finding import age_words
from ckstore.model.manifest.health import unchanged_text
from ckstore.model.reports.event import Event
from ckstore.model.reports.held_blobs import Holder
from ckstore.model.saver.status import SaverStatus
from ckstore.model.sizes import size_text
from ckstore.model.times import seconds_text, time_of_text
from ckstore.model.words import counted, metrics_text, number_text, printable
from ckstore.ops.context import Context
from ckstore.ops.report.cards import best_by_each
from ckstore.ops.report.doctor import MoreChecks
from ckstore.ops.report.metrics import write_text
from ckstore.ops.report.page import ChangeMap, ReportPage, page

_BEST_SHOWN = 12
_ROWS_SHOWN = 500
"""The maximum number of rows in a table of checkpoints, which shows the newest checkpoints."""


def report(context: Context, path: Path | None, checks: MoreChecks, savers: Sequence[SaverStatus]) -> HtmlReport:
    """Return the report of a store, and write it if a path is given; see `ckstore.Store.report`."""
    made = HtmlReport(render(page(context, checks, savers)))
    write_text(context, path, made.html, "the report")
    return made


def render(page: ReportPage) -> str:
    """Return the page as HTML."""
    health = [(one.level, one.what, one.found, one.do) for one in page.health]
    sections = [
        _cards(page),
        _overview(page),
        _runs(page),
        _charts(page),
        _rules(page),
        *(_map(one) for one in page.maps),
        _largest(page),
        _durations(page.durations),
        _processes(page.holders, page.savers),
        _section("Health", _table("What ckstore doctor finds", ("State", "What", "Found", "Do"), health)),
        _waiting(page),
        _happened(page),
        _checkpoints(page),
    ]
    # Escape "<" in the JSON, since a closing tag in a name would end the script element.
    data = json.dumps(page.data(), allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")
    policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n'
        f"<title>{_text(page.root)} - ckstore</title>\n"
        f"<style>{_asset('uPlot.min.css')}\n{_asset('page.css')}</style>\n</head>\n<body>\n"
        '<a class="skip" href="#main">Skip to the report</a>\n'
        f"<header><h1>{_text(page.root)}</h1><p>ckstore {_text(page.version)}, {_text(page.made)}</p></header>\n"
        f'<main id="main">\n{"".join(sections)}</main>\n'
        f'<script type="application/json" id="data">{data}</script>\n'
        f"<script>{_asset('uPlot.iife.min.js')}</script>\n<script>{_asset('page.js')}</script>\n"
        "</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    asset = resources.files("ckstore.ops.report").joinpath("assets", name)
    return asset.read_text(encoding="utf-8")


def _text(value: object) -> str:
    return html.escape(printable(str(value)))


def _section(title: str, *parts: str) -> str:
    slug = "-".join(part for part in "".join(c if c.isalnum() else " " for c in title.lower()).split())
    return f'<section aria-labelledby="{slug}">\n<h2 id="{slug}">{_text(title)}</h2>\n{"".join(parts)}</section>\n'


def _table(caption: str, head: Sequence[str], rows: Iterable[Sequence[object]], numbers: str = "") -> str:
    """Return a table; `numbers` has a ``>`` at the position of each right-aligned column."""
    side = [' class="number"' if index < len(numbers) and numbers[index] == ">" else "" for index in range(len(head))]
    cells = "".join(f'<th scope="col"{side[index]}>{_text(name)}</th>' for index, name in enumerate(head))
    body = []
    for row in rows:
        # The first cell is the header of the row, for screen readers.
        first = f'<th scope="row"{side[0]}>{_text(row[0])}</th>'
        others = "".join(f"<td{side[index]}>{_text(cell)}</td>" for index, cell in enumerate(row) if index)
        body.append(f"<tr>{first}{others}</tr>\n")
    return (
        f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}"><table><caption>{_text(caption)}'
        f"</caption><thead><tr>{cells}</tr></thead>\n<tbody>\n{''.join(body)}</tbody></table></div>\n"
    )


def _cards(page: ReportPage) -> str:
    """Return the cards: the best checkpoints, the newest checkpoint, and the space that a prune would free."""
    if not page.infos:
        return ""
    cards = (("Best", _best_card(page)), ("Newest", _newest_card(page)), ("Prune", _prune_card(page)))
    shown = "".join(f"<article><h3>{name}</h3>\n{text}</article>\n" for name, text in cards)
    return _section("At a glance", f'<div class="cards">\n{shown}</div>\n')


def _best_card(page: ReportPage) -> str:
    found = best_by_each(page.infos, page.modes)
    if not found:
        return "<p>No checkpoint has a metric.</p>\n"
    lines = [
        f"<p>{_text(one.metric)} ({one.mode}) <b>{_text(number_text(one.value))}</b> in {_text(one.info.name)}"
        f"<br>{_load(one.ref)}</p>\n"
        for one in found[:_BEST_SHOWN]
    ]
    more = len(found) - _BEST_SHOWN
    return "".join(lines) + (f"<p>and {more} more</p>\n" if more > 0 else "")


def _newest_card(page: ReportPage) -> str:
    info = page.infos[-1]
    age = age_words((page.now - time_of_text(info.created)).total_seconds())
    damaged = ' <span class="bad">DAMAGED</span>' if info.damaged else ""
    return (
        f"<p><b>{_text(info.name)}</b>{damaged}</p>\n<p>saved {_text(age)} before this report</p>\n"
        f"<p>{_load(f'{info.run}@latest')}</p>\n"
    )


def _prune_card(page: ReportPage) -> str:
    if page.plan is None:
        return (
            "<p>The store has no rule, so a prune needs one: <code>ckstore prune --keep-last 3 --dry-run</code></p>\n"
        )
    count = counted(len(page.plan.dropped), "checkpoint")
    freed = "" if page.freed_bytes is None else f"<p>would free <b>{size_text(page.freed_bytes)}</b></p>\n"
    return f"{freed}<p>by dropping {count} of {len(page.plan.entries)}</p>\n<p><code>ckstore prune</code></p>\n"


def _load(ref: str) -> str:
    return f"<code>store.load({_text(ascii(ref))})</code>"


def _overview(page: ReportPage) -> str:
    used = page.usage
    facts = [
        ("Checkpoints", str(len(page.infos))),
        *([("Superseded checkpoints", str(len(page.superseded)))] if page.superseded else []),
        ("Runs", str(len(used.runs))),
        ("On the disk", size_text(used.disk_bytes)),
        ("Without sharing", size_text(used.logical_bytes)),
        ("Unused (gc frees it)", size_text(used.unused_bytes)),
        ("Dropped (can be restored)", size_text(used.waiting_bytes)),
        ("Damaged checkpoints", str(sum(info.damaged for info in page.infos))),
        ("Unhealthy checkpoints", str(sum(bool(info.unhealthy) for info in page.infos))),
    ]
    shown = "".join(f"<div><dt>{_text(name)}</dt><dd>{_text(value)}</dd></div>" for name, value in facts)
    problems = "".join(f"<p class='bad'>{_text(one)}</p>" for one in page.problems)
    return _section("Overview", f"<dl>{shown}</dl>", problems)


def _runs(page: ReportPage) -> str:
    rows = [
        (one.run, one.checkpoint_count, *map(size_text, (one.logical_bytes, one.alone_bytes, one.shared_bytes)))
        for one in page.usage.runs
    ]
    if not rows:
        return _section("Runs", "<p>The store has no checkpoint yet.</p>")
    caption = "Space of each run: blobs that only it uses (deleting it frees them), and its share of other blobs"
    return _section("Runs", _table(caption, ("Run", "Checkpoints", "Logical", "Alone", "Shared"), rows, " >>>>"))


def _charts(page: ReportPage) -> str:
    if not page.infos:
        return ""
    charts = (
        ("steps", "Steps of each run over time, with tags and forks"),
        ("metric", "A metric over the steps"),
        ("bytes", "New and reused bytes of each save"),
        ("growth", "Growth of the store"),
        *((("durations", "How long each save took"),) if page.durations else ()),
    )
    chooser = '<label for="choose">Metric <select id="choose"></select></label>'
    figures = "".join(
        f"<figure><figcaption>{_text(title)}</figcaption>{chooser if name == 'metric' else ''}"
        f'<div class="chart" id="{name}" role="img" aria-label="{_text(title)}; the table of checkpoints has the '
        f'numbers"></div></figure>\n'
        for name, title in charts
    )
    return _section("Timeline", figures, "<noscript><p>The charts need JavaScript; the tables do not.</p></noscript>")


def _rules(page: ReportPage) -> str:
    if page.plan is None:
        return _section("Rules", "<p>The store has no rule: every checkpoint is kept until it is deleted.</p>")
    alone = {one.id: one.alone_bytes for one in page.usage.checkpoints}
    kept: dict[str, int] = {}
    for entry in page.plan.kept:
        for reason in entry.reasons:
            # Remove the name of the run from a reason, so that all runs share one row for the reason. The reason of a
            # pin is a text of the user, so leave it unchanged.
            is_of_pin = reason.startswith("it is pinned: ")
            of_all = reason if is_of_pin else reason.replace(f" of the run {entry.info.run}", " of its run", 1)
            kept[of_all] = kept.get(of_all, 0) + 1
    dropped = [
        (entry.info.name, size_text(alone[entry.info.id]), "; ".join(entry.reasons)) for entry in page.plan.dropped
    ]
    ordered = sorted(kept.items(), key=lambda one: -one[1])
    parts = [_table("What each rule keeps", ("Because", "Checkpoints"), ordered, " >")]
    if dropped:
        parts.append(_table("What ckstore prune would drop", ("Checkpoint", "Alone", "Because"), dropped, " > "))
    else:
        parts.append("<p>ckstore prune would drop nothing.</p>")
    parts += [f"<p class='bad'>{_text(note)}</p>" for note in page.plan.notes]
    return _section("Rules", *parts)


def _map(one: ChangeMap) -> str:
    """Return the table of changes in a run: a row for each tensor, a column for each checkpoint."""
    title = f"What changed in {one.run}"
    if not one.rows:
        return _section(title, "<p>No tensor changed between the newest checkpoints.</p>")
    head = "".join(f'<th scope="col">{_text(name.partition("@")[2])}</th>' for name in one.names[1:])
    rows = ((name, "".join(map(_cell, shares))) for name, shares in one.rows.items())
    body = "".join(f'<tr><th scope="row">{_text(name)}</th>{cells}</tr>\n' for name, cells in rows)
    more = f", {counted(one.left_out, 'more tensor')} left out" if one.left_out else ""
    unchanged = f"{counted(one.unchanged_count, 'value')} did not change in the last step{more}"
    note = f"<p>An empty cell means that the tensor did not change or does not exist. {unchanged}.</p>"
    caption = f"Share of each tensor that changed at each step of {one.run}"
    table = (
        f'<table class="map"><caption>{_text(caption)}</caption><thead><tr><th scope="col">Tensor</th>{head}</tr>'
        f"</thead><tbody>{body}</tbody></table>"
    )
    box = f'<div class="wide" tabindex="0" role="region" aria-label="{_text(caption)}">{table}</div>'
    return _section(title, box, note)


def _cell(share: float | None) -> str:
    if share is None:
        return "<td>gone</td>"
    if share == 0:
        return "<td></td>"
    # Show 0 % and 100 % only if nothing or everything changed.
    percent = "&lt;1" if share < 0.01 else "100" if share == 1 else str(min(99, round(share * 100)))
    return f'<td class="level{1 + min(3, int(share * 4))}">{percent} %</td>'


def _largest(page: ReportPage) -> str:
    if not page.largest:
        return ""
    rows = [(name, size_text(nbytes), of) for of, name, nbytes in page.largest]
    head = ("Name", "Size", "Checkpoint")
    return _section("Largest tensors", _table("Of the newest checkpoint of each run", head, rows, " > "))


def _durations(timed: Sequence[Event]) -> str:
    if not timed:
        return ""
    by_run: dict[str, list[float]] = {}
    for event in timed:
        by_run.setdefault(event.run, []).append(event.seconds or 0.0)
    rows = [(run, len(took), *map(seconds_text, (median(took), max(took)))) for run, took in by_run.items()]
    head = ("Run", "Saves", "Median", "Longest")
    return _section("Save durations", _table(f"Of the newest {counted(len(timed), 'save')}", head, rows, " >>>"))


def _processes(holders: Sequence[Holder], savers: Sequence[SaverStatus]) -> str:
    files = Counter((holder.pid, holder.command) for holder in holders)
    parts = []
    if savers:
        rows = [(one.pid, one.trainer, one.state, one.save, one.done) for one in savers]
        head = ("Process", "Trainer", "State", "Save", "Done")
        parts.append(_table("Processes that save in the background", head, rows))
    if files:
        held = [(pid, command, count) for (pid, command), count in files.most_common()]
        parts.append(
            _table("Processes that have files of the store open", ("Process", "Command", "Files"), held, "  >")
        )
    return _section("Processes", *parts) if parts else ""


def _waiting(page: ReportPage) -> str:
    if not page.waiting:
        return ""
    rows = [(one.ref, one.dropped[:16], one.until[:16], size_text(one.nbytes), one.problem) for one in page.waiting]
    caption = "Dropped checkpoints; ckstore undo restores them until the given time (UTC), unless there is a problem"
    return _section("Undo", _table(caption, ("Checkpoint", "Dropped", "Until", "Size", "Problem"), rows, "   >"))


def _happened(page: ReportPage) -> str:
    if not page.happened:
        return ""
    rows = [(one.time[:19].replace("T", " "), one.event, one.name, one.why) for one in page.happened]
    head = ("Time", "Event", "Checkpoint", "Why")
    return _section("What happened", _table("The newest events (UTC), newest first", head, rows))


def _checkpoints(page: ReportPage) -> str:
    shown = page.infos[-_ROWS_SHOWN:][::-1]
    by_id = {info.id: info for info in page.infos}
    has_runs = any(external_runs(info.metadata) for info in shown)
    rows = []
    for info in shown:
        parent = by_id.get(info.parent or "")
        damaged = ["DAMAGED"] if info.damaged else []
        unhealthy = [f"UNHEALTHY: {info.unhealthy}"] if info.unhealthy else []
        unchanged = [f"{unchanged_text(info.unchanged)} unchanged"] if info.unchanged else []
        row = (
            info.name,
            info.created[:19].replace("T", " "),
            size_text(info.logical_bytes),
            size_text(info.new_bytes),
            metrics_text(info.metrics),
            " ".join([", ".join(info.tags), *damaged, *unhealthy, *unchanged]).strip(),
            parent.name if parent and parent.run != info.run else "",
            *(["; ".join(map(str, external_runs(info.metadata)))] if has_runs else []),
        )
        rows.append(row)
    if not rows:
        return ""
    last = ("Tracked by",) if has_runs else ()
    head = ("Checkpoint", "Saved (UTC)", "Size", "New", "Metrics", "Tags", "Forked from", *last)
    table = _table(f"The newest {len(rows)} of {len(page.infos)}", head, rows, "  >>")
    details = f"<details><summary>{counted(len(rows), 'checkpoint')}</summary>{table}</details>"
    return _section("Checkpoints", details, _superseded(page))


def _superseded(page: ReportPage) -> str:
    """Return the table of superseded checkpoints, or "" if the store has none."""
    if not page.superseded:
        return ""
    alone = {one.id: one.alone_bytes for one in page.usage.checkpoints}
    rows = [
        (
            info.name,
            short_id(info.id),
            *map(size_text, (info.logical_bytes, alone.get(info.id, 0))),
            ", ".join(info.tags),
        )
        for info in page.superseded[-_ROWS_SHOWN:][::-1]
    ]
    caption = "Superseded: the step names a newer checkpoint, and these are named by their ids and tags"
    return _table(caption, ("Checkpoint", "Id", "Size", "Alone", "Tags"), rows, "  >>")
