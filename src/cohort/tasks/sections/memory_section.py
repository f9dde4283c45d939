"""The section of a task file about memory: how much of its device a run may use."""

from __future__ import annotations

import contextlib
from typing import Annotated, Literal

from pydantic import BeforeValidator, WithJsonSchema

from cohort.core.memory_records import MARGIN_SHARE
from cohort.core.setting_fields import Refusal, count_words
from cohort.core.units import format_bytes, parse_bytes
from cohort.tasks.fields import Section, refuse, setting
from cohort.tasks.module_choice import MOST_LAYERS
from cohort.tasks.other_names import checkpointing_word

__all__ = ["LEAST_LIMIT", "MOST_LIMIT", "MemorySection"]


def _memory_limit(value: object) -> object:
    allowed = "null (all there is), or bytes with a unit such as 24GB or 24GiB"
    # `none` as in early_exit and report_to; YAML's null is easily forgotten
    if value is None or value == "none":
        return None
    num_bytes = None
    if isinstance(value, str | int | float) and not isinstance(value, bool):
        with contextlib.suppress(ValueError, OverflowError):
            # 2e10 is a number of bytes too, but parse_bytes reads no exponent
            num_bytes = parse_bytes(f"{value:f}" if isinstance(value, float) else str(value))
    if num_bytes is None:
        refuse(Refusal(found=repr(value), allowed=allowed, hint="Write for example limit: 24GiB, or remove the key."))
    if num_bytes < LEAST_LIMIT:
        # the likeliest slip: 24 for 24GiB
        hint = (
            f"Write a unit, such as {value}GiB." if str(value).strip().isdigit() else "Write for example limit: 24GiB."
        )
        refuse(Refusal(found=repr(value), allowed=f"{allowed}, at least {format_bytes(LEAST_LIMIT)}", hint=hint))
    if num_bytes > MOST_LIMIT:
        hint = "Write what the device has, such as 24GiB, or remove the key."
        refuse(Refusal(found=repr(value), allowed=f"{allowed}, at most {MOST_LIMIT >> 60} EiB", hint=hint))
    return num_bytes


# below this the unit was forgotten (`limit: 24`): no model and no pass fits
LEAST_LIMIT = 1 << 20
# an exbibyte: more than any device has, and a number that records can hold
MOST_LIMIT = 1 << 60


def _streamed_layers(value: object) -> object:
    # streaming one or two layers through two buffers saves no memory
    if value == "auto" or (
        isinstance(value, int) and not isinstance(value, bool) and (value == 0 or 3 <= value <= MOST_LAYERS)
    ):
        return value
    allowed = f"auto, 0 (none), or {count_words(minimum=3, most=MOST_LAYERS)}"
    refuse(Refusal(found=repr(value), allowed=allowed, hint="Write host_streamed_layers: auto."))


class MemorySection(Section):
    """How much of its device's memory a run may use. No key changes a result, so a resumed run may change them."""

    limit: Annotated[
        int | None, BeforeValidator(_memory_limit), WithJsonSchema({"type": ["string", "integer", "null"]})
    ] = setting(
        None,
        allowed="null, or bytes with a unit such as 24GiB",
        description="most of the device's memory, base model included; null: all",
    )
    margin: float = setting(
        MARGIN_SHARE,
        ge=0,
        lt=0.9,
        allowed="a share of at least 0 and below 0.9",
        description="share of it that stays free",
    )
    profile: bool = setting(
        True,
        allowed="true | false",
        description="measure before training what passes take (GPU, or with limit); false: estimate it from above",
    )
    gradient_checkpointing: Annotated[
        Literal["auto", "always", "never"],
        BeforeValidator(checkpointing_word),
        WithJsonSchema({"enum": ["auto", "always", "never", True, False]}),
    ] = setting(
        "auto",
        allowed="auto | always | never",
        description="recompute activations in the backward pass; auto: of passes that do not fit otherwise",
    )
    host_streamed_layers: Annotated[
        Literal["auto"] | int,
        BeforeValidator(_streamed_layers),
        WithJsonSchema(
            {"anyOf": [{"const": "auto"}, {"const": 0}, {"type": "integer", "minimum": 3, "maximum": MOST_LAYERS}]}
        ),
    ] = setting(
        "auto",
        allowed="auto, 0, or a whole number of at least 3",
        description="layers of the base model that stay in host memory; auto: as many as do not fit on the GPU",
    )
