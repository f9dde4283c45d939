"""Random draws follow their distributions and the seed, whatever the results."""

from __future__ import annotations

import math

from cohort.tuning.samplers import SAMPLERS, build_sampler
from cohort.tuning.samplers.kinds.random_draws import SAMPLER
from cohort.tuning.space_syntax import parse_space

SPACE = parse_space(
    {
        "learning_rate": {"min": 1e-5, "max": 1e-1, "log": True},
        "weight_decay": {"min": 0.0, "max": 1.0},
        "r": [4, 8, 16, 32],
    }
)


def drawn(seed: int, num: int, *, tell: float | None = None) -> list[dict[str, object]]:
    sampler = build_sampler("random", SPACE, trials=num, seed=seed)
    found: list[dict[str, object]] = []
    while proposals := sampler.propose(8):
        for configuration in proposals:
            found.append(dict(configuration))
            if tell is not None:
                sampler.tell(len(found) - 1, tell * len(found))
    return found


def test_it_is_found_by_its_name() -> None:
    assert SAMPLERS.find("random") is SAMPLER


def test_the_seed_alone_decides() -> None:
    assert drawn(3, 24) == drawn(3, 24) == drawn(3, 24, tell=1.0)
    assert drawn(3, 24) != drawn(4, 24)


def test_each_parameter_is_drawn_by_its_own_distribution() -> None:
    found = drawn(0, 100)
    decades = [math.log10(float(str(row["learning_rate"]))) for row in found]
    # uniform over four decades; three standard errors of the mean of 100 draws
    assert abs(sum(decades) / 100 + 3.0) < 3 * 4 / math.sqrt(12 * 100)
    decays = [float(str(row["weight_decay"])) for row in found]
    assert abs(sum(decays) / 100 - 0.5) < 3 / math.sqrt(12 * 100)
    counts = [sum(row["r"] == r for row in found) for r in (4, 8, 16, 32)]
    # a quarter each; a count has a standard deviation below 4.4
    assert all(abs(count - 25) < 14 for count in counts)
