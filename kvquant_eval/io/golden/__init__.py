"""Golden sets on disk: loaded and pinned (``store``), imported from recordings (``importers``)."""

from kvquant_eval.io.golden.manifest import MANIFEST
from kvquant_eval.io.golden.store import LONGEST_LINE, load, pin, verify, write_manifest

__all__ = ["LONGEST_LINE", "MANIFEST", "load", "pin", "verify", "write_manifest"]
