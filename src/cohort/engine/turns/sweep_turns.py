"""Steps of sweeps on a base model that is shared: each is a turn, in which the least charged tenants' trials ride."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from cohort.engine.turns.base_turns import BaseTurns
from cohort.engine.turns.step_turns import ReadyStep
from cohort.scheduling.admission import Capacity, Request
from cohort.scheduling.shares.records import Turn, WorkKind
from cohort.scheduling.tenant_room import arranged

__all__ = ["FILL_TOKENS", "SweepTurns"]

# From so many tokens on a pass of several tenants would only be longer, not faster for each: it is full. A CPU core is
# within 10 % of its speed from 256 (memory/budget.py); a GPU mostly waits for its host below 4,096.
FILL_TOKENS = {"cpu": 256, "cuda": 4096}
_KIND = WorkKind.SWEEP
# Between two steps a loop may write a checkpoint of gigabytes or the results of a task, for which its other tenants
# wait. A loop that is stuck for longer keeps no place.
_KEPT_SECONDS = 60.0


class SweepTurns:
    """Turns of one executor."""

    is_shared = True

    def __init__(self, turns: BaseTurns, *, fill_tokens: int) -> None:
        """Take turns among those of ``turns``; a step of several tenants has about ``fill_tokens``."""
        self._turns, self._fill_tokens = turns, fill_tokens
        # by trial, the number of its last step: of one tenant's trials the one that stepped longest ago is next
        self._stepped: dict[int, int] = {}
        self._num_steps = 0
        # who has trials that run or could run, at the last boundary between steps
        self._wanting: frozenset[str] = frozenset()

    def arrange(
        self, requests: Sequence[Request], *, tenants: Mapping[int, str], residents: frozenset[int], capacity: Capacity
    ) -> list[Request]:
        names = self._wanting = frozenset(tenants.values())
        if len(names) < 2:
            return list(requests)
        return arranged(
            requests,
            tenants=tenants,
            residents=residents,
            capacity=capacity,
            weights={name: self._turns.weight(name) for name in names},
            leads=self._turns.leads(names),
        )

    @contextmanager
    def step(self, ready: Sequence[ReadyStep]) -> Iterator[list[int]]:
        tokens = _tokens(ready)
        # a tenant without room waits as well, for the next trial that ends or gives way
        with self._turns.turn(_KIND, tokens, also_wanting=self._wanting) as held:
            chosen = self._chosen(ready, held.turn)
            held.tokens = _tokens(chosen)
            # sweeps come back with their next step unless their last trial has just ended
            held.follows, held.kept_seconds = self._turns.ready(_KIND, tokens), _KEPT_SECONDS
            self._stepped |= {trial.key: self._num_steps + place for place, trial in enumerate(chosen, start=1)}
            self._num_steps += len(chosen)
            yield sorted(trial.key for trial in chosen)

    @contextmanager
    def other(self, tenant: str) -> Iterator[None]:
        # its tokens are not known here; its time is what counts
        # meanwhile the others wait for their next step: they keep what they are behind by
        own = {tenant: 0}
        with self._turns.turn(_KIND, own, also_wanting=self._wanting) as held:
            held.tokens = own
            if self._wanting:
                held.follows = self._turns.ready(_KIND, dict.fromkeys((tenant, *self._wanting), 0))
                held.kept_seconds = _KEPT_SECONDS
            yield

    def rest(self) -> None:
        self._wanting = frozenset()
        self._turns.rest(_KIND)

    def _chosen(self, ready: Sequence[ReadyStep], turn: Turn) -> list[ReadyStep]:
        """Return who steps: at least one, and as many as the pass has room for."""
        present = {trial.key for trial in ready}
        self._stepped = {key: number for key, number in self._stepped.items() if key in present}
        riding = [trial for trial in ready if trial.tenant in turn.tenants] or list(ready)
        room = self._room(turn, num_tenants=len({trial.tenant for trial in ready}))
        if room is None:
            return riding
        waited = sorted(riding, key=lambda trial: self._stepped.get(trial.key, 0))
        order = self._turns.row_order([(trial.tenant, trial.tokens) for trial in waited], kind=_KIND)
        chosen, taken = list[ReadyStep](), 0
        for trial in (waited[number] for number in order):
            if chosen and taken + trial.tokens > room:
                break
            chosen.append(trial)
            taken += trial.tokens
        return chosen

    def _room(self, turn: Turn, *, num_tenants: int) -> int | None:
        """Return the most tokens of a step; None where no other tenant has to wait for it."""
        room = self._fill_tokens if num_tenants > 1 else None
        price = self._turns.seconds_per_token(_KIND)
        if turn.max_seconds is not None and price:
            most = int(turn.max_seconds / price)
            room = most if room is None else min(room, most)
        return room


def _tokens(ready: Sequence[ReadyStep]) -> dict[str, int]:
    tokens: dict[str, int] = {}
    for trial in ready:
        tokens[trial.tenant] = tokens.get(trial.tenant, 0) + trial.tokens
    return tokens
