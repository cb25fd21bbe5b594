"""What `Store.doctor` judges: facts become findings. Pure; `ckstore.ops.doctor` gathers the facts."""
