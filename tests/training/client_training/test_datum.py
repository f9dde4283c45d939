"""Data that cannot be are refused before anything is computed, in words that name the datum and its key."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from cohort.core.errors import InputError
from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_training.datum import Datum, checked_datum, checked_loss
from tests.training.client_training.client_data import a_loss

TOKENS = np.array([1, 2, 3], dtype=np.int64)
RIGHT = {"target_tokens": np.array([2, 3, 4]), "weights": np.array([0.0, 1.0, -1.0])}
SAMPLED = {"target_tokens": np.array([2, 3, 4]), "logprobs": np.zeros(3), "advantages": np.ones(3)}


def checked(loss: str = "cross_entropy", tokens: Any = TOKENS, **inputs: Any) -> Datum:
    given = RIGHT if loss == "cross_entropy" else SAMPLED
    merged = {name: value for name, value in {**given, **inputs}.items() if value is not None}
    return checked_datum(tokens, merged, loss=a_loss(loss), place=3, vocab_size=10, context=6)


def test_targets_are_a_matrix_with_an_input_for_each() -> None:
    datum = checked()
    assert datum.targets.tolist() == [[2], [3], [4]]
    assert datum.inputs["weights"].tolist() == [[0.0], [1.0], [-1.0]]
    soft = checked(target_tokens=np.array([[1, 2], [3, 4], [5, 6]]), weights=np.full((3, 2), 0.5))
    assert soft.targets.shape == soft.inputs["weights"].shape == (3, 2)
    # rows of the head's gradient are what a pass has room for
    assert (datum.num_rows, soft.num_rows) == (3, 6)
    assert checked("gspo").inputs["sequence_ratio_mask"].tolist() == [[1.0]] * 3


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"tokens": np.array([], dtype=np.int64)}, r"data\[3\].model_input: found 0 tokens; allowed: 1 to 6 tokens"),
        ({"tokens": np.arange(7)}, r"found 7 tokens; allowed: 1 to 6 tokens, which the model reads"),
        ({"tokens": np.array([1, 10, 2])}, r"data\[3\].model_input: found token 10; allowed: 0 to 9"),
        ({"target_tokens": np.array([1, -1, 2])}, r"loss_fn_inputs.target_tokens: found token -1; allowed: 0 to 9"),
        ({"target_tokens": np.array([1, 2])}, r"found shape \[2\] with 3 tokens; allowed: N or N x K targets"),
        ({"weights": None}, r"data\[3\].loss_fn_inputs: found target_tokens; no weights; allowed: target_tokens, wei"),
        ({"mask": np.ones(3)}, r"found mask; allowed: target_tokens, weights for cross_entropy. Remove mask"),
        ({"weights": np.ones(2)}, r"found shape \[2\] next to target_tokens of shape \[3\]"),
        (
            {"weights": np.array([1.0, np.nan, 1.0])},
            r"loss_fn_inputs.weights: found nan at position 1; allowed: finite",
        ),
        ({"loss": "ppo", "advantages": np.array([1.0, 1.0, np.inf])}, r"advantages: found inf at position 2"),
        (
            {"target_tokens": np.ones((3, 65), dtype=int), "weights": np.ones((3, 65))},
            r"loss_fn_inputs.target_tokens: found 65 targets of a position; allowed: 1 to 64",
        ),
        ({"loss": "ppo", "target_tokens": np.ones((3, 2), dtype=int)}, r"allowed: N targets for N tokens"),
    ],
)
def test_a_wrong_datum_is_refused(changed: dict[str, Any], words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked(**changed)


@pytest.mark.parametrize(
    ("name", "config", "words"),
    [
        ("cross_entropie", {}, "loss_fn: found 'cross_entropie'; allowed: cispo, cross_entropy, dro"),
        ("ppo", {"clip": 0.2}, "found 'clip'; allowed: clip_low_threshold, clip_high_threshold with ppo"),
        ("cross_entropy", {"beta": 0.2}, "allowed: no numbers: cross_entropy reads none. Remove beta"),
        ("dro", {"beta": float("nan")}, "loss_fn_config.beta: found nan; allowed: a finite number"),
        ("ppo", {"clip_low_threshold": 1.5}, r"clip_low_threshold 1.5 above clip_high_threshold 1.2"),
    ],
)
def test_a_wrong_loss_is_refused(name: str, config: dict[str, float], words: str) -> None:
    with pytest.raises(InputError, match=words):
        checked_loss(name, config, known=TOKEN_OBJECTIVES)
    assert checked_loss("ppo", {"clip_low_threshold": 0.9}, known=TOKEN_OBJECTIVES).numbers == {
        "clip_low_threshold": 0.9,
        "clip_high_threshold": 1.2,
    }
