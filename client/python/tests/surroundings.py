"""The environment of a test."""

from __future__ import annotations

import os
import unittest
from collections.abc import Callable
from functools import wraps
from typing import Any
from unittest.mock import patch

_VARIABLES = ("GPULEASE_LEASE", "GPULEASE_TOKEN")

#: For tests of what the broker says: they run under `gpulease run`.
in_a_lease = unittest.skipUnless("GPULEASE_LEASE" in os.environ, "not under `gpulease run`")


def without_a_lease(test: Callable[..., Any]) -> Callable[..., Any]:
    """The test as it would be outside of a lease."""

    @wraps(test)
    def outside(*arguments: Any) -> Any:
        kept = {name: value for name, value in os.environ.items() if name not in _VARIABLES}
        with patch.dict(os.environ, kept, clear=True):
            return test(*arguments)

    return outside
