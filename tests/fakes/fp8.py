"""FP8 candidates that this machine can run."""

from __future__ import annotations

import shutil
from pathlib import Path

NATIVE = "avx512f" in Path("/proc/cpuinfo").read_text(encoding="utf-8") or shutil.which("nvidia-smi") is not None
"""Whether the attention of this machine stores FP8."""
E4M3, E5M2 = ("fp8_e4m3", "fp8_e5m2") if NATIVE else ("fp8_e4m3_ref", "fp8_e5m2_ref")
