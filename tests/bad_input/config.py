"""Configurations that mean nothing. All are refused before anything starts; a fake engine stands by all the same."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.bad_input.case import Case

BASE = (
    "runs_dir={folder}/runs",
    "cache_dir={folder}/cache",
    "tracking=none",
    "engine.engine=tests.fakes.engine:FakeEngine",
    "engine.preparer=tests.fakes.engine:prepare",
)
CALIBRATION = {
    "schema_version": 1,
    "model": "org/other",
    "revision": None,
    "weights_sha256": "other",
    "golden": "set 1",
    "model_dtype": "bfloat16",
    "golden_sha256": "",
    "folds": [0],
    "conversations": ["00"],
    "per": "layer",
    "k_format": "fp8_e4m3",
    "v_format": "fp8_e4m3",
}
FOREIGN = "{folder}/conf/kv/mixed.yaml"


def _case(
    what: str, *overrides: str, line: str, environment: Mapping[str, str] | None = None, verb: str = "gate"
) -> Case:
    """A gate with ``overrides``; what stands in ``BASE`` under the same key gives way."""
    said = {override.partition("=")[0] for override in overrides}

    def make(folder: Path) -> Sequence[str]:
        base = [item.format(folder=folder) for item in BASE if item.partition("=")[0] not in said]
        return [verb, *base, *overrides]

    return Case(what=what, make=make, line=line, environment=environment or {})


def _scales(what: str, scale: str | None, choice: str = "kv=[fp8_e4m3_ref]", *, line: str) -> Case:
    """A reference candidate with a file of scales (None: no file), of one layer with ``scale`` for K; or no JSON."""
    name = choice[4:-1]
    half = '{{"largest": [1.0], "scales": [{}]}}'

    def make(folder: Path) -> Sequence[str]:
        layer = f'{{"index": 0, "k": {half.format(scale)}, "v": {half.format("1.0")}}}'
        said = json.dumps({**CALIBRATION, "layers": []}).replace('"layers": []', f'"layers": [{layer}]')
        if scale is not None:
            (folder / "scales.json").write_text(said if len(scale) > 1 else scale)
        base = [item.format(folder=folder) for item in BASE]
        return ["gate", *base, choice, f"kv.{name}.scales=calibrated", f"kv.{name}.scales_from={folder}/scales.json"]

    return Case(what=what, make=make, line=line)


def _yaml(what: str, text: str | bytes, line: str) -> Case:
    """A gate with a KV treatment in a folder of the user's own."""

    def make(folder: Path) -> Sequence[str]:
        path = Path(FOREIGN.format(folder=folder))
        path.parent.mkdir(parents=True)
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
        return ["gate", "--config-dir", f"{folder}/conf", *(item.format(folder=folder) for item in BASE), "kv=[mixed]"]

    return Case(what=what, make=make, line=line)


def _stored(what: str, text: str, line: str) -> Case:
    """A run folder whose ``config.yaml`` came from somewhere."""

    def make(folder: Path) -> Sequence[str]:
        (folder / "config.yaml").write_text(text)
        return ["regate", str(folder)]

    return Case(what=what, make=make, line=line)


NAMED = (
    _case(
        "a misspelt key",
        "gate.min_turn=3",
        line="gate.min_turn: a known key, got 'min_turn'; did you mean 'min_turns'?",
    ),
    _case(
        "a key that is not there",
        "sampling.beams=4",
        line="sampling.beams: a known key, got 'beams'; choose from epochs, seed, temperature, top_k, top_p",
    ),
    _case("a misspelt group", "modle=hub", line="modle: a known key, got 'modle'; did you mean 'model'?"),
    _case(
        "a misspelt key of a group",
        "sampling.temprature=1",
        line="sampling.temprature: a known key, got 'temprature'; did you mean 'temperature'?",
    ),
    _case(
        "a group for its place",
        "workload.faq.scores.gl_reply.margin=1",
        line="workload: a known key, got 'workload'; did you mean 'workloads'?",
    ),
    _case(
        "a misspelt score",
        "workloads.faq.scores.gl_repl.margin=1",
        line="workloads.faq.scores.gl_repl: a known key, got 'gl_repl'; did you mean 'gl_reply'?",
    ),
    _case(
        "a new key in a score",
        "+workloads.faq.scores.gl_reply.margn=1",
        line="workloads.faq.scores.gl_reply.margn: a known key, got 'margn'; did you mean 'margin'?",
    ),
    _case("a new key at the top", "+mode=fast", line="mode: a known key, got 'mode'; did you mean 'model'?"),
    _case(
        "a misspelt choice",
        "gate=defualt",
        line="gate: one of the files in conf/gate, got 'defualt'; did you mean 'default'?",
    ),
    _case(
        "a misspelt choice of several",
        "kv=[fp8_e4m4]",
        line="kv: one of the files in conf/kv, got 'fp8_e4m4'; did you mean 'fp8_e4m3'?",
    ),
    _case(
        "a choice unlike any",
        "engine=trt",
        line="engine: one of the files in conf/engine, got 'trt'; choose from vllm, vllm_cpu",
    ),
    _case(
        "a misspelt scorer",
        "scorer@workloads.faq.scores.match.scorer=mtch",
        line="scorer: one of the files in conf/scorer, got 'mtch'; did you mean 'match'?",
    ),
    _case(
        "a misspelt setting of a scorer",
        "scorer.code.second=5",
        line="scorer.code.second: a known key, got 'second'; did you mean 'seconds'?",
    ),
    _case(
        "a misspelt dtype",
        "kv.fp8_e4m3.dtype=fp8_e4m",
        line="kv.fp8_e4m3.dtype: a KV dtype of vLLM, got 'fp8_e4m'; did you mean 'fp8_e4m3'?",
    ),
    _case(
        "a misspelt policy rule",
        "gate.rule=zero_flag",
        line="gate.rule: one of zero_flags, default, strict, got 'zero_flag'; did you mean 'zero_flags'?",
    ),
    _case(
        "a misspelt replay mode",
        "replay.mode=free",
        line="replay.mode: one of golden_prefix, free_running, got 'free'; choose from golden_prefix, free_running",
    ),
    _case(
        "an unknown way on after a divergence",
        "replay.on_divergence=golden_",
        line="replay.on_divergence: one of stop, golden, error_message, got 'golden_'; did you mean 'golden'?",
    ),
    _case(
        "a mode that may decide something else",
        "gate.modes.free_running=decide",
        line="gate.modes.free_running: one of gate, bound, report, got 'decide'; choose from gate, bound, report",
    ),
    _case(
        "no mode that gates",
        "gate.modes.golden_prefix=bound",
        line="workloads.faq.scores: at least one score with role gate, got none; "
        "let the other mode of gate.modes gate, and run it",
    ),
    _case(
        "a key of Hydra's own",
        "hydra.run.dir=x",
        line="hydra.run.dir: a key of the gate, got one of Hydra's own; leave it out",
    ),
    _case(
        "a name that a candidate may not have",
        "+kv.baseline.dtype=fp8_e4m3",
        line="kv: candidates beside baseline, baseline_eager, repeat, placebo, got 'baseline'; give it another name",
    ),
    _case(
        "a candidate named like a path",
        "+kv={a/../b:{dtype:fp8_e4m3}}",
        line="kv: names of letters, digits and _ . + -, at most 80 of them and no mark first, got 'a/../b'; rename it",
    ),
)
WRITTEN = (
    _case("no value", "nonsense", line="'nonsense': key=value, got no '='; write nonsense=VALUE"),
    _case(
        "a bracket left open",
        "kv=[fp8_e4m3",
        line="'kv=[fp8_e4m3': key=value, got an end too soon; close what it opens",
    ),
    _case(
        "a character out of place",
        "kv.a/b.dtype=fp8",
        line=(
            "'kv.a/b.dtype=fp8': key=value, got '/' at character 5; a key is names with dots, and a value "
            "with special characters stands in quotes: \"key='...'\""
        ),
    ),
    _case(
        "a list without brackets",
        "kv=fp8_e4m3,fp8_e5m2",
        line="kv: one value, got 'fp8_e4m3,fp8_e5m2'; for a list write kv=[fp8_e4m3,fp8_e5m2]",
    ),
    _case(
        "one thing said twice",
        "gate.min_turns=20",
        "gate.min_turns=200",
        line="gate.min_turns: one value, got '20' and '200'; leave one of them out",
    ),
    _case(
        "a value for what is left out",
        "~engine.args.seed=0",
        line="engine.args.seed: a key to leave out, without a value, got '0'; write ~engine.args.seed",
    ),
    _case(
        "a choice twice",
        "kv=[fp8_e4m3,fp8_e4m3]",
        line="kv: each choice once, got 'fp8_e4m3' twice; leave one of them out",
    ),
    _case(
        "no choice",
        "gate=null",
        line=(
            "gate: the name of one of the files in conf/gate, got 'null'; choose from custom, default, strict, "
            "zero_flags"
        ),
    ),
    _case("a second choice", "+model=hub", line="model: one choice, got a second one; write model=... without +"),
    _case(
        "a variable that is not set",
        "golden.path=${oc.env:KVQUANT_NOT_SET}",
        line=(
            "golden.path: a value, got ${...} without one (\"Environment variable 'KVQUANT_NOT_SET' not "
            'found"); correct it'
        ),
    ),
)
TYPED = (
    _case(
        "a word for a number",
        "gate.min_turns=many",
        line="gate.min_turns: a whole number, got 'many'; write it in digits",
    ),
    _case(
        "a share for a count", "gate.min_turns=3.5", line="gate.min_turns: a whole number, got 3.5; write it in digits"
    ),
    _case(
        "a switch for a count",
        "engine.retries=true",
        line="engine.retries: a whole number, got true; write it in digits",
    ),
    _case(
        "a number for a text",
        "model.revision=1234567",
        line="model.revision: text, got 1234567; put it in quotes: '1234567'",
    ),
    _case(
        "a word for a list",
        "gate.require=fp8_e4m3",
        line="gate.require: a list, got 'fp8_e4m3'; write it in brackets: [...]",
    ),
    _case("a number for a group", "sampling=3", line="sampling: keys and values, got 3; set sampling.KEY=..."),
    _case("null for a text", "runs_dir=null", line="runs_dir: text, got null; set it"),
    _case(
        "a number for a variable of the environment",
        "engine.slots=[{CUDA_VISIBLE_DEVICES:0}]",
        line="engine.slots.0.CUDA_VISIBLE_DEVICES: text, got 0; put it in quotes: '0'",
    ),
    _case("a mandatory value not given", "model=hub", line="model.id: a value, got none; set it: model.id=..."),
    _case("a mandatory value taken away", "~gate.name", line="gate.name: a value, got none; set it: gate.name=..."),
)
RANGES = (
    _case(
        "no time for code",
        "scorer.code.seconds=0",
        line="scorer.code.seconds: at least 1 and up to 3600, got 0.0; such as scorer.code.seconds=10",
    ),
    _case(
        "a temperature that vLLM would change",
        "sampling.temperature=0.001",
        line=(
            "sampling.temperature: 0 or at least 0.01 (vLLM clamps what is between), got 0.001; such as "
            "sampling.temperature=0.7"
        ),
    ),
    _case(
        "a probability over 1",
        "sampling.temperature=1",
        "sampling.top_p=1.5",
        line="sampling.top_p: above 0 and up to 1, got 1.5; such as sampling.top_p=1.0",
    ),
    _case(
        "no number at all",
        "sampling.top_p=nan",
        line="sampling.top_p: above 0 and up to 1, got nan; such as sampling.top_p=1.0",
    ),
    _case(
        "a negative seed",
        "sampling.seed=-1",
        line="sampling.seed: at least 0 and up to 9223372036854775807, got -1; such as sampling.seed=0",
    ),
    _case(
        "no time to answer",
        "engine.timeout_s=0",
        line="engine.timeout_s: above 0 and up to 604800, got 0.0; such as engine.timeout_s=1800",
    ),
    _case(
        "endless patience",
        "engine.timeout_s=inf",
        line="engine.timeout_s: above 0 and up to 604800, got inf; such as engine.timeout_s=1800",
    ),
    _case(
        "a negative count",
        "engine.retries=-1",
        line="engine.retries: at least 0 and up to 100, got -1; such as engine.retries=2",
    ),
    _case(
        "more log probabilities than vLLM gives",
        "engine.top_logprobs=21",
        line="engine.top_logprobs: at least 1 and up to 20, got 21; such as engine.top_logprobs=20",
    ),
    _case(
        "a level of 0",
        "gate.hold_level=0",
        line="gate.hold_level: above 0 and below 1, got 0.0; such as gate.hold_level=0.01",
    ),
    _case(
        "a margin of 0 points",
        "workloads.faq.scores.gl_reply.margin=0",
        line="workloads.faq.scores.gl_reply.margin: points above 0 and up to 100, got 0.0; correct the class's scores",
    ),
    _case(
        "a block of one request",
        "block_requests=1",
        line="block_requests: at least 2, got 1; such as block_requests=64",
    ),
    _case(
        "a layer that has no number",
        "kv.fp8_e4m3.skip_layers=[first]",
        line="kv.fp8_e4m3.skip_layers: layer numbers or sliding_window, got 'first'; such as ['0','29']",
    ),
    _case(
        "half a layer for an engine's own dtype",
        "kv.fp8_e4m3.skip_layers=['7.k']",
        line=(
            "kv.fp8_e4m3.skip_layers: what a native dtype can do (an engine stores K and V of a layer alike), got "
            "'7.k'; set kv.fp8_e4m3.realisation=reference"
        ),
    ),
    _case(
        "a format of V's own for an engine's own dtype",
        "+kv.fp8_e4m3.v=nvfp4",
        line=(
            "kv.fp8_e4m3.v: what a native dtype can do (an engine stores K and V of a layer alike), got 'nvfp4'; set "
            "kv.fp8_e4m3.realisation=reference"
        ),
    ),
    _case(
        "a candidate with a format for K only",
        "+kv.mine={k: nvfp4, realisation: reference}",
        line="kv.mine.dtype: a KV dtype, got none; set kv.mine.dtype=..., or kv.mine.k and kv.mine.v",
    ),
    _case(
        "a third format beside those of K and V",
        "kv=[k8v4_ref]",
        "+kv.k8v4_ref.dtype=int8",
        line="kv.k8v4_ref.dtype: no third format where K and V have their own, got 'int8'; leave it out",
    ),
    _case(
        "a reference that rounds nothing",
        "+kv.mine={dtype: bfloat16, realisation: reference}",
        line="kv.mine.dtype: a format to round K or V to, got 'bfloat16'; name one",
    ),
    _case(
        "scales for a format whose scales follow the values",
        "kv=[int8_ref]",
        "+kv.int8_ref.scales=unit",
        line=(
            "kv.int8_ref.scales: a format of a fixed range (fp8_e4m3, fp8_e5m2, nvfp4) where scales are unit, got "
            "'int8'; leave scales out"
        ),
    ),
    _case(
        "calibrated scales for a native dtype",
        "kv.fp8_e4m3.scales=calibrated",
        line=(
            "kv.fp8_e4m3.scales: checkpoint or unit for a native dtype, as an engine takes scales from its checkpoint "
            "alone, got 'calibrated'; gate the checkpoint that calibrate exported, or set "
            "kv.fp8_e4m3.realisation=reference"
        ),
    ),
    _case(
        "calibrated scales out of nowhere",
        "kv=[fp8_e4m3_ref]",
        "kv.fp8_e4m3_ref.scales=calibrated",
        line=(
            "kv.fp8_e4m3_ref.scales_from: scales.json of a calibration, got none; set kv.fp8_e4m3_ref.scales_from=..."
        ),
    ),
    _scales(
        "no file of scales",
        None,
        line="{folder}/scales.json: scales.json of a calibration, got No such file or directory; correct the path",
    ),
    _scales(
        "scales that are no JSON",
        "{",
        line="{folder}/scales.json: line: Invalid JSON: EOF while parsing an object at line 1 column 1, got '{'",
    ),
    _scales(
        "a scale of zero",
        "0.0",
        line="{folder}/scales.json: scales over 0 and finite, got 0.0 for K of layer 0; calibrate again",
    ),
    _scales(
        "a scale that is no number",
        "NaN",
        line="{folder}/scales.json: scales over 0 and finite, got nan for K of layer 0; calibrate again",
    ),
    _scales(
        "scales of another format",
        "1.0",
        "kv=[fp8_e5m2_ref]",
        line=(
            "kv.fp8_e5m2_ref.scales_from: scales for fp8_e5m2, got those for fp8_e4m3; calibrate with this candidate: "
            "kv=[fp8_e5m2_ref]"
        ),
    ),
    _case(
        "a calibration for two formats",
        "kv=[fp8_e4m3,fp8_e5m2]",
        verb="calibrate",
        line=(
            "kv: candidates of one format with a fixed range (fp8_e4m3, fp8_e5m2, nvfp4), got fp8_e4m3, fp8_e5m2; "
            "calibrate for one of them: kv=[...]"
        ),
    ),
    _case(
        "a calibration of what is no part of a layer",
        "calibrate.per=token",
        verb="calibrate",
        line="calibrate.per: one of layer, head, got 'token'; choose from layer, head",
    ),
    _case(
        "a number that JSON lacks, for the engine",
        "engine.args.gpu_memory_utilization=nan",
        line=(
            "engine.args.gpu_memory_utilization: a value that JSON has: no NaN, no infinity, no broken "
            "text, got 'nan'; correct it"
        ),
    ),
)
CONTRADICTIONS = (
    _case("no candidate", "kv=[]", line="kv: at least one candidate, got none; name one, such as kv=[fp8_e4m3]"),
    _case(
        "no workload class",
        "workload=[]",
        line="workload: at least one class, got none; name one, such as workload=[faq]",
    ),
    _case(
        "a hardest class that is not among the classes",
        "workload=[faq]",
        line="gate.hardest: one of the workload classes (faq), got 'math_chain'; choose from faq",
    ),
    _case(
        "a candidate required that is not run",
        "gate.require=[fp8_e5m2]",
        line="gate.require: names of candidates, got 'fp8_e5m2'; choose from ['fp8_e4m3']",
    ),
    _case(
        "epochs without sampling",
        "sampling.epochs=4",
        line="sampling.epochs: 1 when greedy (every epoch would be the same), got 4; set sampling.temperature too",
    ),
    _case(
        "a gating score that executes code, without bubblewrap",
        "workloads.coding.scores.code.role=gate",
        line=(
            "workloads.coding.scores.code: strong isolation for code that is executed, got none (bubblewrap is not "
            "installed); install bubblewrap, or set scorer.code.allow_execution=true, which README.md explains"
        ),
        environment={"PATH": "/nowhere"},
    ),
    _case(
        "a range profile where no hook can run",
        "engine=vllm",
        "gate.placebo=batch_limit",
        "report.range_profile=true",
        line=(
            "report.range_profile: an eager baseline to look into, got none (a compiled engine ignores hooks); set "
            "engine.args.enforce_eager=true or gate.placebo=jitter"
        ),
    ),
    _case(
        "no place for an engine",
        "engine.slots=[]",
        line="engine.slots: at least one, got []; for one arm at a time: engine.slots=[{}]",
    ),
    _case(
        "a quantized baseline",
        "baseline.dtype=fp8_e4m3",
        line=(
            "baseline.dtype: a dtype that is not quantized (bfloat16, auto, float16), got 'fp8_e4m3'; set "
            "baseline.dtype=bfloat16"
        ),
    ),
    _case(
        "a class that no score decides",
        "workloads.faq.scores={gl_reply:{role:bound},gl_span:{role:bound}}",
        line="workloads.faq.scores: at least one score with role gate, got none; add one",
    ),
    _case(
        "a run logged nowhere in particular",
        "tracking.uri=sqlite:///x.db",
        line="tracking.experiment: a name where tracking.uri is set, got none; or choose tracking=none",
    ),
)
FILES = (
    Case(
        what="a configuration folder that is not there",
        make=lambda folder: ["gate", "--config-dir", f"{folder}/conf"],
        line="--config-dir: a folder, got '{folder}/conf'; correct the path",
    ),
    _yaml(
        "YAML cut short",
        "# @package kv.mixed\ndtype: [fp8_e4m3\n",
        line=(
            "{folder}/conf/kv/mixed.yaml:3:1: YAML in UTF-8, got an error (expected ',' or ']', but got "
            "'<stream end>'); correct it"
        ),
    ),
    _yaml(
        "a key twice",
        "# @package kv.mixed\ndtype: fp8_e4m3\ndtype: fp8_e5m2\n",
        line="{folder}/conf/kv/mixed.yaml:3:1: YAML in UTF-8, got an error (found duplicate key dtype); correct it",
    ),
    _yaml(
        "YAML in Latin-1",
        "# @package kv.mixed\ndtype: café\n".encode("latin-1"),
        line=(
            "{folder}/conf/kv/mixed.yaml: YAML in UTF-8, got an error ('utf-8' codec can't decode byte 0xe9 "
            "in position 30: invalid continuation byte); correct it"
        ),
    ),
    _yaml(
        "YAML that asks for Python",
        "# @package kv.mixed\ndtype: !!python/object/apply:os.system [ls]\n",
        line=(
            "{folder}/conf/kv/mixed.yaml:2:8: YAML in UTF-8, got an error (could not determine a "
            "constructor for the tag 'tag:yaml.org,2002:python/object/apply:os.system'); correct it"
        ),
    ),
    _yaml(
        "no @package line",
        "dtype: fp8_e4m3\n",
        line=(
            "kv.dtype: keys and values such as dtype, got 'fp8_e4m3'; a yaml of your own begins with '# "
            "@package kv.NAME'"
        ),
    ),
)
SCORERS = (
    _case(
        "a misspelt scorer class",
        "workloads.faq.scores.match.scorer._target_=kvquant_eval.core.scorers.text.Macth",
        line=(
            "workloads.faq.scores.match.scorer._target_: a scorer class as module.Class, got "
            "'kvquant_eval.core.scorers.text.Macth'; did you mean 'kvquant_eval.core.scorers.text.Match'?"
        ),
    ),
    _case(
        "a function for a scorer",
        "workloads.faq.scores.match.scorer._target_=os.system",
        line=(
            "workloads.faq.scores.match.scorer._target_: a scorer class as module.Class, got 'os.system'; "
            "those of the project are in conf/scorer"
        ),
    ),
    _case(
        "an argument that a scorer lacks",
        "+workloads.faq.scores.match.scorer.fuzzy=true",
        line=(
            'workloads.faq.scores.match.scorer: arguments that Match takes, got {"fuzzy": true} (got an '
            "unexpected keyword argument 'fuzzy'); correct them"
        ),
    ),
    _stored(
        "a stored configuration without a model", "pinned: {}\n", line="model: a value, got none; set it: model=..."
    ),
)
CASES = (*NAMED, *WRITTEN, *TYPED, *RANGES, *CONTRADICTIONS, *FILES, *SCORERS)
