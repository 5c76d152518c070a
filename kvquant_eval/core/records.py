"""Every noun of the project, as frozen records.

Points are 0..100. A ``drop`` is baseline minus candidate in points: **> 0 is worse**. Token ids are plain ints in the
model's vocabulary; log probabilities are natural logarithms (nats), raw, before any sampling transform.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from kvquant_eval.core.ranges import LayerRanges
from kvquant_eval.core.scales import LayerScales
from kvquant_eval.core.stored import StoredLayer

Json = Any
"""A JSON value: None, bool, int, float, str, list or dict of these."""

Whole = Annotated[int, Field(strict=True)]
"""A number written as one: no ``"3"``, ``3.0`` or ``true``."""

_WRITTEN_BY_HAND = ConfigDict(extra="forbid")
MEASURED = ConfigDict(ser_json_inf_nan="strings")  # JSON has no NaN, and null would say that there is no value


class Measure(StrEnum):
    """How a turn is run: ``FORCED`` decodes the golden reply token by token, ``GENERATED`` lets the model write behind
    the golden history, ``FREE_RUNNING`` behind its own earlier replies.
    """

    FORCED = "forced"
    GENERATED = "generated"
    FREE_RUNNING = "free_running"


class Outcome(StrEnum):
    """What became of one replay. Only ``SKIPPED`` and ``INFRA_ERROR`` are unscored; the model caused the others.

    ``DIVERGED``: a free-running conversation had ended before this turn.
    """

    OK = "ok"
    TRUNCATED = "truncated"
    EMPTY = "empty"
    UNPARSEABLE = "unparseable"
    DEGENERATE = "degenerate"
    DIVERGED = "diverged"
    SKIPPED = "skipped"
    INFRA_ERROR = "infra_error"

    @property
    def scored(self) -> bool:
        return self not in (Outcome.SKIPPED, Outcome.INFRA_ERROR)


class ReplayMode(StrEnum):
    """``GOLDEN_PREFIX``: the history of every turn is the golden one. ``FREE_RUNNING``: beside that, conversations run
    with the arm's own replies as their history.
    """

    GOLDEN_PREFIX = "golden_prefix"
    FREE_RUNNING = "free_running"


class OnDivergence(StrEnum):
    """What follows a reply whose tool calls are not the recorded ones: the conversation ends (``STOP``), goes on with
    the recorded reply (``GOLDEN``), or the model is told so and asked once more (``ERROR_MESSAGE``).
    """

    STOP = "stop"
    GOLDEN = "golden"
    ERROR_MESSAGE = "error_message"


class Role(StrEnum):
    """What an arm is for."""

    BASELINE = "baseline"
    CONTROL = "control"
    CANDIDATE = "candidate"


class Verdict(StrEnum):
    """Per (candidate, workload class)."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"


class Decision(StrEnum):
    """Per candidate, and over all of them."""

    PROMOTE = "PROMOTE"
    HOLD = "HOLD"
    INCONCLUSIVE = "INCONCLUSIVE"
    INVALID = "INVALID"

    @property
    def exit_code(self) -> int:
        """Process exit status: 0, 3, 4, 5."""
        return {"PROMOTE": 0, "HOLD": 3, "INCONCLUSIVE": 4, "INVALID": 5}[self]


@dataclass(frozen=True, kw_only=True)
class Span:
    """A decisive part of a golden reply: the ``nth`` (0-based) occurrence of ``text`` in the reply as the chat
    template renders it."""

    text: str
    nth: Whole = 0


@dataclass(frozen=True, kw_only=True)
class GoldenTurn:
    """One assistant turn to replay, in OpenAI chat shape.

    ``messages`` is everything before the turn; ``reference`` the golden assistant message; ``expected`` what the
    class's task scorer needs; ``max_tokens`` the limit of the generated reply. ``core.turns`` says what else must hold.
    """

    __pydantic_config__ = _WRITTEN_BY_HAND

    turn_id: str
    workload: str
    conversation_id: str
    turn_index: Whole
    messages: tuple[Mapping[str, Json], ...]
    reference: Mapping[str, Json]
    decisive: tuple[Span, ...] = ()
    tools: tuple[Mapping[str, Json], ...] = ()
    expected: Mapping[str, Json] = field(default_factory=dict)
    max_tokens: Whole = 128
    tags: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class GoldenSet:
    """A named, versioned, pinned collection of turns. ``sha256`` covers every file of the set."""

    name: str
    version: str
    sha256: str
    turns: tuple[GoldenTurn, ...]


@dataclass(frozen=True, kw_only=True)
class RenderedTurn:
    """A turn as token ids, the same for every arm.

    ``golden_ids`` is the reply without the end-of-turn token; ``spans`` are half-open token ranges into it.
    ``skip`` is the reason why the turn cannot be run (empty: it can).
    """

    turn_id: str
    workload: str
    conversation_id: str
    turn_index: int
    prompt_ids: tuple[int, ...]
    golden_ids: tuple[int, ...]
    spans: tuple[tuple[int, int], ...]
    max_tokens: int
    skip: str = ""


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Sampling of generated replies. ``temperature`` is 0 (greedy) or at least 0.01."""

    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    epochs: int = 1
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class ReplayRequest:
    """One turn x measure x epoch for an engine to run. ``forced_ids`` are the tokens to force, empty when
    generating.
    """

    turn_id: str
    measure: Measure
    epoch: int
    prompt_ids: tuple[int, ...]
    forced_ids: tuple[int, ...]
    max_tokens: int
    temperature: float
    top_p: float
    top_k: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Step:
    """One reply of the assistant in a free-running conversation.

    ``asked`` are the messages that come before it, since the reply before; ``recorded`` is the reply of the recording;
    ``calls`` are the tool calls that are answered by it, as ``expected.calls`` of a golden turn. ``turn_id`` is the
    golden turn that it answers, empty for a reply that is history only.
    """

    turn_id: str
    asked: tuple[Mapping[str, Json], ...]
    recorded: Mapping[str, Json]
    calls: tuple[Mapping[str, Json], ...]
    max_tokens: int
    seed: int


@dataclass(frozen=True, kw_only=True)
class Rollout:
    """A conversation to run with the arm's own replies as its history, from its first golden turn on."""

    conversation_id: str
    epoch: int
    steps: tuple[Step, ...]
    tools: tuple[Mapping[str, Json], ...]
    on_divergence: OnDivergence
    temperature: float
    top_p: float
    top_k: int


ReplayKey = tuple[str, Measure, int]
"""(turn id, measure, epoch): one replay of an arm."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Requests committed, resumed and compared as one unit; whole conversations, never split.

    ``waves`` are handed to the engine one after the other, each all at once, then all ``rollouts``, which advance
    independently of each other; the prefix cache is reset before the first.
    """

    index: int
    waves: tuple[tuple[ReplayRequest, ...], ...] = ()
    rollouts: tuple[Rollout, ...] = ()

    @property
    def requests(self) -> tuple[ReplayRequest, ...]:
        return tuple(request for wave in self.waves for request in wave)

    @property
    def keys(self) -> tuple[ReplayKey, ...]:
        """The replays that the block asks for, in order."""
        return (
            *((request.turn_id, request.measure, request.epoch) for request in self.requests),
            *((s.turn_id, Measure.FREE_RUNNING, r.epoch) for r in self.rollouts for s in r.steps if s.turn_id),
        )


@dataclass(frozen=True, kw_only=True)
class Replay:
    """What came back for one request.

    ``logprobs[i]`` is the raw log probability (nats, <= 0) of ``token_ids[i]``; ``top[i]`` the most probable tokens at
    that step as (id, logprob), best first, empty when generating. ``cached_tokens`` is how many prompt tokens came from
    the prefix cache.

    When free-running, ``divergence`` says how the conversation left its recording here or since the golden turn before,
    and ``between`` holds what the arm wrote since then beside its replies to golden turns.
    """

    __pydantic_config__ = MEASURED

    turn_id: str
    measure: Measure
    epoch: int
    outcome: Outcome
    token_ids: tuple[int, ...] = ()
    text: str = ""
    logprobs: tuple[float, ...] = ()
    top: tuple[tuple[tuple[int, float], ...], ...] = ()
    finish_reason: str = ""
    prompt_tokens: int = 0
    cached_tokens: int = 0
    error: str = ""
    divergence: str = ""
    between: tuple[Replay, ...] = ()


@dataclass(frozen=True, kw_only=True)
class BlockResult:
    """A finished block: its replays in the order of ``Block.keys``, and what the engine counted while it ran.

    ``second_rounding`` is (K and V values of a reference format that did not fit BF16 exactly, values seen), ``stored``
    a sample of what a native FP8 cache holds, by layer, ``ranges`` how large K and V were, where that was asked for.
    """

    index: int
    replays: tuple[Replay, ...]
    preemptions: int
    seconds: float
    second_rounding: tuple[int, int] = (0, 0)
    stored: tuple[StoredLayer, ...] = ()
    ranges: tuple[LayerRanges, ...] = ()


@dataclass(frozen=True, kw_only=True)
class TurnScore:
    """Points (0..100) of one turn under one scorer, epochs not yet averaged. ``points`` is None when unscored."""

    turn_id: str
    scorer: str
    epoch: int
    outcome: Outcome
    points: float | None
    explanation: str = ""


@dataclass(frozen=True, kw_only=True)
class ScoreDelta:
    """One turn under one scorer, baseline against another arm, epochs averaged.

    ``drop`` = ``baseline`` - ``candidate`` in points, > 0 is worse; None when either side is unscored (``missing`` says
    why).
    """

    turn_id: str
    workload: str
    conversation_id: str
    turn_index: int
    scorer: str
    baseline: float | None
    candidate: float | None
    drop: float | None
    missing: str = ""


@dataclass(frozen=True, kw_only=True)
class Finding:
    """Something the attestation or the comparison found. ``invalid`` findings forbid any verdict, ``unfinished`` ones
    forbid PROMOTE and HOLD for now, ``holds`` ones are a reason to HOLD: for good, or with a chance of ``p`` where
    nothing is lost.
    """

    where: str
    what: str
    invalid: bool
    unfinished: bool = False
    holds: bool = False
    p: float | None = None


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """A model as the user names it: a hub id or a local folder, or the model embedded in a PyPI package.

    ``source`` is ``hub``, ``folder`` or ``embedded``; ``chat_template`` a Jinja file that replaces the model's own.
    """

    id: str
    revision: str | None
    source: str
    path: str | None = None
    chat_template: str | None = None
    provenance: str = ""
    trust_remote_code: bool = False


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A model made ready and the golden turns rendered with it: what all arms share.

    ``path`` is what the engine loads; the hashes are sha256 (hex) of the weights, of the chat template's text and of
    config.json; ``context`` is how many tokens a turn may have, prompt and reply together; ``chat_template`` is the
    template's text. ``scales`` are those of K and V that the checkpoint brings, ``calibrated_on`` the conversations
    that it says they were calibrated on (as in ``Calibration``); both are empty where no candidate takes them.
    """

    path: str
    weights_sha256: str
    template_sha256: str
    device: str
    versions: Mapping[str, str]
    kv_cache_scheme: bool
    config_sha256: str = ""
    context: int = 0
    chat_template: str = ""
    scales: tuple[LayerScales, ...] = ()
    calibrated_on: tuple[str, ...] = ()
    turns: tuple[RenderedTurn, ...]
