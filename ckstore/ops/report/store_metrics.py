"""What a store and its runs hold, as metrics: `ckstore metrics`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ckstore.fs import peek
from ckstore.model.reports.metrics import Metric, openmetrics
from ckstore.model.times import time_of_text
from ckstore.ops.context import Context
from ckstore.ops.mirrored import status_of
from ckstore.ops.refs.listing import infos
from ckstore.ops.report.metrics import write_text
from ckstore.ops.report.usage import usage


def metrics(context: Context, path: Path | None) -> str:
    """Return the metrics as text, and put them in the place of a file if a path is given."""
    text = openmetrics(store_metrics(context), str(context.layout.root), {})
    write_text(path, text, "the metrics")
    return text


def store_metrics(context: Context) -> list[Metric]:
    """Return the metrics; see `ckstore.Store.metrics`."""
    used = usage(context)
    listed = infos(context)
    free = peek.free_space(context.layout.path)
    newest = {info.run: info for info in listed}
    damaged = dict.fromkeys(newest, 0)
    for info in listed:
        damaged[info.run] += info.damaged

    def gauge(name: str, about: str, label: str, samples: dict[str, float]) -> Metric:
        return Metric(f"ckstore_{name}", "gauge", about, label, samples)

    kinds: dict[str, float] = {
        "alone": used.alone_bytes,
        "shared": used.shared_bytes,
        "unused": used.unused_bytes,
        "waiting": used.waiting_bytes,
        "free": free.free_bytes,
    }
    by_run: tuple[tuple[str, str, Callable[[str], float]], ...] = (
        ("run_newest_step", "Step of the newest checkpoint", lambda run: newest[run].step),
        ("run_newest_timestamp_seconds", "When the newest was saved", lambda run: _seconds(newest[run].created)),
        ("run_damaged", "Checkpoints that are marked as damaged", lambda run: damaged[run]),
    )
    held = (
        ("run_checkpoints", "Complete checkpoints", "checkpoint_count"),
        ("run_logical_bytes", "What copies of them would take", "logical_bytes"),
        ("run_alone_bytes", "What deleting the run would free", "alone_bytes"),
        ("run_shared_bytes", "Its part of what other runs hold too", "shared_bytes"),
    )
    metrics = [gauge("store_bytes", "Bytes of blobs by who holds them, and free on the filesystem", "kind", kinds)]
    metrics += [gauge(name, about, "run", {run: of(run) for run in newest}) for name, about, of in by_run]
    metrics += [
        gauge(name, about, "run", {one.run: getattr(one, field) for one in used.runs}) for name, about, field in held
    ]
    if (status := status_of(context, listed)) is not None:
        of_mirror = (
            ("mirror_behind", "Checkpoints that the mirror lacks", len(status.behind)),
            ("mirror_oldest_seconds", "For how long the oldest of them has been only here", status.oldest_s),
            ("mirror_age_seconds", "For how long one may be, by the settings", status.age_s),
        )
        metrics += [gauge(name, about, "remote", {status.remote: value}) for name, about, value in of_mirror]
    return metrics


def _seconds(created: str) -> float:
    return time_of_text(created).timestamp()
