"""What a decision is about, for how long it speaks, and who signed it: a chain of signatures with their hashes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any

from pydantic import ConfigDict

from kvquant_eval.core.codec import digest, to_data
from kvquant_eval.core.records import Decision
from kvquant_eval.core.treatment import Realisation, spans

SCHEMA_VERSION = 1
_STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)
FOLDER_REVISION = "local"
"""What the configuration of a local folder has for a revision: the same word for whatever lies there."""
WEIGHTS_CHARS = 12
"""Of the weights' sha256, where it stands for a revision."""
NAME_CHARS = 80
"""Of the model, the revision and the dtype in a file's name."""


@dataclass(frozen=True, kw_only=True)
class Terms:
    """What was gated. As soon as one of these is another, the decision says nothing.

    ``layers_skipped``: layers whose K and V stay as the model computes them; ``bytes_per_token``: K and V of all layers
    of one worker, None where nothing was read back; ``k_scales`` and ``v_scales``: the least and the largest of the
    quantized layers (empty: none was read back); ``golden``: name, version and sha256 of the set.
    """

    __pydantic_config__ = _STRICT

    model: str
    revision: str | None
    weights_sha256: str
    kv_requested: str
    kv_effective: str
    kv_realisation: str
    layers_skipped: tuple[int, ...]
    bytes_per_token: float | None
    k_scales: tuple[float, ...]
    v_scales: tuple[float, ...]
    engine: str
    engine_version: str | None
    attention_backend: str
    device: str
    policy: str
    policy_sha256: str
    golden: str

    @property
    def named_revision(self) -> str | None:
        """The revision, where it says which weights: that of a local folder does not."""
        return None if self.revision == FOLDER_REVISION else self.revision

    @property
    def named(self) -> str:
        """The model and its KV dtype as they stand together everywhere."""
        kv = f"KV {self.kv_requested} (effective {self.kv_effective}, {self.kv_realisation})"
        return f"{self.model}@{self.at} {kv}"

    @property
    def at(self) -> str:
        """What tells the model from others of its id: the revision, or how its weights' sha256 begins."""
        return self.named_revision or self.weights_sha256[:WEIGHTS_CHARS]


@dataclass(frozen=True, kw_only=True)
class Signature:
    """One person's word on one candidate's decision.

    ``at`` is ISO 8601 in UTC; ``expires`` is a date, the last day (UTC) that it holds, None: it holds until its terms
    change. ``barred`` as the function; ``override`` is why it was signed all the same, None where nothing stood against
    it. ``decision_sha256`` is over the bytes of ``decision.json``. ``previous`` is the ``sha256`` of the signature
    before (None: the first), ``sha256`` the digest of all the rest.
    """

    __pydantic_config__ = _STRICT

    by: str
    at: str
    expires: date | None
    note: str
    override: str | None
    run_id: str
    candidate: str
    decision: Decision
    barred: str
    decision_sha256: str
    terms: Terms
    previous: str | None
    sha256: str = ""

    @property
    def clears(self) -> bool:
        """Whether what was decided is PROMOTE with nothing against it."""
        return self.decision is Decision.PROMOTE and not self.barred

    def expired(self, now: datetime) -> bool:
        """Whether the last day is over. ``now`` is in UTC."""
        return self.expires is not None and now.date() > self.expires


@dataclass(frozen=True, kw_only=True)
class Record:
    """The signatures of one model, revision and KV dtype, the first one first. The last one counts."""

    __pydantic_config__ = _STRICT

    schema_version: int
    model: str
    revision: str | None
    kv_dtype: str
    signatures: tuple[Signature, ...]


def seal(signature: Signature) -> Signature:
    """The signature with its ``sha256``."""
    return replace(signature, sha256=_sha256(signature))


def extended(record: Record | None, signature: Signature) -> Record:
    """``record`` with one signature more, bound to the one before and sealed."""
    before = record.signatures if record else ()
    sealed = seal(replace(signature, previous=before[-1].sha256 if before else None))
    about = signature.terms
    return Record(
        schema_version=SCHEMA_VERSION,
        model=about.model,
        revision=about.revision,
        kv_dtype=dtype_name(about),
        signatures=(*before, sealed),
    )


def faults(record: Record) -> Iterator[str]:
    """What was changed in a record after it was written, a clause each."""
    before = None
    for number, signature in enumerate(record.signatures, 1):
        where = f"signature {number}"
        if signature.sha256 != (found := _sha256(signature)):
            yield f"{where}: says sha256 {signature.sha256:.12}, its content has {found:.12}"
        if signature.previous != before:
            yield f"{where}: follows {signature.previous or 'none':.12}, got {before or 'none':.12} before it"
        terms = signature.terms
        if (terms.model, terms.revision, dtype_name(terms)) != (record.model, record.revision, record.kv_dtype):
            yield f"{where}: is about another model, revision or KV dtype than the file"
        if not signature.clears and signature.override is None:
            yield f"{where}: signs {signature.barred or signature.decision} without an override"
        before = signature.sha256
    if not record.signatures:
        yield "no signature"


def _sha256(signature: Signature) -> str:
    return digest({key: value for key, value in to_data(signature).items() if key != "sha256"})


def standing(signatures: Sequence[Signature], document: Mapping[str, Any]) -> list[Signature]:
    """The signatures whose candidate is decided in ``decision.json`` as it was when they were made."""
    now = {
        each["name"]: (each["decision"], barred(document, each), terms(document, each))
        for each in document["candidates"]
    }
    return [each for each in signatures if now.get(each.candidate) == (each.decision, each.barred, each.terms)]


def dtype_name(terms: Terms) -> str:
    """The KV dtype as one name: ``fp8_e4m3``; where layers are skipped, or the format is but rounded to, that is
    another thing to serve: ``fp8_e4m3-skip-0to4-29``, ``int8-reference``.
    """
    skipped = f"-skip-{'-'.join(spans(terms.layers_skipped))}" if terms.layers_skipped else ""
    return terms.kv_requested + skipped + ("-reference" if terms.kv_realisation == Realisation.REFERENCE else "")


def file_stem(terms: Terms) -> str:
    """``<model>--<revision>--<dtype>``, of letters that are safe in a file's name."""
    parts = (terms.model, terms.at, dtype_name(terms))
    return "--".join(map(_safe_name, parts))


def _safe_name(text: str) -> str:
    name = re.sub(r"[^A-Za-z0-9._+-]", "-", text.replace("/", "--"))
    if len(name) <= NAME_CHARS:
        return name
    return f"{name[: NAME_CHARS - 13]}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def terms(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> Terms:
    """The terms of one candidate's decision, out of ``decision.json``."""
    model, kv, engine, golden = document["model"], candidate["kv"], document["engine"], document["golden"]
    return Terms(
        model=model["id"],
        revision=model["revision"],
        weights_sha256=model["weights_sha256"],
        kv_requested=kv["requested"],
        kv_effective=kv["effective"],
        kv_realisation=kv["realisation"],
        layers_skipped=tuple(kv.get("layers_skipped", ())),
        bytes_per_token=kv.get("bytes_per_token"),
        k_scales=tuple(kv.get("scales", {}).get("k", ())),
        v_scales=tuple(kv.get("scales", {}).get("v", ())),
        engine=engine["name"],
        engine_version=engine["version"],
        attention_backend=engine["attention_backend"],
        device=engine["device"],
        policy=document["policy"]["name"],
        policy_sha256=document["policy"]["sha256"],
        golden=f"{golden['name']} {golden['version']} {golden['sha256']}",
    )


def barred(document: Mapping[str, Any], candidate: Mapping[str, Any]) -> str:
    """Why a decision may move no alias and is nothing to serve by, as one word (empty: it is)."""
    bars = {
        "self_test": candidate["self_test"],
        "post_hoc": document["post_hoc"],
        "reference": candidate["kv"]["realisation"] == Realisation.REFERENCE,
        "part_of_the_golden_set": "folds" in document["golden"],
    }
    return next((name for name, on in bars.items() if on), "")


def vllm_flags(kv: Mapping[str, Any]) -> str:
    """What makes a vLLM server store K and V as a native candidate did; empty for a reference, which none stores, and
    where nothing was read back. ``kv`` is a candidate's in ``decision.json``.
    """
    if kv["realisation"] != Realisation.NATIVE or "layers_skipped" not in kv:
        return ""
    skipped = " ".join(map(str, kv["layers_skipped"]))
    return f"--kv-cache-dtype {kv['requested']}" + (f" --kv-cache-dtype-skip-layers {skipped}" if skipped else "")


def flags_of(terms: Terms) -> str:
    """As ``vllm_flags``, of what was signed."""
    kv = {"requested": terms.kv_requested, "realisation": terms.kv_realisation}
    return vllm_flags(kv if terms.bytes_per_token is None else {**kv, "layers_skipped": terms.layers_skipped})
