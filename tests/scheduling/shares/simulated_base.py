"""A resident base on a simulated clock: tenants' demands in, a history of passes out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from cohort.scheduling.shares.records import ReadyWork, ShareSettings, Turn, WorkKind
from cohort.scheduling.shares.turns import TurnTaker
from cohort.scheduling.shares.verify import PassRun, Wanted

# the measured curve of an 8B model's passes
PASS_SECONDS, TOKEN_SECONDS = 0.04, 50e-6


@dataclass(kw_only=True)
class Demand:
    """Tokens that a tenant wants computed, in rows of ``row_tokens``, from ``since`` on."""

    tenant: str
    kind: WorkKind
    num_rows: int
    row_tokens: int
    since: float = 0.0


@dataclass(kw_only=True)
class History:
    passes: list[PassRun] = field(default_factory=list)
    wanted: list[Wanted] = field(default_factory=list)
    # by tenant, when each of its demands had nothing left
    ended: dict[str, list[float]] = field(default_factory=dict)

    def seconds(self, *, until: float = float("inf")) -> dict[str, float]:
        """Return GPU seconds by tenant of the passes that ended by ``until``."""
        total: dict[str, float] = {}
        for run in self.passes:
            if run.end_seconds <= until:
                for tenant, seconds in run.seconds_by_tenant.items():
                    total[tenant] = total.get(tenant, 0.0) + seconds
        return total


def simulate(
    demands: Sequence[Demand],
    *,
    weights: Mapping[str, float],
    budget_tokens: int = 4096,
    settings: ShareSettings | None = None,
    restart_every: int | None = None,
) -> History:
    """Run until nothing is left. ``restart_every``: passes after which all that is kept is the record."""
    taker = TurnTaker(weights, settings=settings)
    left = sorted(demands, key=lambda demand: demand.since)
    history, now, since = History(), 0.0, dict[str, float]()
    while any(demand.num_rows for demand in left):
        here = [demand for demand in left if demand.num_rows and demand.since <= now]
        for tenant in set(since) - {demand.tenant for demand in here}:
            history.wanted.append(Wanted(tenant=tenant, since_seconds=since.pop(tenant), until_seconds=now))
        for demand in here:
            since.setdefault(demand.tenant, demand.since)
        turn = taker.next_turn(_ready(here, budget_tokens))
        if turn is None:
            now = min(demand.since for demand in left if demand.num_rows)
            continue
        tokens = _compute(turn, here, taker, budget_tokens)
        seconds = PASS_SECONDS + TOKEN_SECONDS * sum(tokens.values())
        history.passes.append(
            PassRun(
                start_seconds=now,
                end_seconds=now + seconds,
                kind=turn.work.kind,
                seconds_by_tenant=taker.charge(turn, seconds=seconds, tokens=tokens),
                requests_waited=any(demand.kind is WorkKind.SERVING for demand in here),
                before_its_turn=turn.before_its_turn,
            )
        )
        now += seconds
        for demand in here:
            if not demand.num_rows:
                history.ended.setdefault(demand.tenant, []).append(now)
        if restart_every and len(history.passes) % restart_every == 0:
            taker = TurnTaker.from_record(taker.to_record(), weights=weights, settings=settings)
    history.wanted += [Wanted(tenant=tenant, since_seconds=begun, until_seconds=now) for tenant, begun in since.items()]
    return history


def _ready(here: Sequence[Demand], budget_tokens: int) -> list[ReadyWork]:
    ready = []
    for kind in WorkKind:
        tokens: dict[str, int] = {}
        for demand in here:
            if demand.kind is kind:
                tokens[demand.tenant] = tokens.get(demand.tenant, 0) + demand.num_rows * demand.row_tokens
        if tokens:
            seconds = PASS_SECONDS + TOKEN_SECONDS * min(sum(tokens.values()), budget_tokens)
            ready.append(ReadyWork(name=kind.value, kind=kind, tokens=tokens, expected_seconds=seconds))
    return ready


def _compute(turn: Turn, here: Sequence[Demand], taker: TurnTaker, budget_tokens: int) -> dict[str, int]:
    """Fill a pass with rows of those that may ride, at least one, and return the tokens of each tenant."""
    if turn.max_seconds is not None:
        budget_tokens = min(budget_tokens, int((turn.max_seconds - PASS_SECONDS) / TOKEN_SECONDS + 1e-6))
    fits: list[Demand] = []
    # no more rows of a tenant than fill the pass
    room = dict.fromkeys(turn.tenants, max(budget_tokens, 1))
    for demand in here:
        if demand.kind is turn.work.kind and room.get(demand.tenant, 0) > 0:
            num_rows = min(demand.num_rows, -(-room[demand.tenant] // demand.row_tokens))
            room[demand.tenant] -= num_rows * demand.row_tokens
            fits += [demand] * num_rows
    rows = [(demand.tenant, demand.row_tokens) for demand in fits]
    tokens: dict[str, int] = {}
    for number in taker.row_order(rows, seconds_per_token=TOKEN_SECONDS):
        demand = fits[number]
        if tokens and sum(tokens.values()) + demand.row_tokens > budget_tokens:
            break
        tokens[demand.tenant] = tokens.get(demand.tenant, 0) + demand.row_tokens
        demand.num_rows -= 1
    return tokens
