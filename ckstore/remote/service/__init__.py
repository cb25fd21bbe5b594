"""Object storage behind `ckstore.remote.objects`: the engine, and probes of the features of a service."""
