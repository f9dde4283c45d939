"""CPU seconds of the answers that metrics are computed from, against another checkout of this project.

Answers of eight adapters to the quickstart's validation prompts, or to GSM8K's test questions by a small pretrained
model. Both checkouts take turns in processes of their own; CPU seconds, not wall seconds, so that other work on the
machine counts less.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result

ADAPTERS = 8
MODELS = {
    "quickstart": REPOSITORY / "examples" / "quickstart" / "base_model",
    "gsm8k": REPOSITORY.parent / "shared" / "models" / "stories260K" / "hf",
}


def prompts_of(task: str, count: int) -> list[str]:
    if task == "quickstart":
        lines = (REPOSITORY / "examples" / "quickstart" / "validation.jsonl").read_text().splitlines()
        return [json.loads(line)["prompt"] for line in lines[:count]]
    lines = (REPOSITORY.parent / "shared" / "data" / "sft" / "gsm8k_test.jsonl").read_text().splitlines()
    return [f"Question: {json.loads(line)['question']}\nAnswer:\n" for line in lines[:count]]


def answer(task: str, count: int, new: int, repeats: int) -> dict[str, Any]:
    """Generate in this process, with whichever checkout is imported; names that old checkouts have, too."""
    import torch

    from cohort.adapters.adapter_state import AdapterState
    from cohort.adapters.bank import AdapterBank
    from cohort.adapters.layout import AdapterLayout
    from cohort.adapters.spec import AdapterSpec
    from cohort.models.tokenizer import load_tokenizer
    from cohort.models.weights import load_decoder
    from cohort.serving import generate as generating

    decoder, tokenizer = load_decoder(MODELS[task]), load_tokenizer(MODELS[task])
    layout = AdapterLayout(decoder.linears)
    bank = AdapterBank(layout, num_slots=ADAPTERS, num_rank_rows=16 * ADAPTERS)
    for index in range(ADAPTERS):
        r = (4, 16)[index % 2]
        weights = torch.randn(r, layout.width, generator=torch.Generator().manual_seed(index)) * 0.05
        bank.insert(AdapterSpec(r=r, lora_alpha=2 * r), AdapterState(weights=weights))
    context = decoder.config.max_position_embeddings
    encoded = [tokenizer(text)["input_ids"][: context - new] for text in prompts_of(task, count)]
    requests = [
        generating.GenerateRequest(prompt_tokens=tokens, max_new_tokens=new, slot=slot)
        for slot in range(ADAPTERS)
        for tokens in encoded
    ]
    stops = generating.end_of_answer_ids(tokenizer, decoder.config.eos_token_ids)
    sized = getattr(generating, "generation_tokens", None)
    budget = {"token_budget": sized(decoder)} if sized is not None else {}
    seconds, answers = [], []
    for _ in range(repeats):
        before = time.process_time()
        answers = generating.generate(
            decoder, requests, lora_for=bank.context, num_slots=ADAPTERS, stop_ids=stops, **budget
        )
        seconds.append(time.process_time() - before)
    return {
        "seconds": min(seconds),
        "tokens": sum(map(len, answers)),
        "digest": hashlib.sha256(json.dumps(answers).encode()).hexdigest()[:16],
    }


def in_process(source: Path, arguments: argparse.Namespace, task: str) -> dict[str, Any]:
    command = [sys.executable, "-m", "benchmarks.serving.metric_evaluation", "--worker", task]
    command += ["--count", str(arguments.count), "--new", str(arguments.new), "--repeats", str(arguments.repeats)]
    environment = {**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
    done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def main() -> None:
    """Measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--baseline", type=Path, help="src folder of the checkout to compare with")
    parser.add_argument("--tasks", nargs="+", choices=sorted(MODELS), default=sorted(MODELS))
    parser.add_argument("--count", type=int, default=32, help="prompts of each adapter")
    parser.add_argument("--new", type=int, default=48)
    parser.add_argument("--repeats", type=int, default=2, help="in a process; the fastest counts")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--worker", choices=sorted(MODELS), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=RESULTS / "metric_evaluation.json")
    arguments = parser.parse_args()
    if arguments.worker:
        print(json.dumps(answer(arguments.worker, arguments.count, arguments.new, arguments.repeats)))
        return
    sources = {"this": REPOSITORY / "src"} | ({"baseline": arguments.baseline} if arguments.baseline else {})
    rows: list[dict[str, Any]] = []
    headline = {}
    for task in arguments.tasks:
        found: dict[str, list[dict[str, Any]]] = {name: [] for name in sources}
        for _ in range(arguments.rounds):
            for name, source in sources.items():
                found[name].append(in_process(source.resolve(), arguments, task))
        for name, own in found.items():
            seconds = statistics.median(each["seconds"] for each in own)
            rows.append({"task": task, "checkout": name, **own[0], "seconds": seconds})
        if arguments.baseline:
            this, before = rows[-2], rows[-1]
            headline[f"metric_evaluation_{task}"] = before["seconds"] / this["seconds"]
            headline[f"same_answers_{task}"] = float(before["digest"] == this["digest"])
    print_table(rows, columns=list(rows[0]))
    write_result(
        arguments.out,
        question="How much faster are the answers of a metric evaluation generated than by another checkout?",
        headline=headline,
        rows=rows,
        notes={"adapters": ADAPTERS, "prompts": arguments.count, "new": arguments.new},
    )


if __name__ == "__main__":
    main()
