"""Training on quantised weights: packing changes no bit, a poisoned neighbour none, and a resume goes on the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.core.events import StepDone
from cohort.machine.compile_ahead.workers import KernelCompiler
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import WEIGHT_FORMATS
from cohort.models.weight_formats.kinds import fp8
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from tests.training.invariants.test_packing_changes_nothing import NEIGHBOURS, ROWS, STEPS, SUBJECTS, outcome
from tests.training.small_models import save_llama, save_qwen2

FORMATS = sorted(name for name, kept in WEIGHT_FORMATS.items() if kept.quantisation is not None)
SUBJECT = SUBJECTS[1]


@pytest.fixture(scope="module", params=FORMATS)
def decoder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Decoder:
    directory: Path = tmp_path_factory.mktemp("model")
    (save_qwen2 if request.param == "fp8" else save_llama)(directory)
    return load_decoder(directory, dtype="float32", weight_format=request.param)


def train(
    decoder: Decoder, *, packed: bool, token_budget: int = 10_000, poisoned: bool = False, parked: bool = False
) -> tuple[list[StepDone], Tensor, float]:
    settings = ExecutorSettings(
        num_slots=8, num_rank_rows=512, token_budget=token_budget, evaluation_token_budget=token_budget
    )
    executor = Executor(
        decoder,
        target_linears=decoder.linears,
        train_rows=ROWS,
        settings=settings,
        device=decoder.device,
        compute_dtype=decoder.dtype,
    )
    for spec in [*NEIGHBOURS[:3], SUBJECT] if packed else [SUBJECT]:
        executor.load(spec)
    events = list(executor.step())
    if poisoned:
        victim = executor.slot_of(NEIGHBOURS[1].trial_id)
        executor.bank.weights_RD[executor.bank.rank_rows(victim)] = float("nan")
    if parked:
        state = executor.unload(SUBJECT.trial_id)
        executor.step()
        executor.load(SUBJECT, state)
    events += [event for _ in range(STEPS - 1) for event in executor.step()]
    return outcome(executor, SUBJECT, events)


def test_neighbours_splits_poison_and_parking_change_no_bit(decoder: Decoder) -> None:
    expected = train(decoder, packed=False)
    assert expected[0][-1].loss < expected[0][0].loss * 1.5
    for found in (
        train(decoder, packed=True, token_budget=170),
        train(decoder, packed=True, poisoned=True),
        train(decoder, packed=True, parked=True),
    ):
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])
        assert found[2] == expected[2]


def compile_kernels(work: Callable[[], object]) -> None:
    """Compile what ``work`` launches by all cores: one after the other, a cold machine takes minutes."""
    with KernelCompiler() as compiler:
        with compiler.collecting():
            work()
        compiler.wait()


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
def test_on_a_gpu_a_pack_repeats_itself_and_poison_stays_in_its_slot(tmp_path: Path, name: str) -> None:
    """Alone a trial may get other last bits there (docs/numerics.md); the same pack gives the same."""
    save_llama(tmp_path, hidden_size=96)
    decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda", weight_format=name)
    compile_kernels(lambda: [train(decoder, packed=packed) for packed in (True, False)])
    expected = train(decoder, packed=True)
    for found in (train(decoder, packed=True), train(decoder, packed=True, poisoned=True)):
        assert found[0] == expected[0]
        assert torch.equal(found[1], expected[1])
        assert found[2] == expected[2]
    alone = train(decoder, packed=False)
    torch.testing.assert_close(
        torch.tensor([event.loss for event in alone[0]]), torch.tensor([event.loss for event in expected[0]]),
        rtol=0.02, atol=0.0,
    )  # fmt: skip


@pytest.mark.gpu
@pytest.mark.parametrize("name", FORMATS)
def test_a_gpus_losses_are_near_the_definitions(tmp_path: Path, name: str) -> None:
    save_llama(tmp_path, hidden_size=96)
    losses = []
    for device, dtype in (("cpu", "float32"), ("cuda", "bfloat16")):
        decoder = load_decoder(tmp_path, dtype=dtype, device=device, weight_format=name)
        settings = ExecutorSettings(num_slots=8, num_rank_rows=512, token_budget=4096, evaluation_token_budget=4096)
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=settings,
            device=device,
            compute_dtype=decoder.dtype,
        )
        executor.load(SUBJECT)
        losses.append([executor.step()[0].loss for _ in range(STEPS)])
    # bf16 streams of a small random model differ by about 1 % from float32 ones in any format
    torch.testing.assert_close(torch.tensor(losses[1]), torch.tensor(losses[0]), rtol=0.03, atol=0.0)


@pytest.mark.gpu
@pytest.mark.parametrize("graph_tokens", [0, 4096])
def test_codes_from_the_norms_change_no_bit_of_training(
    tmp_path: Path, graph_tokens: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_llama(tmp_path, hidden_size=96)

    def outcomes() -> tuple[list[float], Tensor]:
        decoder = load_decoder(tmp_path, dtype="bfloat16", device="cuda", weight_format="fp8")
        settings = ExecutorSettings(
            num_slots=8,
            num_rank_rows=512,
            token_budget=4096,
            evaluation_token_budget=4096,
            graph_tokens=graph_tokens,
        )
        executor = Executor(
            decoder,
            target_linears=decoder.linears,
            train_rows=ROWS,
            settings=settings,
            device="cuda",
            compute_dtype=decoder.dtype,
        )
        executor.load(SUBJECT)
        losses = [executor.step()[0].loss for _ in range(STEPS)]
        return losses, executor.weights(SUBJECT.trial_id).cpu()

    losses, weights = outcomes()
    monkeypatch.setattr(fp8.Fp8Linear, "code_room", lambda *_: None)
    apart_losses, apart_weights = outcomes()
    assert losses == apart_losses
    assert torch.equal(weights, apart_weights)
