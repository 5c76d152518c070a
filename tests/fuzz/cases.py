"""How many cases each fuzz test tries: 200 in the suite, more by the environment variable ``KVQUANT_FUZZ``."""

from __future__ import annotations

import os

CASES = int(os.environ.get("KVQUANT_FUZZ", "200"))
