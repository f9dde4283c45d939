"""Small passes of grouped kernels, run in Python, whose samples train some of their rows."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from cohort.adapters.adapter_state import AdapterState
from cohort.adapters.bank import AdapterBank
from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.data.packing import SlotSample, pack
from cohort.data.tokenised import Sample
from cohort.kernels.backend import Backend, use_backend
from cohort.kernels.dropout import row_keys
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.backward_start import seeded
from cohort.training.token_losses import token_losses, token_weights
from tests.models.fixtures.tiny_checkpoints import save_checkpoint

# Tokens of each sample, how many at its end are trained, and its slot. One of a slot's samples trains nothing, and all
# of another's; slot 1 skips some of them.
PACK = ((27, 9, 0), (20, 3, 0), (6, 0, 0), (21, 20, 1), (9, 0, 2), (24, 11, 3), (2, 1, 3))
RANKS = (8, 4, 16, 33)
DIVISORS = {0: 12, 1: 20, 2: 1, 3: 12}
DROPOUTS = (0.2, 0.0, 0.0, 0.5)
VOCABULARY = 67


def entries_of(samples: Sequence[tuple[int, int, int]] = PACK, *, drops: bool = False) -> list[SlotSample]:
    """Return samples whose tokens and keys follow from their lengths, and not from the pack."""
    found = []
    for length, trained, slot in samples:
        tokens = np.random.default_rng(length).integers(0, VOCABULARY, size=length).astype(np.int32)
        places = np.arange(length)
        is_trained = (places >= length - trained) & ((slot != 1) | (places % 3 > 0))
        sample = Sample(sample_id=length, tokens=tokens, trained=is_trained)
        keys = row_keys(length, trial_seed=7, step=1, sample_id=length) if drops else None
        found.append(SlotSample(slot=slot, sample=sample, row_keys=keys))
    return found


def row_by_row(
    x_MI: Tensor, weight_NK: Tensor, bias_N: Tensor | None = None, *, forward: bool, agreed: object = None
) -> Tensor:
    """Stand for the exact product: a row has the same bits among any others."""
    del agreed
    assert bias_N is None
    own = weight_NK if forward else weight_NK.t()
    return torch.stack([own @ row for row in x_MI])


def one_sum(_: Any, a: Any, b: Any, acc: Any, *precision: Any) -> Any:
    """Stand for a matrix instruction: an entry's bits do not depend on its place in a tile, as numpy's do."""
    del precision
    interpreter: Any = importlib.import_module("triton.runtime.interpreter")
    product = np.matmul(a.data.astype(np.float64), b.data.astype(np.float64)) + acc.data
    return interpreter.TensorHandle(product.astype(acc.data.dtype), acc.dtype.scalar)


@contextmanager
def grouped_in_python(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Let Triton's interpreter run the grouped kernels and attention; what works row by row is computed as on a CPU."""
    interpreter: Any = pytest.importorskip("triton.runtime.interpreter")
    for name in ("rope", "rms_norm", "swiglu", "cross_entropy"):
        module = importlib.import_module(f"cohort.kernels.{name}.op")
        monkeypatch.setattr(module, "choose_backend", lambda x, backend=None: Backend.REFERENCE)
    module = importlib.import_module("cohort.kernels.exact_product.op")
    monkeypatch.setattr(module, "implementation", lambda *_: SimpleNamespace(product=row_by_row))
    monkeypatch.setattr(interpreter.InterpreterBuilder, "create_dot", one_sum)
    with use_backend(Backend.TRITON):
        yield


def opened(folder: Path, *, is_exact: bool = True, num_layers: int = 1) -> Decoder:
    sizes: dict[str, Any] = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    save_checkpoint(folder, "Llama", **sizes, num_key_value_heads=1, num_hidden_layers=num_layers)
    decoder = load_decoder(folder, dtype="float32", device="cpu")
    decoder.use_exact_products(exact=is_exact)
    return decoder


def bank_of(
    decoder: Decoder, *, is_exact: bool, dropouts: Sequence[float] = (0.0,) * 4, use_dora: bool = False
) -> AdapterBank:
    """Return a bank of four adapters; with ``use_dora`` the first has magnitudes."""
    layout = AdapterLayout(dict(decoder.linears))
    bank = AdapterBank(
        layout, num_slots=len(RANKS), num_rank_rows=112, device=decoder.device, compute_dtype=decoder.dtype
    )
    bank.is_exact = is_exact
    for r, dropout in zip(RANKS, dropouts, strict=True):
        has_magnitudes = use_dora and r == RANKS[0]
        spec = AdapterSpec(r=r, lora_alpha=2.0 * r, lora_dropout=dropout, use_dora=has_magnitudes)
        weights = initial_weights(layout, spec, seed=r, weight_of=decoder.weight_of)
        weights[:r] = torch.randn(r, layout.width, generator=torch.Generator().manual_seed(r)) * 0.1
        bank.insert(spec, AdapterState(weights=weights))
    return bank


def launched(
    decoder: Decoder,
    bank: AdapterBank,
    entries: Sequence[SlotSample],
    *,
    fresh_slots: Sequence[int] = (),
    gradient_checkpointing: bool = False,
) -> Tensor:
    """Return the losses of a pass, whose gradients are in the bank."""
    batch = pack(entries, num_slots=bank.num_slots, device=decoder.device)
    lora = bank.context(batch.segments, row_keys_T=batch.row_keys_T, fresh_slots=fresh_slots)
    losses_T = token_losses(decoder, batch, lora, gradient_checkpointing=gradient_checkpointing)
    present = {entry.slot: DIVISORS[entry.slot] for entry in entries if entry.slot >= 0}
    seeded(losses_T, token_weights(batch, divisors=present, dtype=losses_T.dtype)).backward()
    return losses_T.detach()
