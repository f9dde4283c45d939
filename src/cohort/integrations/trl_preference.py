"""What TRL's preference configurations say, in the words of a task: DPOConfig, ORPOConfig, CPOConfig and KTOConfig."""

from __future__ import annotations

from typing import Any

from cohort.integrations.trl_fields import ConfigFields
from cohort.training.objectives.declaration import OBJECTIVE_DECLARATIONS

__all__ = ["MAPPED_FIELDS", "PREFERENCE_CONFIGS", "preference_objective"]

PREFERENCE_CONFIGS = ("DPOConfig", "ORPOConfig", "CPOConfig", "KTOConfig")
"""By the names of their classes: trl does not have to be installed."""
MAPPED_FIELDS = """
    beta loss_type label_smoothing cpo_alpha simpo_gamma desirable_weight undesirable_weight disable_dropout
"""


def preference_objective(fields: ConfigFields, *, name: str) -> dict[str, Any]:
    """Return the ``objective`` section that a configuration means; what cannot be honoured is refused in ``fields``.

    Args:
        name: The name of its class, one of :data:`PREFERENCE_CONFIGS`.
    """
    section: dict[str, Any] = {"beta": fields.get("beta")}
    if name == "ORPOConfig":
        return {"type": "orpo", **section}
    if name == "KTOConfig":
        kind = _loss_type(fields, _losses("kto"))
        weights = {key: fields.get(key) for key in ("desirable_weight", "undesirable_weight")}
        return {"type": "kto", **section, **({} if kind is None else {"loss_type": kind}), **weights}
    kind = _loss_type(fields, _losses("dpo") if name == "DPOConfig" else (*_losses("cpo"), "simpo"))
    smoothing = fields.get("label_smoothing") or 0.0
    if name == "DPOConfig":
        return {"type": "dpo", **section, **_smoothed(fields, kind, smoothing, readers=("robust",))}
    section["cpo_alpha"] = fields.get("cpo_alpha")
    if kind == "simpo":
        return {"type": "simpo", **section, "simpo_gamma": fields.get("simpo_gamma"), "label_smoothing": smoothing}
    return {"type": "cpo", **section, **_smoothed(fields, kind, smoothing, readers=("sigmoid",))}


def _losses(objective: str) -> tuple[str, ...]:
    """Return the forms of the loss that an objective has; TRL calls them so as well."""
    declared = OBJECTIVE_DECLARATIONS.find(objective)
    assert declared is not None, f"{objective} is one of Cohort's own"
    return declared.values["loss_type"].setting.options


def _loss_type(fields: ConfigFields, allowed: tuple[str, ...]) -> str | None:
    """Return the form of the loss; None where it is refused. DPO takes a list, to combine several."""
    written = fields.get("loss_type")
    kinds = list(written) if isinstance(written, list | tuple) else [written]
    if len(kinds) == 1 and kinds[0] in allowed:
        return str(kinds[0])
    fields.refuse("loss_type", allowed=f"one of {', '.join(allowed)}", hint=f"Write loss_type={allowed[0]!r}.")
    return None


def _smoothed(fields: ConfigFields, kind: str | None, smoothing: Any, *, readers: tuple[str, ...]) -> dict[str, Any]:
    """Return the form of the loss with its label smoothing, where TRL's trainer reads it there."""
    if kind is None:
        return {}
    if smoothing and kind not in readers:
        allowed = f"0.0: TRL's trainer reads it with loss_type {' or '.join(readers)} alone, and here it would count"
        fields.refuse("label_smoothing", allowed=allowed, hint="Write label_smoothing=0.0.")
        return {"loss_type": kind}
    return {"loss_type": kind, **({"label_smoothing": smoothing} if kind in readers else {})}
