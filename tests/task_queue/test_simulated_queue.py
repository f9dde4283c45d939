"""The queue on a simulated clock; workers, nodes and dispatchers die as a seed says: one seed is one history."""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cohort.machine.cluster.worker_pool import PoolEvent
from cohort.task_queue.records import TaskState
from cohort.task_queue.settings import Limits
from tests.task_queue.dispatcher_scene import Scene
from tests.task_queue.fake_pool import FakePool

_LIMITS = Limits(silent_seconds=5.0, still_seconds=20.0, stop_seconds=20.0)
_MOST_DISPATCHERS = 12


class DispatcherDied(BaseException):
    """SIGKILL."""


class DyingPool(FakePool):
    """Pretended workers that fail by chance; what they did stays done. Ends with its dispatcher."""

    def __init__(self, chance: Random, *, deaths: float, **of_pool: Any) -> None:
        super().__init__(**of_pool)
        self.can_grow = True
        self._chance, self._deaths = chance, deaths
        self._lost: list[int] = []

    def wait(self, timeout_seconds: float) -> list[PoolEvent]:
        self._fail()
        holders = [task for worker in self.workers.values() for task in worker.tasks]
        assert len(holders) == len(set(holders)), f"a task runs twice: {holders}"
        return super().wait(timeout_seconds)

    def close(self) -> None:
        super().close()
        if self._deaths < 0:
            # nothing of what a dispatcher does at its end is done by one that was killed
            raise DispatcherDied

    def _fail(self) -> None:
        draw = self._chance.random()
        slots = sorted(self.workers)
        if draw < self._deaths / 4:
            self._deaths = -1.0
            raise DispatcherDied
        if draw > self._deaths or not slots:
            return
        slot, kind = self._chance.choice(slots), self._chance.randrange(5)
        if kind == 0:
            self.kill(slot)
        elif kind == 1:
            self.workers[slot].is_silent = True
        elif kind == 2:
            self.workers[slot].is_still = True
        elif kind == 3 and len(self.all_slots) > 1:
            self.lose([slot])
            self._lost.append(slot)
        elif self._lost:
            self.gain(self._lost.pop())


def play(seed: int, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Play a history, check its end, and return it in words."""
    monkeypatch.setattr("cohort.task_queue.workers.worker_orders.find_changes", lambda task, **_: [])
    folder.mkdir(parents=True, exist_ok=True)
    chance = Random(seed)
    names = [f"{chance.choice('abc')}{number}" for number in range(chance.randint(3, 12))]
    seconds = {name: chance.uniform(2.0, 25.0) for name in names}
    failures = {name: ["boom"] * chance.choice((0, 0, 0, 1, 2, 5)) for name in names}
    scene = Scene(folder, seconds)
    pool_of: dict[str, Any] = {"clock": scene.clock, "num_slots": chance.randint(1, 4), "seconds": seconds}
    for name in names:
        moment = chance.choice((0.0, 0.0, chance.uniform(1, 40)))
        weight = {"a": 1.0, "b": 2.0, "c": 1.0}[name[0]]
        expected = seconds[name] * chance.choice((1.0, 1.0, 3.0))

        def add(name: str = name, weight: float = weight, expected: float = expected) -> None:
            scene.add(name, tenant=name[0], weight=weight, expected=expected)

        scene.at(moment, add)
        if chance.random() < 0.1:
            scene.at(moment + chance.uniform(1, 30), lambda name=name: scene.withdraw(name))  # type: ignore[misc]
    done, order = dict.fromkeys(seconds, 0.0), list[Any]()
    for turn in range(_MOST_DISPATCHERS + 1):
        # the last ones live: what is accepted comes to its end
        pool = DyingPool(chance, deaths=0.03 if turn < _MOST_DISPATCHERS else 0.0, failures=failures, **pool_of)
        pool.done = done
        scene.pool = pool
        try:
            _work_off(scene)
            break
        except DispatcherDied:
            order.append(f"{scene.clock.monotonic():.2f} the dispatcher dies")
        finally:
            order += pool.started
    _check(scene, names, failures, done)
    told = [*order, *scene.store.stretches(), *scene.store.decisions(), *sorted(scene.states().items())]
    scene.store.close()
    return "\n".join(map(str, told))


def _work_off(scene: Scene) -> None:
    # a queue may be empty for a moment before its next task comes
    while scene.actions or scene.store.has_open_tasks():
        if not scene.store.has_open_tasks():
            scene.clock.advance(1.0)
            due = [action for moment, action in scene.actions if moment <= scene.clock.monotonic()]
            scene.actions = [entry for entry in scene.actions if entry[0] > scene.clock.monotonic()]
            for action in due:
                action()
            continue
        scene.run(limits=_LIMITS)
        scene.pool.is_closed = False
        scene.pool.workers.clear()


def _check(scene: Scene, names: Sequence[str], failures: dict[str, list[str]], done: dict[str, float]) -> None:
    states = scene.states()
    assert set(states) == set(names), "a task that was added is gone"
    for name, state in states.items():
        assert state.is_final, f"{name} is {state} for ever"
        if state is TaskState.DONE:
            assert done[name] >= scene.pool.seconds[name] - 1e-6, f"{name} is called done and is not"
            assert done[name] <= scene.pool.seconds[name] + 1.0, f"{name} did work twice"
        elif state is TaskState.REMOVED:
            assert next(task for task in scene.store.tasks() if task.name == name).is_withdrawn
        else:
            assert state is TaskState.FAILED
    for stretch in scene.store.stretches():
        assert stretch.end_seconds is not None, f"{stretch.task} still has a slot"


@pytest.mark.parametrize("seed", range(20))
def test_every_task_comes_to_its_end_once(seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    play(seed, tmp_path, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_a_thousand_histories(first: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for seed in range(first, first + 100):
        play(seed, tmp_path / str(seed), monkeypatch)


def test_a_seed_is_a_history(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first = play(3, tmp_path / "queue", monkeypatch)
    shutil.rmtree(tmp_path / "queue")
    assert play(3, tmp_path / "queue", monkeypatch) == first
