"""The judgements of `Store.doctor`, without I/O. `ckstore.ops.report.doctor` gathers the facts."""
