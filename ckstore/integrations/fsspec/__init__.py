"""The filesystem for fsspec, ``ckstore:///path/to/store/RUN/STEP/FILE``. fsspec finds it when ckstore is installed."""

from __future__ import annotations

import fsspec

from ckstore.integrations.fsspec.filesystem import CkstoreFileSystem

fsspec.register_implementation(CkstoreFileSystem.protocol, CkstoreFileSystem, clobber=True)

__all__ = ["CkstoreFileSystem"]
