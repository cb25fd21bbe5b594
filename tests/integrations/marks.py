"""What all tests that train with a framework are marked with."""

from __future__ import annotations

import pytest

TRAINS = [
    pytest.mark.slow,
    pytest.mark.integration,
    pytest.mark.filterwarnings("default"),  # those of the framework are not ours
]
