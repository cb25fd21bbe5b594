"""Implements `ckstore.remote.objects` for object storage and directories, and probes the abilities of a service."""
