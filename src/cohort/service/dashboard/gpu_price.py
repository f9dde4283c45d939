"""What an hour of one GPU costs where pages show money: an amount with its currency, as people write it."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

__all__ = ["PRICE_ALLOWED", "GpuPrice", "read_price"]

PRICE_ALLOWED = 'an amount and a currency, such as "2.49 USD"'
_FORM = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s+([A-Z]{3})")
_MOST = 1e6


@dataclass(frozen=True, kw_only=True)
class GpuPrice:
    """What an hour of one GPU costs.

    Attributes:
        currency: Three letters of ISO 4217.
    """

    amount: float
    currency: str

    def as_json(self) -> dict[str, float | str]:
        return {"amount": self.amount, "currency": self.currency}


def read_price(text: str) -> GpuPrice:
    """Return the price that a text such as ``2.49 USD`` says.

    Raises:
        ValueError: it says none.
    """
    found = _FORM.fullmatch(text.strip())
    amount = math.nan if found is None else float(found[1])
    if found is None or not 0 <= amount <= _MOST:
        raise ValueError(f"{text!r} is no {PRICE_ALLOWED}")
    return GpuPrice(amount=amount, currency=found[2])
