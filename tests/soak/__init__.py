"""Long runs: several processes at one store, and rotation for weeks; a short form of each is in ``make test``."""
