"""Model folders, chat templates and engine arguments that cannot work, or that want to run something."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file

from tests.bad_input.case import Case
from tests.fakes.model import write_model

Change = Callable[[Path], object]
SCHEME = {
    "format": "dense",
    "quantization_status": "compressed",
    "config_groups": {},
    "ignore": [],
    "kv_cache_scheme": {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "tensor", "dynamic": False},
}
EVERYWHERE = "kv=[fp8_e4m3_ref]"
"""Native FP8 needs a CPU with AVX-512."""


def gate(folder: Path, *more: str) -> Sequence[str]:
    """A gate of the model in ``folder/model``."""
    model = ["model=folder", "model.id=test/x", f"model.path={folder}/model"]
    return ["gate", *model, f"runs_dir={folder}/runs", "tracking=none", *more]


def broken(change: Change, *more: str, **config: object) -> Callable[[Path], Sequence[str]]:
    """A small model with ``config`` in its config.json, then changed."""

    def make(folder: Path) -> Sequence[str]:
        change(write_model(folder / "model", config=config))
        return gate(folder, *more)

    return make


def with_arguments(*more: str, **config: object) -> Callable[[Path], Sequence[str]]:
    """A small model with ``config`` in its config.json, and arguments."""
    return broken(lambda model: None, *more, **config)


def with_template(text: bytes) -> Callable[[Path], Sequence[str]]:
    """A whole model and a chat template of the user's."""

    def make(folder: Path) -> Sequence[str]:
        (folder / "own.jinja").write_bytes(text)
        write_model(folder / "model")
        return gate(folder, f"model.chat_template={folder}/own.jinja", EVERYWHERE)

    return make


def write(name: str, text: str) -> Change:
    return lambda model: (model / name).write_text(text)


def remove(name: str) -> Change:
    return lambda model: (model / name).unlink()


def scale(value: float) -> Change:
    """K's scale of layer 1, and no other."""
    name = "model.layers.1.self_attn.k_scale"
    return lambda model: save_file({name: np.array([value], np.float32)}, model / "kv_scales.safetensors")


def link(name: str, target: str) -> Change:
    def change(model: Path) -> None:
        (model / name).unlink(missing_ok=True)
        (model / name).symlink_to(target)

    return change


def truncate(model: Path) -> None:
    file = model / "model.safetensors"
    os.truncate(file, file.stat().st_size - 1)


def pickles_only(model: Path) -> None:
    (model / "model.safetensors").rename(model / "pytorch_model.bin")


def code_in_tokenizer(model: Path) -> None:
    path = model / "tokenizer_config.json"
    asked = {"tokenizer_class": "Evil", "auto_map": {"AutoTokenizer": ["evil.Evil", None]}}
    path.write_text(json.dumps({**json.loads(path.read_text()), **asked}))


def two_templates(model: Path) -> None:
    (model / "chat_template.jinja").unlink()
    path = model / "tokenizer_config.json"
    both = [{"name": name, "template": "{{ messages }}"} for name in ("default", "tool_use")]
    path.write_text(json.dumps({**json.loads(path.read_text()), "chat_template": both}))


HEAD_SIZES = "32, 64, 80, 96, 112, 128, 160, 192, 224, 256, 512"
EVIL_MAP = {"AutoConfig": "evil.Config", "AutoModelForCausalLM": "evil.Model"}

CASES: Sequence[Case] = (
    Case(
        what="no model folder",
        make=gate,
        line="model.path: a model folder with a config.json, got '{folder}/model' (no such folder); correct the path",
    ),
    Case(
        what="a file as model folder",
        make=lambda folder: [(folder / "model").write_text(""), *gate(folder)][1:],
        line="model.path: a model folder with a config.json, got '{folder}/model' (not a folder); correct the path",
    ),
    Case(
        what="no config.json",
        make=broken(remove("config.json")),
        line="model.path: a model folder with a config.json, got '{folder}/model' (no config.json); correct the path",
    ),
    Case(
        what="config.json cut off",
        make=broken(write("config.json", '{"model_type": "llama",\n')),
        line="{folder}/model/config.json: JSON, got JSONDecodeError: Expecting property name enclosed in double "
        "quotes: line 2 column 1 (char 24); restore the file",
    ),
    Case(
        what="config.json a list",
        make=broken(write("config.json", "[]")),
        line="{folder}/model/config.json: a JSON object, got list; restore the file",
    ),
    Case(
        what="a billion layers in config.json",
        make=with_arguments(num_hidden_layers=10**9),
        line="{folder}/model/config.json: num_hidden_layers of at most the 20 tensors that the weights have, "
        "got 1000000000; restore the file",
    ),
    Case(
        what="no safetensors, only a pickle",
        make=broken(pickles_only),
        line="{folder}/model: weights as *.safetensors, got none; convert the model (pickles are not loaded)",
    ),
    Case(
        what="safetensors cut off by a byte",
        make=broken(truncate),
        line="{folder}/model/model.safetensors: whole safetensors, got SafetensorError: Error while deserializing "
        "header: incomplete metadata, file not fully covered; copy or download it again",
    ),
    Case(
        what="safetensors that are a web page",
        make=broken(write("model.safetensors", "<!DOCTYPE html>")),
        line="{folder}/model/model.safetensors: whole safetensors, got SafetensorError: Error while deserializing "
        "header: header too large; copy or download it again",
    ),
    Case(
        what="a KV scale of zero",
        make=broken(scale(0.0), EVERYWHERE),
        line="{folder}/model/kv_scales.safetensors: KV scales over 0 and finite, got 0.0 in "
        "model.layers.1.self_attn.k_scale; restore the file, or calibrate",
    ),
    Case(
        what="a KV scale that is no number",
        make=broken(scale(float("nan")), EVERYWHERE),
        line="{folder}/model/kv_scales.safetensors: KV scales over 0 and finite, got nan in "
        "model.layers.1.self_attn.k_scale; restore the file, or calibrate",
    ),
    Case(
        what="a KV scale lost",
        make=broken(scale(0.5), EVERYWHERE),
        line="{folder}/model: scales of K and of V in each layer, got none of V in layer 1; restore the checkpoint, or "
        "calibrate",
    ),
    Case(
        what="a kv_cache_scheme without scales",
        make=with_arguments(EVERYWHERE, quantization_config={"quant_method": "compressed-tensors", **SCHEME}),
        line="kv.fp8_e4m3_ref.scales: scales in a checkpoint whose config.json has a kv_cache_scheme, got none in "
        "{folder}/model; restore them, or say that you want none: kv.fp8_e4m3_ref.scales=unit",
    ),
    Case(
        what="a shard of the index is gone",
        make=broken(write("model.safetensors.index.json", '{"weight_map": {"a": "model-2.safetensors"}}')),
        line="{folder}/model/model.safetensors.index.json: every file of the weight_map in the folder, "
        "got no 'model-2.safetensors'; restore it",
    ),
    Case(
        what="a link out of the model folder",
        make=broken(link("tokenizer.json", "/etc/passwd")),
        line="{folder}/model/tokenizer.json: a file of the model folder, got a link to /etc/passwd; copy the file",
    ),
    Case(
        what="a pipe in the model folder",
        make=broken(lambda model: os.mkfifo(model / "generation_config.json")),
        line="{folder}/model/generation_config.json: a regular file, got a pipe, socket or device; remove it",
    ),
    Case(
        what="no tokenizer",
        make=broken(remove("tokenizer.json")),
        line="{folder}/model: a tokenizer that loads, got no tokenizer.json; restore the tokenizer's files",
    ),
    Case(
        what="a tokenizer that wants to run code",
        make=broken(code_in_tokenizer),
        line="{folder}/model/tokenizer_config.json: a tokenizer that runs no code of its folder, got auto_map "
        "{'AutoTokenizer': ['evil.Evil', None]}; read that code, then set model.trust_remote_code=true",
    ),
    Case(
        what="no chat template",
        make=broken(remove("chat_template.jinja")),
        line="model: a chat template, got none in {folder}/model; set model.chat_template to a Jinja file",
    ),
    Case(
        what="two chat templates",
        make=broken(two_templates),
        line="model: one chat template, got default, tool_use in {folder}/model; "
        "set model.chat_template to a Jinja file",
    ),
    Case(
        what="the model's chat template not in UTF-8",
        make=broken(lambda model: (model / "chat_template.jinja").write_bytes(b"caf\xe9")),
        line="{folder}/model/chat_template.jinja: UTF-8, got byte 0xe9 at offset 3; restore the file",
    ),
    Case(
        what="a chat template file that is not there",
        make=lambda folder: gate(folder, f"model.chat_template={folder}/own.jinja"),
        line="model.chat_template: a Jinja file, got {folder}/own.jinja (no such file); correct the path",
    ),
    Case(
        what="a chat template file not in UTF-8",
        make=with_template(b"\xff"),
        line="{folder}/own.jinja: UTF-8, got byte 0xff at offset 0; restore the file",
    ),
    Case(
        what="a syntax error in the chat template",
        make=with_template(b"{% for message in messages %}\n{{ message.content }\n{% endfor %}"),
        line="{folder}/own.jinja:2: a Jinja chat template, got unexpected '}'; correct it",
    ),
    Case(
        what="a chat template that reaches for Python",
        make=with_template(b"{{ ''.__class__.__mro__[1].__subclasses__() }}"),
        line="faq-outfitter-01/t00: the chat template must render, got SecurityError: access to attribute '__class__' "
        "of 'str' object is unsafe; correct the template",
    ),
    Case(
        what="a chat template without an end",
        make=with_template(b"{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"),
        line="faq-outfitter-01/t00: the chat template must render, got TimeoutError: no end after 5 s of CPU time; "
        "correct the template",
    ),
    Case(
        what="an unknown architecture",
        make=with_arguments(architectures=["LamaForCausalLM"]),
        line="{folder}/model/config.json: an architecture that vLLM runs, got 'LamaForCausalLM'; "
        "did you mean 'LlamaForCausalLM'?",
    ),
    Case(
        what="a model that wants to run code",
        make=with_arguments(model_type="evil", architectures=["EvilForCausalLM"], auto_map=EVIL_MAP),
        line="{folder}/model/config.json: a model that runs no code of its folder, got auto_map "
        "{'AutoConfig': 'evil.Config', 'AutoModelForCausalLM': 'evil.Model'}; read that code, then set "
        "model.trust_remote_code=true",
    ),
    Case(
        what="a model that does not generate",
        make=with_arguments("engine.args.max_model_len=4096", model_type="bert", architectures=["BertModel"]),
        line="{folder}/model/config.json: a model that generates text, got BertModel (pooling); choose another model",
    ),
    Case(
        what="a context beyond the model's",
        make=with_arguments("engine.args.max_model_len=9000"),
        line="engine.args.max_model_len: a value that vLLM takes here, got 9000 (User-specified max_model_len (9000) "
        "is greater than the derived max_model_len (max_position_embeddings=8192.0 or model_max_length=None in "
        "model's config.json)); correct it",
    ),
    Case(
        what="a context that takes no turn of a class",
        make=with_arguments(
            "engine.args.max_model_len=512", "workload=[faq,long_context]", "gate.hardest=faq", EVERYWHERE
        ),
        line="engine.args.max_model_len: a context that takes a turn of every class, got 512 and 'long_context' "
        "needs at least 915; raise it, or leave the class out of workload=[...]",
    ),
    Case(
        what="a context that is no number",
        make=with_arguments("engine.args.max_model_len=abc"),
        line="engine.args.max_model_len: Input should be a valid integer, got 'abc'; correct it",
    ),
    Case(
        what="heads that do not divide among the workers",
        make=with_arguments("engine.args.tensor_parallel_size=3"),
        line="engine.args.tensor_parallel_size: a value that vLLM takes here, got 3 (Total number of attention heads "
        "(2) must be divisible by tensor parallel size (3)); correct it",
    ),
    Case(
        what="random weights",
        make=with_arguments("engine.args.load_format=dummy"),
        line="engine.args.load_format: a format that reads the safetensors which are hashed, got 'dummy'; remove it",
    ),
    Case(
        what="a head size that the CPU does not have",
        make=with_arguments(head_dim=48),
        line=f"{{folder}}/model/config.json: a head size of vLLM's CPU attention ({HEAD_SIZES}), got 48; use a GPU",
    ),
    Case(
        what="a head size that FP8 on the CPU does not take",
        make=with_arguments(head_dim=80),
        line="kv.fp8_e4m3.dtype: a KV dtype that this CPU's attention takes, got 'fp8_e4m3' with heads of 80 "
        "(FP8 KV cache requires head_size divisible by 32 on CPU); use a GPU or a reference format",
    ),
    Case(
        what="a layer to skip that is not there",
        make=with_arguments(EVERYWHERE, "kv.fp8_e4m3_ref.skip_layers=['2']"),
        line="kv.fp8_e4m3_ref.skip_layers: layers 0 to 1, or sliding_window, got '2'; correct it",
    ),
    Case(
        what="a hub model while offline",
        make=lambda folder: [
            *("gate", "model=hub", "model.id=nobody/nothing", "model.revision=main", f"runs_dir={folder}/runs"),
            *("tracking=none", "+engine.env.HF_HUB_OFFLINE='1'"),
        ],
        line="model.id: a model of the hub, got nobody/nothing@main (LocalEntryNotFoundError: Cannot find an "
        "appropriate cached snapshot folder for the specified revision on the local disk and outgoing traffic has "
        "been disabled); correct the id, log in, or set model.source=folder model.path=...",
    ),
)
