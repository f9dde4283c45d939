"""What a section says of values that it refuses."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from cohort.tasks.fields import refusals_of

__all__ = ["refused"]


def refused(section: Any, **keys: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        section.model_validate(keys)
    (detail,) = caught.value.errors()
    return "; ".join(f"{refusal.found} | {refusal.hint}" for refusal in refusals_of(detail["ctx"]))
