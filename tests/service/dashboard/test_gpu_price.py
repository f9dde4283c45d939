"""A price of a GPU hour is an amount and a currency."""

from __future__ import annotations

import pytest

from cohort.service.dashboard.gpu_price import GpuPrice, read_price


def test_an_amount_and_a_currency() -> None:
    assert read_price(" 2.49 USD") == GpuPrice(amount=2.49, currency="USD")
    assert read_price("3 EUR").as_json() == {"amount": 3.0, "currency": "EUR"}


@pytest.mark.parametrize(
    "text", ["", "2.49", "USD", "$2.49", "2,49 EUR", "-1 USD", "1e9999 USD", "9999999 USD", "2 usd", "nan USD"]
)
def test_anything_else_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="such as"):
        read_price(text)
