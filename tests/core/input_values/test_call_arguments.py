"""Arguments that a function does not have are named, with the nearest one it has."""

from __future__ import annotations

import pytest

from cohort.core.errors import InputError
from cohort.core.input_values.call_arguments import checks_arguments


class Oven:
    @checks_arguments("Oven", elsewhere=lambda name: "Give it to bake()." if name == "minutes" else None)
    def __init__(self, size: int, *, temperature: int = 200, fan: int = 0) -> None:
        self.size, self.temperature, self.fan = size, temperature, fan


def test_correct_calls_pass() -> None:
    assert (Oven(3).temperature, Oven(size=4, temperature=10).size) == (200, 4)


@pytest.mark.parametrize(
    ("args", "kwargs", "told"),
    [
        ((3,), {"temprature": 1}, r"Oven: temprature: found 1, an unknown argument; .*Did you mean temperature\?"),
        ((3,), {"minutes": 1}, "Give it to bake"),
        (
            (3,),
            {"colour": "x" * 100},
            r"found 'x+\.\.\., an unknown argument; allowed: size, temperature, fan\. Choose one of these or remove it",
        ),
        ((), {}, r"Oven: size: found nothing; .*Write Oven\(size=\.\.\., \.\.\.\)"),
        ((3, 200), {}, r"found 200 without a name; .*Write Oven\(temperature=\.\.\.\)"),
        ((3, 200, 1), {}, r"found 1 without a name; .*Write Oven\(fan=\.\.\.\)"),
        ((3,), {"size": 4}, "Oven: size: found two values"),
    ],
)
def test_wrong_arguments_are_input_errors(args: tuple[int, ...], kwargs: dict[str, object], told: str) -> None:
    with pytest.raises(InputError, match=told):
        Oven(*args, **kwargs)  # type: ignore[arg-type]
