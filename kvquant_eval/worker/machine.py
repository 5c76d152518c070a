"""The machine and the installed versions an arm runs on."""

from __future__ import annotations

import platform
from importlib.metadata import version
from pathlib import Path

import vllm
from vllm.platforms import current_platform


def versions() -> dict[str, str]:
    """VLLM (whichever distribution it came from), Python, torch and transformers."""
    return {
        "vllm": str(vllm.__version__),
        "python": platform.python_version(),
        **{package: version(package) for package in ("torch", "transformers")},
    }


def device_name() -> str:
    """The accelerator's name, or the CPU's model name with its core count."""
    if not current_platform.is_cpu():
        return str(current_platform.get_device_name())
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    cores = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return f"{cores[0] if cores else platform.machine()} x{len(cores)}"
