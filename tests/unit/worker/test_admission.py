"""What vLLM says of models, arguments and treatments, before an engine starts."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from vllm.engine.arg_utils import EngineArgs

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.treatment import KVTreatment, Realisation
from kvquant_eval.worker.admission import OWN_ARGS, Admitted, admit, check_engine_args, check_formats
from tests.fakes.model import VOCABULARY, write_model
from tests.fakes.records import treatment

ARGS = {"dtype": "bfloat16", "enforce_eager": True}
BASELINE = KVTreatment(name="baseline", dtype="bfloat16")


@pytest.fixture
def takes_fp8(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU whose attention takes FP8, whichever runs the test."""
    monkeypatch.setattr("vllm.v1.attention.backends.cpu_attn._get_attn_isa", lambda *_: "vec")


@pytest.fixture(scope="module")
def small(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """A model of two layers and two heads of 32, with these keys in its config.json."""
    model = write_model(tmp_path_factory.mktemp("admission") / "model")
    whole = json.loads((model / "config.json").read_text())

    def make(**config: Any) -> Path:
        (model / "config.json").write_text(json.dumps({**whole, **config}))
        return model

    return make


def ask(model: Path, *treatments: KVTreatment, trust_remote_code: bool = False, **args: Any) -> Admitted:
    return admit(model, {**ARGS, **args}, [BASELINE, *treatments], trust_remote_code)


@pytest.mark.usefixtures("takes_fp8")
def test_context_and_vocabulary_are_vllms(small: Callable[..., Path]) -> None:
    everything = [treatment("fp8_e4m3"), treatment("nvfp4", Realisation.REFERENCE), treatment("fp8_e5m2")]
    assert ask(small(), *everything) == Admitted(context=8192, vocabulary=VOCABULARY)
    assert ask(small(), max_model_len=512).context == 512
    assert ask(small(max_position_embeddings=131_072)).context == 131_072


@pytest.mark.parametrize(
    ("args", "line"),
    [
        ({"max_model_len": 9000}, r"max_model_len: a value that vLLM takes here, got 9000 \(User-specified .*8192"),
        ({"tensor_parallel_size": 3}, r"tensor_parallel_size: .*got 3 \(Total number of attention heads \(2\) must"),
        ({"dtype": "bf16"}, r"dtype: .*got 'bf16' \(Input should be 'auto'"),
        ({"gpu_memory_utilization": 2.0}, r"gpu_memory_utilization: .*got 2\.0 \(Input should be less than or equal"),
        ({"quantization": "int3"}, r"quantization: .*got 'int3'"),
    ],
)
def test_values_that_vllm_refuses_are_named(small: Callable[..., Path], args: dict[str, Any], line: str) -> None:
    with pytest.raises(DataError, match=rf"^engine\.args\.{line}.*; correct it$") as caught:
        ask(small(), **args)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("max_num_seqs", "many", "Input should be a valid integer, got 'many'"),
        ("max_num_seqs", True, "Input should be a valid integer, got True"),
        ("kv_cache_memory_bytes", "2G", "Input should be a valid integer, got '2G'"),
        ("enforce_eager", "yes", "Input should be a valid boolean, got 'yes'"),
        ("load_format", 3, "Input should be a valid string, got 3"),
    ],
)
def test_values_of_another_type_are_named(name: str, value: Any, said: str) -> None:
    with pytest.raises(DataError, match=rf"^engine\.args\.{name}: {said}; correct it$"):
        check_engine_args({name: value})


@pytest.mark.parametrize("load_format", ["dummy", "pt", "npcache"])
def test_weights_that_are_not_hashed_are_refused(load_format: str) -> None:
    check_engine_args({"load_format": "safetensors"})
    with pytest.raises(DataError, match=rf"^engine\.args\.load_format: .*got '{load_format}'; remove it$"):
        check_engine_args({"load_format": load_format})


def test_a_context_that_only_an_engine_would_know_is_refused() -> None:
    with pytest.raises(DataError, match=r"^engine\.args\.max_model_len: .*got -1; set it in tokens$"):
        check_engine_args({"max_model_len": -1})


@pytest.mark.parametrize(
    ("name", "remedy"),
    [("LamaForCausalLM", r"did you mean 'LlamaForCausalLM'\?"), ("Zzz", r".*get_supported_archs\(\).* lists them")],
)
def test_an_unknown_architecture_gets_a_near_one_or_the_list(
    small: Callable[..., Path], name: str, remedy: str
) -> None:
    with pytest.raises(DataError, match=rf"config\.json: an architecture that vLLM runs, got '{name}'; {remedy}$"):
        ask(small(architectures=[name]))


def test_an_unknown_type_of_model_is_one_line(small: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"config\.json: a model that vLLM takes, got .*`zzz`.*; correct the model$"):
        ask(small(model_type="zzz"))


def test_a_dtype_that_vllm_refuses_is_the_treatments(small: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"^kv\.arm\.dtype: a KV dtype that vLLM takes .*, got 'int3' \(Input should "):
        ask(small(), treatment("int3"))


@pytest.mark.parametrize("keys", [{"architectures": 5}, {"quantization_config": [1]}, {"rope_scaling": "x"}])
def test_configurations_of_other_shapes_are_one_line(small: Callable[..., Path], keys: dict[str, Any]) -> None:
    with pytest.raises(DataError, match=r"config\.json: a") as caught:
        ask(small(**keys))
    assert "\n" not in str(caught.value)


def test_configurations_of_wrong_types_are_one_line(small: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"config\.json: a model that vLLM takes, got .*hidden_size.*; correct"):
        ask(small(hidden_size="abc"))


@pytest.mark.parametrize("size", [16, 24, 48, 72])
def test_head_sizes_that_the_cpu_does_not_have(small: Callable[..., Path], size: int) -> None:
    with pytest.raises(DataError, match=rf"a head size of vLLM's CPU attention \(32, 64, .*\), got {size}; use a GPU$"):
        ask(small(head_dim=size))


def test_fp8_on_the_cpu_needs_heads_of_32(small: Callable[..., Path]) -> None:
    ask(small(head_dim=80), treatment("int8", Realisation.REFERENCE))
    with pytest.raises(
        DataError, match=r"^kv\.arm\.dtype: .*got 'fp8' with heads of 80 \(.*divisible by 32.*\); use a"
    ):
        ask(small(head_dim=80), treatment("fp8"))


def test_fp8_on_the_cpu_needs_its_instructions(small: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("_is_amx_tile_supported", "_is_avx512_supported"):
        monkeypatch.setattr(f"torch.cpu.{name}", lambda: False)
    ask(small())
    with pytest.raises(DataError, match=r"^kv\.arm\.dtype: .*got 'fp8_e5m2' with heads of 32 \(.*AVX-512.*\); use a"):
        ask(small(), treatment("fp8_e5m2"))


@pytest.mark.usefixtures("takes_fp8")
@pytest.mark.parametrize("entry", ["2", "-1", "x", "10"])
def test_layers_to_skip_must_be_there(small: Callable[..., Path], entry: str) -> None:
    for realisation in Realisation:
        ask(small(), treatment("fp8_e4m3", realisation, "0", "1", "sliding_window"))
        with pytest.raises(DataError, match=rf"^kv\.arm\.skip_layers: layers 0 to 1, .*got '{entry}'; correct it$"):
            ask(small(), treatment("fp8_e4m3", realisation, "0", entry))


MLA = {
    "model_type": "deepseek_v2",
    "architectures": ["DeepseekV2ForCausalLM"],
    "kv_lora_rank": 64,
    "q_lora_rank": None,
    "qk_nope_head_dim": 32,
    "qk_rope_head_dim": 32,
    "v_head_dim": 32,
}


def test_reference_formats_need_separate_k_and_v(small: Callable[..., Path]) -> None:
    assert ask(small(**MLA)).context == 8192
    found = r"got DeepseekV2ForCausalLM, which stores them as one latent \(MLA\)"
    with pytest.raises(DataError, match=rf"^kv\.arm\.dtype: a reference format needs separate K and V, {found}; "):
        ask(small(**MLA), treatment("int8", Realisation.REFERENCE))
    placebo = KVTreatment(name="placebo", dtype="placebo", realisation=Realisation.REFERENCE)
    with pytest.raises(DataError, match=rf"^gate\.placebo: .*{found}; set gate\.placebo=batch_limit$"):
        ask(small(**MLA), placebo)


def test_a_model_without_a_kv_cache_is_refused(small: Callable[..., Path]) -> None:
    with pytest.raises(DataError, match=r"a model with a KV cache, got MambaForCausalLM; choose another model$"):
        ask(small(model_type="mamba", architectures=["MambaForCausalLM"], state_size=16))


def test_unknown_reference_formats_get_the_nearest() -> None:
    check_formats([treatment("int8", Realisation.REFERENCE), treatment("anything")])
    with pytest.raises(DataError, match=r"^kv\.arm\.dtype: a reference format, got 'int9'; did you mean 'int8'\?"):
        check_formats([treatment("int9", Realisation.REFERENCE)])
    mixed = KVTreatment(name="arm", k="bfloat16", v="nvfp5", realisation=Realisation.REFERENCE)
    with pytest.raises(DataError, match=r"^kv\.arm\.v: a reference format, got 'nvfp5'; did you mean 'nvfp4'\?"):
        check_formats([mixed])


def test_unknown_engine_arguments_get_the_nearest() -> None:
    check_engine_args({"tensor_parallel_size": 4})
    with pytest.raises(DataError, match=r"^engine\.args\.tensor_paralel_size: .*tensor_parallel_size"):
        check_engine_args({"tensor_paralel_size": 4})


@pytest.mark.parametrize("name", OWN_ARGS)
def test_arguments_of_the_gate_are_not_the_users(name: str) -> None:
    """With processed log probabilities, say, every forced token would have a probability of 1 at every dtype."""
    with pytest.raises(DataError, match=rf"^engine\.args\.{name}: not an argument that the gate sets itself, got it; "):
        check_engine_args({name: "x"})
    assert name in {field.name for field in dataclasses.fields(EngineArgs)}
