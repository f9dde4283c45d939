"""Loops of the unmodified ``tinker`` package against a server: ``tinker_loops.py URL`` prints what they reached.

It runs in an environment of its own (`make test-clients`), and imports nothing of Cohort.
"""

from __future__ import annotations

import json
import sys
import warnings
from typing import Any

import numpy as np
import tinker
from tinker import types

PROMPT = [5, 9, 13, 7]


def supervised(service: Any) -> dict[str, Any]:
    """Learn four rows, save, and go on from the checkpoint in a second model."""
    client = service.create_lora_training_client(base_model="base", rank=8, seed=1).result()
    rng = np.random.default_rng(0)
    rows = [rng.integers(3, 60, size=10).tolist() for _ in range(4)]
    data = [
        types.Datum(
            model_input=types.ModelInput.from_ints(row[:-1]),
            loss_fn_inputs={"target_tokens": row[1:], "weights": [1.0] * 9},
        )
        for row in rows
    ]

    def step(trained: Any) -> float:
        passed = trained.forward_backward(data, "cross_entropy")
        stepped = trained.optim_step(types.AdamParams(learning_rate=3e-3))
        loss = passed.result().metrics["loss:sum"]
        stepped.result()
        return float(loss)

    losses = [step(client) for _ in range(6)]
    path = client.save_state("six").result().path
    resumed = service.create_training_client_from_state_with_optimizer(path).result()
    return {"losses": losses, "path": path, "next": [step(client), step(resumed)]}


def reinforced(service: Any, *, steps: int = 12) -> list[float]:
    """Let answers with many even tokens be drawn more often; return the mean reward of each step."""
    client = service.create_lora_training_client(base_model="base", rank=8, seed=2).result()
    rewards_by_step = []
    for step in range(steps):
        sampler = client.save_weights_and_get_sampling_client().result()
        params = types.SamplingParams(max_tokens=8, temperature=1.0, stop=[], seed=step)
        prompt = types.ModelInput.from_ints(PROMPT)
        sequences = sampler.sample(prompt=prompt, num_samples=16, sampling_params=params).result().sequences
        # each token has its own reward
        even = [np.array([float(token % 2 == 0) for token in each.tokens]) for each in sequences]
        mean = float(np.concatenate(even).mean())
        rewards_by_step.append(mean)
        data = []
        for each, rewards in zip(sequences, even, strict=True):
            row, before = [*PROMPT, *each.tokens], len(PROMPT) - 1
            data.append(
                types.Datum(
                    model_input=types.ModelInput.from_ints(row[:-1]),
                    loss_fn_inputs={
                        "target_tokens": row[1:],
                        "logprobs": [0.0] * before + list(each.logprobs),
                        "advantages": [0.0] * before + (rewards - mean).tolist(),
                    },
                )
            )
        passed = client.forward_backward(data, "importance_sampling")
        stepped = client.optim_step(types.AdamParams(learning_rate=3e-3))
        passed.result()
        stepped.result()
    return rewards_by_step


def refused(service: Any) -> str:
    """Return what a wrong call is told."""
    client = service.create_lora_training_client(base_model="base", rank=4).result()
    datum = types.Datum(
        model_input=types.ModelInput.from_ints(PROMPT),
        loss_fn_inputs={"target_tokens": PROMPT, "weights": [1.0, float("nan"), 1.0, 1.0]},
    )
    try:
        client.forward_backward([datum], "cross_entropy").result()
    except Exception as error:
        return str(error)
    return ""


def main() -> None:
    """Run the loops."""
    warnings.simplefilter("ignore")
    service = tinker.ServiceClient(base_url=sys.argv[1])
    found = {"supervised": supervised(service), "rewards": reinforced(service), "refused": refused(service)}
    print("FOUND " + json.dumps(found), flush=True)


if __name__ == "__main__":
    main()
