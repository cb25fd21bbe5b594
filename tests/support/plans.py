"""The retention plan of a dry run."""

from __future__ import annotations

from ckstore import RetentionPolicy, Store
from ckstore.provisional import RetentionPlan


def plan_of(store: Store, policy: RetentionPolicy | None = None, run: str | None = None) -> RetentionPlan:
    """Return what `prune` would keep and drop."""
    report = store.prune(policy, run, dry_run=True).retention
    if report is None:
        raise TypeError("a dry run of prune reported no plan")
    return report.plan
