"""A format of frozen weights is one record: int8 with a scale a row, defined here, loads, trains and is counted."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from cohort.adapters.spec import AdapterSpec
from cohort.core.errors import InputError
from cohort.kernels.row_stable_product import row_stable_product
from cohort.models.checkpoint_layout import linear_shapes
from cohort.models.counts import weight_bytes
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN, WeightFormat
from cohort.models.weight_formats.declaration import FormatDeclaration
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.schedules import Schedule
from cohort.training.trial import TrialSpec
from tests.core.plugin_packages import install
from tests.models.fixtures.tiny_checkpoints import save_checkpoint
from tests.models.test_decoder import MINE, Sample, run
from tests.training.small_models import VOCABULARY, random_rows


def scales_of(weight_NK: Tensor) -> Tensor:
    return weight_NK.abs().amax(dim=1, keepdim=True) / 127


def rounded(weight_NK: Tensor) -> Tensor:
    return (weight_NK / scales_of(weight_NK)).round().to(torch.int8)


class Int8Linear:
    """``y = x (s Q)^T (+ bias)`` with Q in int8 and one scale a row."""

    def __init__(self, weight_NK: Tensor, bias_N: Tensor | None) -> None:
        self.out_features, self.in_features = weight_NK.shape
        self.dtype = weight_NK.dtype
        self._rows_NK, self._scales_N1, self._bias_N = rounded(weight_NK), scales_of(weight_NK), bias_N
        self.num_bytes = self._rows_NK.nbytes + self._scales_N1.nbytes + (0 if bias_N is None else bias_N.nbytes)

    def forward(self, x_TK: Tensor) -> Tensor:
        return row_stable_product(x_TK, self._weight_NK().t(), self._bias_N)

    def grad_input(self, dy_TN: Tensor) -> Tensor:
        return row_stable_product(dy_TN, self._weight_NK())

    def _weight_NK(self) -> Tensor:
        return self._rows_NK.to(self.dtype) * self._scales_N1


DECLARATION = FormatDeclaration(name="rounded", summary="whole numbers, with a scale for each row")
FORMAT = WeightFormat(
    name=DECLARATION.name,
    summary=DECLARATION.summary,
    freeze=Int8Linear,
    weight_bytes=lambda num_out, num_in, dtype: num_out * (num_in + dtype.itemsize),
    compute_dtypes=(torch.float32,),
)


def offer(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Offer the format as an installed package would."""
    points = {"rounded": f"{__name__}:FORMAT"}
    install(monkeypatch, folder / "site", package="rounded", group="cohort.weight_formats", points=points)


@pytest.fixture(params=["Llama", "Qwen2"])
def pair(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Decoder, Decoder]:
    """One checkpoint in int8, and as a plain decoder whose weights were rounded to int8 and back beforehand."""
    offer(monkeypatch, tmp_path)
    folder = save_checkpoint(tmp_path, request.param, vocab_size=VOCABULARY)
    in_int8 = load_decoder(folder, weight_format="rounded")
    tensors = load_file(folder / "model.safetensors")
    for name in linear_shapes(in_int8.config):
        weight = tensors[f"{name}.weight"]
        tensors[f"{name}.weight"] = rounded(weight).to(weight.dtype) * scales_of(weight)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return in_int8, load_decoder(folder)


def test_a_packed_pass_has_the_bits_of_weights_that_were_dequantised_beforehand(pair: tuple[Decoder, Decoder]) -> None:
    samples = [Sample(21, 4), *MINE, Sample(30, 16), Sample(12, None)]
    (outputs, gradients), (expected_outputs, expected_gradients) = (run(decoder, samples) for decoder in pair)
    assert all(torch.equal(a, b) for a, b in zip(outputs, expected_outputs, strict=True))
    assert gradients.keys() == expected_gradients.keys() == {4, 9, 16}
    for rank, expected in expected_gradients.items():
        assert all(gradient.abs().max() > 0 for gradient in expected)
        assert all(torch.equal(a, b) for a, b in zip(gradients[rank], expected, strict=True))


def test_training_takes_the_same_steps(pair: tuple[Decoder, Decoder]) -> None:
    losses, weights = zip(*(trained(decoder) for decoder in pair), strict=True)
    assert losses[0] == losses[1]
    assert losses[0][-1] < losses[0][0]
    assert all(torch.equal(a, b) for a, b in zip(*weights, strict=True))


def trained(decoder: Decoder) -> tuple[list[float], list[Tensor]]:
    """Losses of the first trial, and the weights of both, after a few packed steps."""
    settings = ExecutorSettings(num_slots=2, num_rank_rows=64, token_budget=256, evaluation_token_budget=256)
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=random_rows(8, seed=1), settings=settings)
    for trial_id, r in enumerate((4, 9)):
        spec = TrialSpec(
            trial_id=trial_id,
            seed=17,
            adapter=AdapterSpec(r=r, lora_alpha=2.0 * r),
            learning_rate=1e-2,
            batch_size=8,
            num_steps=5,
            schedule=Schedule.CONSTANT,
        )
        executor.load(spec)
    losses = [executor.step()[0].loss for _ in range(5)]
    return losses, [executor.weights(trial_id) for trial_id in range(2)]


def test_the_format_says_how_many_bytes_there_are(pair: tuple[Decoder, Decoder]) -> None:
    in_int8, plain = pair
    for decoder, name in ((in_int8, FORMAT.name), (plain, PLAIN.name)):
        assert weight_bytes(decoder.config, dtype=torch.float32, weight_format=name) == decoder.num_bytes
    rows = sum(num_out for _, num_out in in_int8.linears.values())
    values = sum(num_in * num_out for num_in, num_out in in_int8.linears.values())
    assert plain.num_bytes - in_int8.num_bytes == 3 * values - 4 * rows


def test_unknown_formats_and_dtypes_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    offer(monkeypatch, tmp_path)
    with pytest.raises(InputError, match=r"weight_format: found 'int4'; allowed: .*none.*rounded"):
        load_decoder(tmp_path, weight_format="int4")
    with pytest.raises(InputError, match=r"float64 with the weight format 'rounded'; allowed: float32"):
        load_decoder(tmp_path, dtype="float64", weight_format="rounded")
