"""The default configuration, composed once."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kvquant_eval.cli.config import compose


@pytest.fixture(scope="session")
def _composed() -> dict[str, Any]:
    return compose([])


@pytest.fixture
def config(_composed: dict[str, Any]) -> dict[str, Any]:
    """A copy to be changed."""
    return copy.deepcopy(_composed)
