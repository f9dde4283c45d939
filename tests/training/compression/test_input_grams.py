"""Inputs as an adapter sees them: E[z z^T] equals that of the inputs themselves, filler left out."""

from __future__ import annotations

from pathlib import Path

import torch

from cohort.adapters.initialization import initial_weights
from cohort.adapters.layout import AdapterLayout
from cohort.adapters.spec import AdapterSpec
from cohort.adapters.variants.block_conversion import input_blocks
from cohort.adapters.variants.block_diagonal import BlockDiagonal
from cohort.models.weights import load_decoder
from cohort.training.compression.input_grams import input_grams
from tests.training.small_models import random_rows, save_llama

SPEC = AdapterSpec(r=4, lora_alpha=8.0)


def test_grams_are_those_of_the_inputs_and_nothing_stays_behind(tmp_path: Path) -> None:
    model = save_llama(tmp_path)
    decoder = load_decoder(tmp_path, dtype="float32", device="cpu")
    layout, blocks = AdapterLayout(dict(decoder.linears)), BlockDiagonal(nblocks=2)
    # B is zero: the adapter changes no input, so that the plain model's are the expected ones
    weights, rows = initial_weights(layout, SPEC, seed=1), random_rows(3, seed=2)
    before = [linear.frozen for layer in decoder.layers for linear in layer.linears]
    parts = {name: input_blocks(blocks, name, shape) for name, shape in layout.linears.items()}
    samples = [rows.sample(i) for i in range(3)]
    grams = input_grams(decoder, layout, SPEC, weights, input_blocks=parts, samples=samples)
    assert [linear.frozen for layer in decoder.layers for linear in layer.linears] == before
    seen: dict[str, list[torch.Tensor]] = {name: [] for name in layout.linears}
    for name, module in model.named_modules():
        if name in seen:
            module.register_forward_hook(lambda _, x, __, name=name: seen[name].append(x[0][0].double()))
    with torch.no_grad():
        for sample in samples:
            model(torch.from_numpy(sample.tokens.astype("int64"))[None])
    for name, columns in layout.columns.items():
        x, a = torch.cat(seen[name]), weights[:, columns.a].double()
        expected = [(z := x[:, ins] @ a[:, ins].T).T @ z / len(x) for ins in parts[name]]
        assert len(expected) == (2 if name.endswith(("o_proj", "down_proj")) else 1)
        # float32 activations of two implementations
        torch.testing.assert_close(grams[name], torch.stack(expected), rtol=1e-4, atol=1e-5)
