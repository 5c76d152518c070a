"""Decisions in MLflow's registry: versions without weights, and the alias that a server looks for."""

from __future__ import annotations

from typing import Any

from kvquant_eval.core.records import Decision
from kvquant_eval.io.runcards import VersionCard


def register(client: Any, card: VersionCard, run_id: str) -> None:
    """One version a decision. PROMOTE moves the alias here, HOLD takes it from a version of the same weights; one that
    a later decision has overtaken moves nothing. ``client`` is MLflow's.
    """
    from mlflow.exceptions import MlflowException

    try:
        client.create_registered_model(card.model, description="KV cache decisions; the dtype is in the versions' tags")
    except MlflowException as error:
        if error.error_code != "RESOURCE_ALREADY_EXISTS":
            raise
    known = versions(client, card.model)
    if all(version.run_id != run_id for version in known):
        tags, about = dict(card.tags), card.description
        client.create_model_version(card.model, card.source, run_id, tags=tags, description=about, await_creation_for=0)
        known = versions(client, card.model)
    mine, *twins = (version for version in known if version.run_id == run_id)
    for version in twins:  # of a request whose answer was lost
        client.delete_model_version(card.model, version.version)
    if not card.alias or any(_overtakes(version, card) for version in known):
        return
    if card.decision is Decision.PROMOTE:
        client.set_registered_model_alias(card.model, card.alias, mine.version)
    elif card.decision is Decision.HOLD:
        number = client.get_registered_model(card.model).aliases.get(card.alias)
        if number is not None and _same_weights(client.get_model_version(card.model, str(number)), card):
            client.delete_registered_model_alias(card.model, card.alias)


def versions(client: Any, model: str) -> list[Any]:
    """The versions of a registered model, the oldest first."""
    return sorted(client.search_model_versions(f"name = '{model}'"), key=lambda version: int(version.version))


def _overtakes(version: Any, card: VersionCard) -> bool:
    """Whether a version has decided the alias after ``card`` did."""
    if version.tags.get("decides_alias") != card.alias or version.tags.get("decided_at", "") <= card.decided_at:
        return False
    decision = version.tags.get("kv_decision")
    return decision == Decision.PROMOTE or (decision == Decision.HOLD and _same_weights(version, card))


def _same_weights(version: Any, card: VersionCard) -> bool:
    return bool(version.source == card.source and version.tags.get("weights_sha256") == card.tags["weights_sha256"])
