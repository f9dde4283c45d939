"""A loss of the user's own: its gradient is torch's, alone as in a pack; what is wrong names the row."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor

from cohort.data.packing import SlotSample
from cohort.data.tokenised import TokenisedRows
from cohort.metrics import FunctionRefusedError
from cohort.models.weights import load_decoder
from cohort.training.executor import Executor
from cohort.training.executor_settings import ExecutorSettings
from cohort.training.group_terms import StepTerms, group_terms
from cohort.training.objectives.kinds.function import FunctionLoss, LossFailedError, forget_functions, loss_function
from cohort.training.objectives.kinds.sft import SupervisedFineTuning
from cohort.training.trial import TrialSpec
from tests.training.invariants.test_peft_equality import device_of, relative, spec_of, train_here, train_with_peft
from tests.training.small_models import random_rows, save_llama, save_qwen2

ROWS = random_rows(20, seed=6, longest=15)
HERE = "tests.training.objectives.kinds.test_function"
SEEN: list[tuple[int, ...]] = []


def focal(log_probs: Tensor, tokens: Tensor) -> Tensor:
    """Tokens that are likely already count less; those of an even number count twice."""
    return -((1 - log_probs.exp()) ** 2) * log_probs * torch.where(tokens % 2 == 0, 2.0, 1.0)


def smoothed(log_probs: Tensor, tokens: Tensor) -> Tensor:
    # numbers of the whole row: it may mix the tokens of a row, and of no other
    SEEN.append(tuple(tokens.tolist()))
    return -log_probs * log_probs.detach().mean().exp()


def raises(log_probs: Tensor, tokens: Tensor) -> Tensor:
    raise KeyError("weight")


def divides(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return log_probs / (log_probs - log_probs)


def is_mean(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return -log_probs.mean()


def is_constant(log_probs: Tensor, tokens: Tensor) -> Tensor:
    return -log_probs.detach()


def is_number(log_probs: Tensor, tokens: Tensor) -> float:
    return 1.0


def takes_one(log_probs: Tensor) -> Tensor:
    return -log_probs


def of(function: str) -> FunctionLoss:
    return FunctionLoss(function=f"{HERE}:{function}")


def executor_of(folder: Path, specs: list[TrialSpec], *, token_budget: int = 10_000) -> Executor:
    settings = ExecutorSettings(
        num_slots=4, num_rank_rows=128, token_budget=token_budget, evaluation_token_budget=token_budget
    )
    decoder = load_decoder(folder, dtype="float32", device="cpu")
    executor = Executor(decoder, target_linears=decoder.linears, train_rows=ROWS, settings=settings)
    for spec in specs:
        executor.load(spec)
    return executor


def trial(trial_id: int, objective: FunctionLoss | SupervisedFineTuning, *, r: int = 4) -> TrialSpec:
    spec = spec_of(r, learning_rate=1e-2)
    return replace(spec, trial_id=trial_id, seed=trial_id, objective=objective, batch_size=2 + trial_id)


def outcome(executor: Executor, trial_id: int, *, steps: int = 4) -> tuple[list[float], Tensor, float]:
    losses = [next(done.loss for done in executor.step() if done.trial_id == trial_id) for _ in range(steps)]
    found = executor.evaluate([trial_id], rows=ROWS, row_ids=range(9))[trial_id]
    return losses, executor.weights(trial_id), found.loss


def test_minus_the_log_probabilities_is_supervised_fine_tuning(tmp_path: Path) -> None:
    save_llama(tmp_path)
    trained, own = (
        outcome(executor_of(tmp_path, [trial(0, objective)]), 0)
        for objective in (SupervisedFineTuning(), FunctionLoss())
    )
    # a row is summed without the zeros of its untrained tokens, so the last bits differ
    assert own[0] == pytest.approx(trained[0], rel=1e-6)
    assert relative(own[1], trained[1]) < 1e-5
    assert own[2] == pytest.approx(trained[2], rel=1e-6)


@pytest.mark.parametrize("save_model", [save_llama, save_qwen2])
def test_the_gradient_is_that_of_torch_over_whole_logits(tmp_path: Path, save_model: Callable[[Path], object]) -> None:
    save_model(tmp_path)

    def by_rows(model: torch.nn.Module, rows: TokenisedRows, ids: list[int]) -> list[Tensor]:
        samples, parts = [rows.sample(row) for row in ids], []
        count = sum(int(sample.trained.sum()) for sample in samples)
        for sample in samples:
            tokens = torch.from_numpy(sample.tokens.astype("int64"))[None].to(device_of(model))
            log_probs = model(input_ids=tokens).logits[0, :-1].log_softmax(-1)
            trained = torch.from_numpy(sample.trained)[1:]
            targets = tokens[0, 1:]
            parts.append(focal(log_probs.gather(1, targets[:, None])[trained, 0], targets[trained]).sum() / count)
        return parts

    spec = replace(spec_of(4), objective=of("focal"))
    losses, weights, layout = train_here(tmp_path, spec, ROWS, dtype=torch.float64)
    expected_losses, expected = train_with_peft(tmp_path, spec, ROWS, layout, dtype=torch.float64, batch_loss=by_rows)
    assert losses == pytest.approx(expected_losses, rel=1e-9)
    assert max(relative(weights[name], expected[name]) for name in expected) < 1e-8


@pytest.mark.parametrize("subject", [0, 1, 2])
def test_a_trial_has_the_bits_in_a_pack_that_it_has_alone(tmp_path: Path, subject: int) -> None:
    save_llama(tmp_path)
    specs = [trial(0, of("focal")), trial(1, of("smoothed"), r=8), trial(2, SupervisedFineTuning(), r=16)]
    alone = outcome(executor_of(tmp_path, [specs[subject]]), subject)
    for token_budget in (10_000, 40):
        packed = outcome(executor_of(tmp_path, specs, token_budget=token_budget), subject)
        assert packed[0] == alone[0]
        assert torch.equal(packed[1], alone[1])
        assert packed[2] == alone[2]


def test_it_is_given_the_trained_tokens_of_one_row() -> None:
    samples = [ROWS.sample(row) for row in range(3)]
    losses_T = torch.rand(sum(len(sample.tokens) for sample in samples))
    SEEN.clear()
    entries = [SlotSample(slot=0, sample=sample) for sample in samples]
    group_terms(losses_T, entries, {0: StepTerms(objective=of("smoothed"), divisor=1)})
    assert [tuple(sample.tokens[sample.trained].tolist()) for sample in samples] == SEEN


@pytest.mark.parametrize(
    ("function", "told"),
    [
        ("raises", r"raises raised KeyError: 'weight' \(test_function.py:\d+\), on "),
        ("divides", r"divides returned a loss of (nan|-?inf), on "),
        (
            "is_mean",
            r"is_mean returned a tensor \[\] of torch.float32, not a loss for each token.*, on ",
        ),
        ("is_constant", r"is_constant returned a loss that does not depend on log_probs"),
        ("is_number", r"is_number returned 1.0, not a loss for each token"),
    ],
)
def test_what_is_no_loss_names_function_and_row(function: str, told: str) -> None:
    sample = replace(ROWS.sample(0), source="train.jsonl:7")
    losses_T = torch.rand(len(sample.tokens), requires_grad=True)
    with pytest.raises(LossFailedError, match=told + ".*train.jsonl:7"):
        group_terms(losses_T, [SlotSample(slot=0, sample=sample)], {0: StepTerms(objective=of(function), divisor=1)})


def test_a_model_that_diverged_is_no_fault_of_the_function() -> None:
    sample = ROWS.sample(0)
    losses_T = torch.full((len(sample.tokens),), torch.nan)
    terms_G = group_terms(
        losses_T, [SlotSample(slot=0, sample=sample)], {0: StepTerms(objective=of("focal"), divisor=1)}
    )
    assert bool(terms_G.isnan().all())


def test_a_function_is_found_once_until_it_is_forgotten() -> None:
    first = loss_function(f"{HERE}:focal")
    assert loss_function(f"{HERE}:focal") is first
    forget_functions()
    assert loss_function(f"{HERE}:focal") is not first
    with pytest.raises(FunctionRefusedError, match="which does not take two arguments"):
        loss_function(f"{HERE}:takes_one")
