"""What `Store.doctor` judges: facts become findings. Pure; `ckstore.ops.report.doctor` gathers the facts."""
