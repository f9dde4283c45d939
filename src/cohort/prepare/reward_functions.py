"""A task's rewards before anything trains: found, and tried on an answer to the first prompt."""

from __future__ import annotations

import json
from dataclasses import replace

from cohort.core.errors import Problem
from cohort.core.source_location import Place
from cohort.data.tokenised import TokenisedRows
from cohort.metrics import function_path
from cohort.metrics.rewards import ConversationRunner, RewardFinding, RewardPlan, RewardRunner, Said
from cohort.tasks.task_file import TaskFile

__all__ = ["reward_identities", "reward_problems"]

_ALLOWED = "a function that returns a number or None for each of any answers, an empty one included"
_HINT = "Correct the function; of an answer that it cannot read return 0, or None to leave it out."


def reward_problems(task: TaskFile, rows: TokenisedRows) -> list[Problem]:
    """Return why rewards of ``task`` cannot be used. Each is called in a process with an empty answer to the first row.

    An empty answer is what a model gives that ends at once, and most mistakes show with any: a column that no row has,
    a package that is missing, a number where a list is expected. A function that takes it is called with two such
    answers, which shows a list of another length: of one answer alone, any list of one number looks right.
    """
    if task.rewards is None:
        return []
    plan = task.rewards.plan()
    # each answer counts, also one that was asked before
    plan = replace(plan, workers=1, functions=tuple(replace(own, cache=False) for own in plan.functions))
    if plan.most_turns:
        return _conversation_problems(plan, rows, where=_where(task, 0))
    places = {own.name: place for place, own in enumerate(plan.functions)}
    with RewardRunner(plan) as runner:
        refusals = runner.problems()
        if refusals:
            return [replace(refusal.problem(Place()), where=_where(task, int(refusal.at[-1]))) for refusal in refusals]
        findings = _of_empty_answers(runner, rows, count=1) or _of_empty_answers(runner, rows, count=2)
    return [
        Problem(
            where=_where(task, places[finding.function]),
            found=f"{finding.function}, which {finding.what}, for an empty answer to {finding.where}",
            allowed=_ALLOWED,
            hint=_HINT,
        )
        for finding in findings
    ]


def _conversation_problems(plan: RewardPlan, rows: TokenisedRows, *, where: Place) -> list[Problem]:
    """Return why a function cannot reply: it is called with an empty answer to the first row, its only one."""
    _, refusals = RewardRunner(plan).looked_up()
    if refusals:
        return [replace(refusal.problem(Place()), where=where) for refusal in refusals]
    columns = json.loads(rows.columns[0])
    prompt = columns["prompt"]
    messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    runner = ConversationRunner(plan)
    try:
        number = runner.submit(
            Said(
                conversation=0,
                messages=[*messages, {"role": "assistant", "content": ""}],
                columns=columns,
                turn=1,
                is_last=True,
                seed=0,
            )
        )
        reply = runner.collect([number])[number]
    finally:
        runner.close()
    if reply.finding is None:
        return []
    return [
        Problem(
            where=where,
            found=f"{runner.name}, which {reply.finding}, for an empty answer to {rows.sources[0]}",
            allowed="a function that returns a text, messages, a number or None for any answer, an empty one included",
            hint="Correct the function; of an answer that it cannot read return a reward such as 0.",
        )
    ]


def _of_empty_answers(runner: RewardRunner, rows: TokenisedRows, *, count: int) -> tuple[RewardFinding, ...]:
    """Return what goes wrong where the first row is answered ``count`` times by nothing."""
    columns = json.loads(rows.columns[0])
    runner.submit(
        prompts=[columns["prompt"]] * count,
        completions=[""] * count,
        columns=[columns] * count,
        sources=[rows.sources[0]] * count,
    )
    (found,) = runner.collect().values()
    return found.findings


def reward_identities(task: TaskFile) -> dict[str, str]:
    """Return the SHA-256 of the code of each reward of the user's by ``reward:NAME``; nothing for those built in."""
    plan = None if task.rewards is None else task.rewards.plan()
    own = () if plan is None else tuple(each for each in plan.functions if function_path(each.function) is not None)
    if plan is None or not own:
        return {}
    identities, _ = RewardRunner(replace(plan, functions=own)).looked_up()
    return {f"reward:{name}": identity for name, identity in identities.items()}


def _where(task: TaskFile, place: int) -> Place:
    return task.where("rewards").below("functions", place)
