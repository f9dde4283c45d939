"""Random data of clients and executors for them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch

from cohort.adapters.layout import AdapterLayout
from cohort.core.numerics import Numerics
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.weights import load_decoder
from cohort.training.client_losses import TOKEN_OBJECTIVES
from cohort.training.client_training.datum import Datum, TokenLoss, checked_datum, checked_loss
from cohort.training.client_training.request_executor import RequestExecutor
from tests.training.small_models import VOCABULARY

NAMES = tuple(sorted(TOKEN_OBJECTIVES))


def open_executor(
    directory: Path,
    *,
    num_slots: int = 16,
    num_rank_rows: int = 512,
    token_budget: int = 512,
    dtype: str = "float32",
    device: str = "cpu",
    numerics: Numerics = Numerics.FAST,
) -> RequestExecutor:
    """Return an executor of the model in ``directory`` with every linear adapted."""
    decoder = load_decoder(directory, dtype=dtype, device=device)
    layout = AdapterLayout(linear_shapes(decoder.config))
    return RequestExecutor(
        decoder,
        layout=layout,
        num_slots=num_slots,
        num_rank_rows=num_rank_rows,
        token_budget=token_budget,
        dtype=decoder.dtype if device == "cpu" else torch.float32,
        compute_dtype=decoder.dtype,
        numerics=numerics,
    )


def a_loss(name: str, **numbers: float) -> TokenLoss:
    return checked_loss(name, numbers, known=TOKEN_OBJECTIVES)


def random_datum(rng: np.random.Generator, loss: TokenLoss, *, longest: int = 40) -> Datum:
    """Return a datum of any length from 1 on, of several targets where the loss may have them."""
    length = int(rng.integers(1, longest + 1))
    several = loss.objective.several_targets and rng.random() < 0.4
    shape = (length, int(rng.integers(1, 5))) if several else (length,)
    inputs: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.generic]]] = {
        "target_tokens": rng.integers(0, VOCABULARY, size=shape),
        **{name: random_input(rng, name, shape) for name in loss.objective.inputs},
    }
    tokens = rng.integers(0, VOCABULARY, size=length)
    return checked_datum(tokens, inputs, loss=loss, place=0, vocab_size=VOCABULARY, context=256)


def random_input(
    rng: np.random.Generator, name: str, shape: tuple[int, ...]
) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if name == "logprobs":
        return -5.0 * rng.random(shape)
    return rng.normal(size=shape) * (rng.random(shape) < 0.7)
