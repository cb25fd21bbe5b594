"""Object storage behind `ckstore.remote.objects`: the engine, and what a service was seen to do."""
