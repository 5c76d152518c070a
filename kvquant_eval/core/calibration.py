"""A calibration as a record of what was looked at, and which gates may use its scales."""

from __future__ import annotations

from kvquant_eval.core.arms import ArmRecord
from kvquant_eval.core.codec import DataError
from kvquant_eval.core.records import GoldenSet, Prepared
from kvquant_eval.core.scales import (
    LARGEST,
    SCHEMA_VERSION,
    Calibration,
    ScaleSource,
    calibrated,
    check_scales,
    hashes,
    refuse_seen,
)
from kvquant_eval.core.settings import Settings

LARGEST_BF16 = (2 - 2**-7) * 2.0**127


def formats_to_calibrate(settings: Settings) -> tuple[str, str]:
    """K's and V's format, of all candidates. Raises DataError where they differ or have no fixed range."""
    formats = {treatment.formats for treatment in settings.candidates.values()}
    if len(formats) > 1 or not all(treatment.takes_scales for treatment in settings.candidates.values()):
        found = ", ".join(sorted({treatment.requested for treatment in settings.candidates.values()}))
        rule = f"candidates of one format with a fixed range ({', '.join(LARGEST)})"
        raise DataError(f"kv: {rule}, got {found[:80]}; calibrate for one of them: kv=[...]")
    return formats.pop()


def calibration_of(settings: Settings, golden: GoldenSet, prepared: Prepared, record: ArmRecord) -> Calibration:
    """Scales of the magnitudes that the arm saw. Raises DataError where it saw none, or values that are not finite."""
    k_format, v_format = formats_to_calibrate(settings)
    made = Calibration(
        schema_version=SCHEMA_VERSION,
        model=settings.model.id,
        revision=settings.model.revision,
        weights_sha256=prepared.weights_sha256,
        model_dtype=record.facts.model_dtype if record.facts else "",
        golden=f"{golden.name} {golden.version}",
        golden_sha256=golden.sha256,
        folds=settings.folds,
        conversations=hashes(turn.conversation_id for turn in golden.turns),
        k_format=k_format,
        v_format=v_format,
        per=settings.per,
        layers=calibrated(record.ranges, (k_format, v_format), settings.per),
    )
    check_scales("calibrate", made.scales)
    for layer in made.layers:
        if max(*layer.k.largest, *layer.v.largest) >= LARGEST_BF16:  # what is not finite was counted as that
            raise DataError(f"calibrate: finite K and V, got others in layer {layer.index}; name another model")
    return made


def refuse_unfit(settings: Settings, golden: GoldenSet, prepared: Prepared) -> None:
    """Raise DataError for scales of another model, and for scales that the turns which decide had a part in."""
    conversations = sorted({turn.conversation_id for turn in golden.turns})
    for name, treatment in settings.candidates.items():
        where = f"kv.{name}.scales_from"
        if made := settings.calibrations.get(name):
            if made.weights_sha256 != prepared.weights_sha256:
                rule = f"scales of the weights {prepared.weights_sha256[:12]} of {settings.model.id}"
                found = f"those of {made.weights_sha256[:12]} ({made.model[:80]!r})"
                raise DataError(f"{where}: {rule}, got {found}; calibrate this model")
            refuse_seen(where, made.conversations, conversations)
        elif treatment.takes_scales and treatment.scales is ScaleSource.CHECKPOINT:
            refuse_seen(f"kv.{name}.scales", prepared.calibrated_on, conversations)
