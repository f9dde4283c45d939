"""What is ready of all models shares a round, in each model's order, and a failure stays with its own."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

from cohort.core.errors import CohortError
from cohort.engine.client_training.client_trainer import ClientTrainer, TrainerClosedError
from cohort.training.client_training.client_models import UnknownModelError
from cohort.training.client_training.request_executor import AdamParameters, PassRequest
from tests.training.client_training.client_data import a_loss


class FakeModels(set[str]):
    def drop(self, model_id: str) -> None:
        self.remove(model_id)


class FakeExecutor:
    """Writes down its rounds."""

    def __init__(self) -> None:
        self.token_budget, self.rounds = 100, list[list[str]]()
        self.models = FakeModels({"a", "b", "c"})
        self.gate = threading.Event()
        self.gate.set()
        self.error: Exception | None = None

    def run(self, requests: Sequence[PassRequest]) -> list[Any]:
        self.gate.wait(10)
        if requests:
            self.rounds.append([str(request.model_id) for request in requests])
        if self.error is not None:
            raise self.error
        return [f"passed {request.model_id}" for request in requests]

    def step(self, steps: Sequence[tuple[str, AdamParameters]]) -> list[float]:
        self.rounds.append([f"step {model_id}" for model_id, _ in steps])
        return [0.5] * len(steps)


@pytest.fixture
def executor() -> FakeExecutor:
    return FakeExecutor()


@pytest.fixture
def trainer(executor: FakeExecutor) -> Iterator[ClientTrainer]:
    made = ClientTrainer(executor)  # type: ignore[arg-type]
    for model_id in ("a", "b", "c"):
        made.open(model_id)
    made.start()
    yield made
    executor.gate.set()
    made.close()
    assert not made.is_alive


def a_pass(model_id: str) -> PassRequest:
    return PassRequest(model_id=model_id, data=(), loss=a_loss("cross_entropy"), trains=True)


def submit(trainer: ClientTrainer, model_id: str, number: int, work: Any) -> Any:
    return trainer.submit(model_id, number=number, fingerprint=b"", work=work)


def test_passes_of_all_models_share_a_round_and_steps_come_in_their_order(
    trainer: ClientTrainer, executor: FakeExecutor
) -> None:
    executor.gate.clear()
    first = submit(trainer, "a", 1, a_pass("a"))
    while not first.running() and executor.rounds == [] and trainer._logs["a"].waiting:
        threading.Event().wait(0.005)
    # while it runs, the others arrive, those of one model in another order
    answers = [
        submit(trainer, "b", 2, AdamParameters()),
        submit(trainer, "b", 1, a_pass("b")),
        submit(trainer, "c", 1, a_pass("c")),
        submit(trainer, "c", 2, a_pass("c")),
        submit(trainer, "a", 2, AdamParameters()),
        submit(trainer, "c", 3, lambda: "read"),
    ]
    executor.gate.set()
    assert [answer.result(10) for answer in answers] == [0.5, "passed b", "passed c", "passed c", 0.5, "read"]
    assert executor.rounds[0] == ["a"]
    assert sorted(executor.rounds[1]) == ["b", "c", "c"]
    assert executor.rounds[2] == ["step a"]
    assert executor.rounds[3] == ["step b"]


def test_an_error_fails_its_round_and_the_next_goes_on(trainer: ClientTrainer, executor: FakeExecutor) -> None:
    executor.error = MemoryError()
    failed = submit(trainer, "a", 1, a_pass("a"))
    with pytest.raises(MemoryError):
        failed.result(10)
    executor.error = None
    assert submit(trainer, "a", 2, a_pass("a")).result(10) == "passed a"

    def refuse() -> None:
        raise CohortError("wrong")

    with pytest.raises(CohortError, match="wrong"):
        submit(trainer, "a", 3, refuse).result(10)
    assert submit(trainer, "a", 4, AdamParameters()).result(10) == 0.5


def test_a_model_that_could_not_be_made_fails_alone(trainer: ClientTrainer, executor: FakeExecutor) -> None:
    trainer.open("unmade")
    executor.gate.clear()
    submit(trainer, "a", 1, a_pass("a"))
    while trainer._logs["a"].waiting:
        threading.Event().wait(0.005)
    # they wait for the next round, which they share
    wrong = [submit(trainer, "unmade", 1, a_pass("unmade")), submit(trainer, "unmade", 2, AdamParameters())]
    right = submit(trainer, "b", 1, a_pass("b"))
    executor.gate.set()
    for failed in wrong:
        with pytest.raises(UnknownModelError, match="model 'unmade' could not be made"):
            failed.result(10)
    assert right.result(10) == "passed b"
    assert [name for names in executor.rounds for name in names] == ["a", "b"]


def test_the_data_of_an_operation_that_has_run_is_let_go(trainer: ClientTrainer) -> None:
    work = a_pass("a")
    gone = weakref.ref(work)
    submit(trainer, "a", 1, work).result(10)
    del work
    submit(trainer, "a", 2, AdamParameters()).result(10)
    submit(trainer, "a", 3, AdamParameters()).result(10)
    assert gone() is None


def test_a_model_that_is_gone_takes_no_calls_and_those_that_wait_fail(
    trainer: ClientTrainer, executor: FakeExecutor
) -> None:
    waiting = submit(trainer, "a", 2, a_pass("a"))
    trainer.drop("a")
    with pytest.raises(UnknownModelError, match="model 'a' is gone"):
        waiting.result(10)
    with pytest.raises(UnknownModelError, match="there is no model 'a'"):
        submit(trainer, "a", 1, a_pass("a"))
    assert trainer.measure(a_pass("b"), before=lambda: None).result(10) == "passed b"
    assert "a" not in executor.models


def test_a_closed_trainer_fails_what_waits(executor: FakeExecutor) -> None:
    trainer = ClientTrainer(executor)  # type: ignore[arg-type]
    trainer.open("a")
    trainer.start()
    waiting = submit(trainer, "a", 2, a_pass("a"))
    trainer.close()
    with pytest.raises(TrainerClosedError):
        waiting.result(10)
    with pytest.raises(TrainerClosedError):
        submit(trainer, "a", 1, a_pass("a"))
