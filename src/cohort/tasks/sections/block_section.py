"""``lora.use_bdlora``: the block structure of BD-LoRA adapters, with the names of PEFT's BdLoraConfig."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema

from cohort.adapters.variants.block_diagonal import COLUMN_PARALLEL, ROW_PARALLEL
from cohort.core.setting_fields import Refusal
from cohort.tasks.fields import Section, Whole, refuse, setting
from cohort.tasks.hyperparameters import NBLOCKS

__all__ = ["BdLoraSection"]

_ALLOWED = "a list of module names, or of parts of them"


def _names(value: object) -> object:
    # PEFT's default is null: no linear
    if value is None:
        return ()
    if not isinstance(value, list | tuple) or not all(isinstance(name, str) and name.strip() for name in value):
        refuse(Refusal(found=repr(value), allowed=_ALLOWED, hint="Write for example [o_proj, down_proj]."))
    return tuple(value)


_Names = Annotated[
    tuple[str, ...],
    BeforeValidator(_names),
    PlainSerializer(list),
    WithJsonSchema({"type": ["array", "null"], "items": {"type": "string"}}),
]


class BdLoraSection(Section):
    """Which factors are block-diagonal, in how many blocks; ``search.space.nblocks`` takes the place of ``nblocks``."""

    nblocks: Whole = setting(
        NBLOCKS.default, allowed=NBLOCKS.allowed, description=NBLOCKS.description, **dict(NBLOCKS.bounds)
    )
    target_modules_bd_a: _Names = setting(
        ROW_PARALLEL,
        allowed=_ALLOWED,
        description="linears whose A is block-diagonal: those that servers divide by inputs",
    )
    target_modules_bd_b: _Names = setting(
        COLUMN_PARALLEL,
        allowed=_ALLOWED,
        description="linears whose B is block-diagonal: those that servers divide by outputs",
    )
    match_strict: bool = setting(
        True,
        allowed="true | false",
        description="refuse an adapted linear that is in neither list; false: it gets two dense factors",
    )
