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


_KERNELS = ("avx2", "avx512f", "avx512_bf16", "amx_bf16")
"""Instruction sets that vLLM and oneDNN have kernels of their own for: other kernels, other bits."""


def device_name() -> str:
    """The accelerator's name, or the CPU's with what makes its kernels: model, number of cores, instruction sets."""
    if not current_platform.is_cpu():
        return str(current_platform.get_device_name())
    return cpu_name(Path("/proc/cpuinfo").read_text(encoding="utf-8"))


def cpu_name(cpuinfo: str) -> str:
    """``<model name> <family>/<model>/<stepping> x<cores> (<instruction sets>)`` of the text of /proc/cpuinfo.

    A virtual machine may call every CPU by the same model name.
    """
    pairs = [line.split(":", 1) for line in cpuinfo.splitlines() if ":" in line]
    facts = {key.strip(): value.strip() for key, value in pairs}
    cores = sum(key.strip() == "processor" for key, _ in pairs)
    numbers = "/".join(facts.get(key, "?") for key in ("cpu family", "model", "stepping"))
    sets = [name for name in _KERNELS if name in facts.get("flags", "").split()]
    return f"{facts.get('model name', platform.machine())} {numbers} x{cores} ({', '.join(sets) or 'no AVX2'})"
