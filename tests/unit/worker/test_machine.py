"""What is said about the machine: CPUs whose kernels differ must not be called the same."""

from __future__ import annotations

import pytest

from kvquant_eval.worker.machine import cpu_name

CORE = "processor : {core}\ncpu family : 6\nmodel : {model}\nmodel name : Intel(R) Xeon(R) Processor\nstepping : 2\n"


def cpuinfo(flags: str, model: int = 207) -> str:
    return "\n".join(CORE.format(core=core, model=model) + f"flags : fpu {flags}\n" for core in range(2))


def test_a_cpu_with_amx() -> None:
    name = cpu_name(cpuinfo("avx2 avx512f avx512_bf16 amx_bf16 amx_tile"))
    assert name == "Intel(R) Xeon(R) Processor 6/207/2 x2 (avx2, avx512f, avx512_bf16, amx_bf16)"


@pytest.mark.parametrize("other", [cpuinfo("avx2 avx512f"), cpuinfo("avx2 avx512f amx_bf16", model=143)])
def test_other_kernels_have_another_name(other: str) -> None:
    assert cpu_name(other) != cpu_name(cpuinfo("avx2 avx512f amx_bf16"))


def test_a_machine_that_says_nothing() -> None:
    assert cpu_name("").endswith(" ?/?/? x0 (no AVX2)")
