"""Every golden turn as a model would read it, with what is wrong instead of the turn where it cannot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvquant_eval.core.codec import DataError
from kvquant_eval.core.lint.rendering import Inspected, InspectedTurn
from kvquant_eval.core.records import GoldenTurn, ModelSpec
from kvquant_eval.core.treatment import KVTreatment
from kvquant_eval.worker.prepare import open_model
from kvquant_eval.worker.render import render


def inspect(
    model: ModelSpec,
    turns: Sequence[GoldenTurn],
    args: Mapping[str, Any],
    cache: Path,
    treatments: Sequence[KVTreatment],
) -> Inspected:
    """As ``prepare``, without the engine's own checks. Raises DataError for a model or template that cannot be used at
    all.
    """
    _, config, tokenizer, template = open_model(model, cache)
    context = int(args.get("max_model_len") or config.get("max_position_embeddings") or 0)
    return Inspected(context=context, turns=tuple(_turn(tokenizer, template, turn, context) for turn in turns))


def _turn(tokenizer: Any, template: str, turn: GoldenTurn, context: int) -> InspectedTurn:
    try:
        rendered = render(tokenizer, template, turn, context)
    except DataError as error:
        return InspectedTurn(problem=str(error).removeprefix(f"{turn.turn_id}: "))
    return InspectedTurn(rendered=rendered, reply=tokenizer.decode(rendered.golden_ids))
