"""Whether a mathematical answer equals the expected one, however it is written, by the package math-verify.

As TRL's ``accuracy_reward``: an expected answer that cannot be read rewards nothing, and an answer has to be in LaTeX.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from cohort.metrics.rewards.kinds.options import COLUMN
from cohort.metrics.rewards.reward import RewardFunction, RewardKind, expected_answer, texts_of

__all__ = ["REWARD"]


def _make(options: Mapping[str, Any]) -> RewardFunction:
    # an optional package, which is looked for before training; it sets alarms unless it is asked not to, and the limit
    # on time is that of every reward
    from latex2sympy2_extended import NormalizationConfig
    from math_verify import LatexExtractionConfig, parse, verify

    column = options["column"]
    latex = LatexExtractionConfig(
        normalization_config=NormalizationConfig(units=True), boxed_match_priority=0, try_extract_without_anchor=False
    )

    def math_verify(completions: Sequence[Any], **columns: Sequence[Any]) -> list[float | None]:
        found: list[float | None] = []
        for place, text in enumerate(texts_of(completions)):
            written = expected_answer(columns, column=column, place=place)
            expected = [] if written is None else parse(written, parsing_timeout=None)
            if not expected:
                found.append(None)
                continue
            answer = parse(text, extraction_config=[latex], extraction_mode="first_match", parsing_timeout=None)
            found.append(float(verify(expected, answer, timeout_seconds=None)))
        return found

    return math_verify


REWARD = RewardKind(
    name="math_verify",
    summary="1 where the answer's formula equals the expected one, else 0; needs `pip install math-verify`",
    make=_make,
    options={"column": COLUMN},
    package="math-verify",
    module="math_verify",
    extra="math",
)
