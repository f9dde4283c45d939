"""What a model's calls give depends neither on other models' calls and order nor on where the model was meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from cohort.adapters.spec import AdapterSpec
from cohort.training.client_training.request_executor import AdamParameters, PassRequest, RequestExecutor
from cohort.training.client_training.token_passes import train_tokens
from tests.training.client_training.client_data import NAMES, a_loss, open_executor, random_datum
from tests.training.small_models import save_llama

Operation = PassRequest | AdamParameters


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("llama")
    save_llama(directory)
    return directory


@dataclass(kw_only=True)
class Program:
    """The calls of one client, in order, and what they gave."""

    model_id: str
    spec: AdapterSpec
    frozen: tuple[str, ...]
    operations: list[Operation]
    given: list[bytes] = field(default_factory=list)


def random_program(seed: int, executor: RequestExecutor) -> Program:
    rng, model_id = np.random.default_rng(seed), f"model-{seed}"
    spec = AdapterSpec(r=int(rng.choice([1, 4, 8, 24])), lora_alpha=32.0)
    operations: list[Operation] = []
    for _ in range(int(rng.integers(3, 7))):
        if rng.random() < 0.35:
            rates = {"learning_rate": float(rng.choice([1e-3, 1e-2])), "beta2": float(rng.choice([0.9, 0.99]))}
            operations.append(AdamParameters(**rates, weight_decay=0.1, grad_clip_norm=float(rng.choice([0.0, 0.5]))))
            continue
        loss = a_loss(str(rng.choice(NAMES)))
        data = tuple(random_datum(rng, loss) for _ in range(int(rng.integers(0, 4))))
        operations.append(PassRequest(model_id=model_id, data=data, loss=loss, trains=bool(rng.random() < 0.7)))
    names = list(executor.layout.linears)
    frozen = tuple(names[:3]) if rng.random() < 0.3 else ()
    return Program(model_id=model_id, spec=spec, frozen=frozen, operations=operations)


def run_together(executor: RequestExecutor, programs: Sequence[Program], *, seed: int) -> None:
    """Run the programs' calls in a random order that keeps each program's own, many in a pass."""
    rng = np.random.default_rng(seed)
    for program in programs:
        executor.models.create(program.model_id, program.spec, seed=7, frozen=program.frozen, state=None)
    done = dict.fromkeys((program.model_id for program in programs), 0)
    while open_ := [program for program in programs if done[program.model_id] < len(program.operations)]:
        chosen = [program for program in open_ if rng.random() < 0.6] or open_[:1]
        rng.shuffle(chosen)
        heads = [(program, program.operations[done[program.model_id]]) for program in chosen]
        passes = [(program, head) for program, head in heads if isinstance(head, PassRequest)]
        for (program, _), results in zip(passes, executor.run([head for _, head in passes]), strict=True):
            program.given += [result.logps.tobytes() + result.terms.tobytes() for result in results]
        steps = [(program, head) for program, head in heads if isinstance(head, AdamParameters)]
        if steps:
            norms = executor.step([(program.model_id, head) for program, head in steps])
            for (program, _), norm in zip(steps, norms, strict=True):
                program.given.append(repr(norm).encode())
        for program, _ in heads:
            done[program.model_id] += 1
    for program in programs:
        state = executor.models.state(program.model_id)
        program.given += [tensor.numpy().tobytes() for tensor in state.adapter.tensors.values()]
        program.given.append(b"" if state.gradients is None else state.gradients.numpy().tobytes())


@pytest.mark.parametrize("seed", range(2))
def test_random_programs_give_the_same_bits_alone_and_together(model: Path, seed: int) -> None:
    # room for three of the five: models are parked in the middle of their steps
    executor = open_executor(model, num_slots=3, num_rank_rows=64, token_budget=96)
    numbers = range(100 * seed, 100 * seed + 5)
    together = [random_program(number, executor) for number in numbers]
    run_together(executor, together, seed=seed)
    alone = [random_program(number, executor) for number in numbers]
    for program in alone:
        run_together(open_executor(model), [program], seed=seed + 1)
    for one, other in zip(alone, together, strict=True):
        assert one.given == other.given, one.model_id


@pytest.mark.slow
def test_sixty_four_random_programs_give_the_same_bits_alone_and_together(model: Path) -> None:
    for seed in range(100, 164):
        test_random_programs_give_the_same_bits_alone_and_together(model, seed)


def test_linears_that_a_model_leaves_alone_stay_as_the_base_has_them(model: Path) -> None:
    executor, loss = open_executor(model), a_loss("cross_entropy")
    frozen = [name for name in executor.layout.linears if "mlp" in name]
    executor.models.create("m", AdapterSpec(r=4, lora_alpha=32.0), seed=1, frozen=frozen, state=None)
    data = tuple(random_datum(np.random.default_rng(2), loss) for _ in range(3))
    for _ in range(2):
        executor.run([PassRequest(model_id="m", data=data, loss=loss, trains=True)])
        executor.step([("m", AdamParameters(learning_rate=1e-2))])
    weights = executor.models.state("m").adapter.weights
    for name, columns in executor.layout.columns.items():
        assert bool(weights[:, columns.b].any()) is ("mlp" not in name), name


def test_a_pass_that_fails_leaves_other_models_and_clears_the_gradients_of_its_own(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    executor, loss = open_executor(model), a_loss("cross_entropy")
    data = (random_datum(np.random.default_rng(3), loss),)
    for name in ("one", "two"):
        executor.models.create(name, AdapterSpec(r=4, lora_alpha=32.0), seed=1, state=None)
        executor.run([PassRequest(model_id=name, data=data, loss=loss, trains=True)])
    kept = executor.models.state("two").gradients
    monkeypatch.setattr(
        "cohort.training.client_training.request_executor.train_tokens",
        lambda *_, **__: (_ for _ in ()).throw(MemoryError()),
    )
    with pytest.raises(MemoryError):
        executor.run([PassRequest(model_id="one", data=data, loss=loss, trains=True)])
    assert executor.models.state("one").gradients is None
    after = executor.models.state("two").gradients
    assert kept is not None
    assert after is not None
    assert torch.equal(kept, after)


@pytest.mark.parametrize("num_slots", [1, 2])
def test_when_a_later_part_of_a_pass_fails_no_call_of_it_has_left_gradients(
    model: Path, monkeypatch: pytest.MonkeyPatch, num_slots: int
) -> None:
    # a part for each model: in passes of few tokens, or in a bank of one slot
    executor, loss = open_executor(model, num_slots=num_slots, token_budget=1), a_loss("cross_entropy")
    data = (random_datum(np.random.default_rng(3), loss),)
    for name in ("one", "two"):
        executor.models.create(name, AdapterSpec(r=4, lora_alpha=32.0), seed=1, state=None)
    done = list[int]()

    def only_once(*arguments: Any, **named: Any) -> Any:
        if done:
            raise MemoryError
        done.append(1)
        return train_tokens(*arguments, **named)

    monkeypatch.setattr("cohort.training.client_training.request_executor.train_tokens", only_once)
    with pytest.raises(MemoryError):
        executor.run([PassRequest(model_id=name, data=data, loss=loss, trains=True) for name in ("one", "two")])
    assert done
    assert executor.models.state("one").gradients is None
    assert executor.models.state("two").gradients is None
