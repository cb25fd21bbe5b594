"""Evaluate the facts that `ckstore.ops.report.doctor` gathers for `Store.doctor`, without I/O."""
