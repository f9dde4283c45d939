"""Reference log-probabilities are those of the model alone, or with an adapter, however the passes are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.core.numerics import Numerics
from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.kernels.backend import Backend, use_backend
from cohort.models.decoder import Decoder
from cohort.models.weights import load_decoder
from cohort.training.reference.reference_adapter import ReferenceAdapter
from cohort.training.reference.reference_logps import answer_log_probs
from tests.training.small_models import compared_rows, save_llama


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("model")
    save_llama(directory)
    return directory


def too_large(entry: SlotSample, words: str) -> Exception:
    return AssertionError(f"{entry.sample.sample_id}: {words}")


def log_probs(model: torch.nn.Module, rows: TokenisedRows) -> list[float]:
    found = []
    for row in range(len(rows)):
        sample = rows.sample(row)
        tokens = torch.from_numpy(sample.tokens.astype("int64"))
        with torch.no_grad():
            predicted = model(input_ids=tokens[None]).logits[0, :-1].log_softmax(dim=-1)
        own = predicted.gather(1, tokens[1:, None])[:, 0]
        # the answer alone, also where tokens of the prompt are trained
        answer = torch.from_numpy(sample.trained)[1:] & (torch.arange(1, len(tokens)) >= sample.answer_start)
        found.append(float(own[answer].sum()))
    return found


def of(decoder: Decoder, rows: TokenisedRows, *, budget: int, adapter: ReferenceAdapter | None = None) -> list[float]:
    samples = [rows.sample(row) for row in range(len(rows))]
    return answer_log_probs(decoder, samples, token_budget=budget, too_large=too_large, adapter=adapter)


def test_the_frozen_model_s_own_in_any_passes(folder: Path) -> None:
    decoder, rows = load_decoder(folder, dtype="float64", device="cpu"), compared_rows(6, seed=3, longest=14)
    found = of(decoder, rows, budget=1000)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    assert found == pytest.approx(log_probs(model, rows), rel=1e-9)
    in_float32 = load_decoder(folder, dtype="float32", device="cpu")
    assert of(in_float32, rows, budget=16) == of(in_float32, rows, budget=1000)


def test_an_adapter_is_the_model_with_its_product_added(folder: Path) -> None:
    decoder, rows = load_decoder(folder, dtype="float64", device="cpu"), compared_rows(4, seed=5, longest=12)
    layout = AdapterLayout({name: shape for name, shape in decoder.linears.items() if "v_proj" in name})
    spec = AdapterSpec(r=3, lora_alpha=6)
    # a bank is float32, so its entries are numbers that both have
    weights_rD = 0.1 * torch.randn(3, layout.width, generator=torch.Generator().manual_seed(0))
    adapter = ReferenceAdapter(layout=layout, spec=spec, weights_rD=weights_rD)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float64)
    for name, columns in layout.columns.items():
        own = weights_rD.double()
        model.get_submodule(name).weight.data += spec.scale * own[:, columns.b].T @ own[:, columns.a]
    found = of(decoder, rows, budget=20, adapter=adapter)
    # a moment of attention apart, the same sums in another order
    assert found == pytest.approx(log_probs(model, rows), rel=1e-9)
    assert found != pytest.approx(of(decoder, rows, budget=20), rel=1e-3)


def test_exact_numerics_hold_for_the_reference_too(folder: Path) -> None:
    pytest.importorskip("triton")
    decoder = load_decoder(folder, dtype="float32", device="cpu")
    exact = Numerics.EXACT
    with use_backend(Backend.TRITON):
        assert answer_log_probs(decoder, [], token_budget=8, too_large=too_large, numerics=exact) == []
    assert all(getattr(product, "is_exact", False) for product in decoder.products)


@pytest.mark.gpu
@pytest.mark.parametrize("use_dora", [False, True])
def test_an_exact_reference_has_its_bits_in_any_passes(folder: Path, *, use_dora: bool) -> None:
    decoder, rows = load_decoder(folder, dtype="bfloat16", device="cuda"), compared_rows(40, seed=3, longest=40)
    layout, spec = AdapterLayout(decoder.linears), AdapterSpec(r=12, lora_alpha=12, use_dora=use_dora)
    weights_rD = 0.1 * torch.randn(spec.num_rows, layout.width, generator=torch.Generator().manual_seed(0))
    adapter = ReferenceAdapter(layout=layout, spec=spec, weights_rD=weights_rD)
    samples = [rows.sample(row) for row in range(len(rows))]
    found = [
        answer_log_probs(
            decoder, samples, token_budget=budget, too_large=too_large, adapter=adapter, numerics=Numerics.EXACT
        )
        for budget in (50, 200, 5000)
    ]
    assert found[0] == found[1] == found[2]
