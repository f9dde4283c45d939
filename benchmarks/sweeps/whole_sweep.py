"""How long does ``cohort tune`` take from its start to its last file, against one PEFT run over the same rows?

The command line itself on a model directory: 60 trials (5 learning rates, 3 ranks, 4 batch sizes), one epoch, early
exit with default settings. Every measured thing is a process of its own, imports and loading included, and all run in
turn on one machine: PEFT at batch 1 and 8, the sweep with empty caches (cold), and again with those it left (warm). A
sweep's row has the seconds of its phases, by the lines of its log, and the kernels that a pass had to compile.

The model has random weights; its rows have GSM8K's lengths and words drawn by Zipf's law, so that losses fall as trials
learn which words are frequent, and early exit has something to compare.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.llama_shapes import SHAPES, gsm8k_lengths, hf_config, rows_of_lengths
from benchmarks.measure import REPOSITORY, RESULTS, print_table, write_result
from benchmarks.requirements import need_gpu
from benchmarks.steps.step_timing import peft_loop
from benchmarks.sweeps.sweep_grid import BATCH_SIZES, LEARNING_RATES, RANKS

__all__ = ["main", "run_process", "write_inputs"]

QUESTION = "How long does a whole sweep take by the command line, against one PEFT run over the same rows?"
NUM_VALIDATION_ROWS = 64
# hosts differ by two in PEFT's step at batch 1, and PEFT waits for its host: this is the step on a fast one
FAST_HOST_MS = {"1b": 96.0, "8b": 157.0}


def main() -> None:
    """Measure, print, write; or be the PEFT process."""
    options = _arguments()
    if options.peft_batch_size:
        _be_peft(options.folder, batch_size=options.peft_batch_size)
        return
    need_gpu(shape=options.shape)
    with tempfile.TemporaryDirectory(prefix="whole-sweep-") as made:
        folder = options.folder or Path(made)
        folder.mkdir(parents=True, exist_ok=True)
        pairs = write_inputs(folder, shape=options.shape, num_layers=options.num_layers, num_rows=options.rows)
        rows = [_time_peft(folder, batch_size=size) for size in options.peft]
        for name in ("cold", "warm"):
            rows.append(_time_sweep(folder, name=name))
            _print(rows)
    headline = _headline(rows, shape=options.shape)
    notes = {"rows": len(pairs), "tokens": sum(map(sum, pairs)), "fast_host_step_ms": FAST_HOST_MS.get(options.shape)}
    out = options.out or RESULTS / f"whole_sweep_{options.shape}.json"
    write_result(out, question=QUESTION, headline=headline, rows=rows, notes=notes)
    print({key: round(value, 3) for key, value in headline.items()})


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="1b")
    parser.add_argument("--num-layers", type=int, default=None, help="fewer layers, to try it out")
    parser.add_argument("--rows", type=int, default=320, help="training rows")
    parser.add_argument("--peft", type=int, nargs="*", default=[1, 8], metavar="BATCH_SIZE", help="PEFT runs to time")
    parser.add_argument("--folder", type=Path, default=None, help="keep model, rows and runs here")
    parser.add_argument("--peft-batch-size", type=int, default=None, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def write_inputs(folder: Path, *, shape: str, num_layers: int | None, num_rows: int) -> list[tuple[int, int]]:
    """Write model, tokenizer, rows and task file; return (prompt, completion) lengths of the training rows."""
    config = hf_config(shape, num_layers=num_layers)
    _write_model(folder / "model", config)
    recorded = gsm8k_lengths()
    rng = np.random.default_rng(0)
    chosen = [recorded[i] for i in rng.choice(len(recorded), size=num_rows + NUM_VALIDATION_ROWS, replace=False)]
    if shape == "tiny":
        chosen = [(prompt // 8 + 1, completion // 8 + 1) for prompt, completion in chosen]
    for name, pairs in (("train", chosen[:num_rows]), ("validation", chosen[num_rows:])):
        lines = []
        for prompt, completion in pairs:
            # one token a word; the completion's last token is the end of sequence that training adds
            words = [f"w{rank}" for rank in np.minimum(rng.zipf(1.3, size=prompt + completion - 1), 400)]
            lines.append(json.dumps({"prompt": " ".join(words[:prompt]), "completion": " " + " ".join(words[prompt:])}))
        (folder / f"{name}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")
    task = {
        "model_name_or_path": "model",
        "dataset": {"train": "train.jsonl", "validation": "validation.jsonl", "format": "prompt_completion"},
        "training": {"num_train_epochs": 1},
        "search": {
            "space": {
                "learning_rate": list(LEARNING_RATES),
                "r": list(RANKS),
                "lora_alpha": "2r",
                "batch_size": list(BATCH_SIZES),
            }
        },
    }
    (folder / "task.yaml").write_text(json.dumps(task, indent=1), encoding="utf-8")
    return chosen[:num_rows]


def _write_model(folder: Path, config: dict[str, Any]) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

    vocabulary = {"</s>": 0, "<unk>": 1, **{f"w{index}": index + 2 for index in range(config["vocab_size"] - 2)}}
    backend = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>", unk_token="<unk>").save_pretrained(folder)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    with torch.device(device):
        model = LlamaForCausalLM(LlamaConfig(**{**config, "bos_token_id": None, "eos_token_id": 0}))
    # files as large as those that published models of 8B have
    model.to(torch.bfloat16).save_pretrained(folder, max_shard_size="5GB")
    del model
    if device == "cuda":
        torch.cuda.empty_cache()


def _be_peft(folder: Path, *, batch_size: int) -> None:
    """Fine-tune one adapter as a plain script does, and print where its time went."""
    began = time.perf_counter()
    from transformers import AutoModelForCausalLM

    device = "cuda" if torch.cuda.is_available() else "cpu"
    model = AutoModelForCausalLM.from_pretrained(folder / "model", dtype=torch.bfloat16, attn_implementation="sdpa")
    lines = [json.loads(line) for line in (folder / "train.jsonl").read_text(encoding="utf-8").splitlines()]
    pairs = [(len(line["prompt"].split()), len(line["completion"].split()) + 1) for line in lines]
    rows = rows_of_lengths(pairs, vocab_size=model.config.vocab_size)
    step, adapted = peft_loop(model, rows, batch_size=batch_size, device=device)
    ready = time.perf_counter()
    num_steps = -(-len(rows) // batch_size)
    for _ in range(num_steps):
        step()
    if device == "cuda":
        torch.cuda.synchronize()
    trained = time.perf_counter()
    adapted.save_pretrained(folder / f"peft-{batch_size}")
    found = {"loading": ready - began, "training": trained - ready, "step_ms": (trained - ready) / num_steps * 1e3}
    print(json.dumps(found))


def _time_peft(folder: Path, *, batch_size: int) -> dict[str, Any]:
    arguments = ["-m", "benchmarks.sweeps.whole_sweep", "--folder", str(folder), "--peft-batch-size", str(batch_size)]
    wall, output = run_process(arguments, folder, caches=None)
    return {"what": f"PEFT, batch {batch_size}", "wall_s": wall, **json.loads(output.splitlines()[-1])}


def _time_sweep(folder: Path, *, name: str) -> dict[str, Any]:
    arguments = ["-m", "cohort", "tune", str(folder / "task.yaml"), "-o", str(folder / name), "--json"]
    lines, began = list[tuple[float, str]](), time.time()
    wall, output = run_process(arguments, folder, caches=folder / "caches", lines=lines)
    found = json.loads(output[output.index("{") :])
    compute, phases = found["compute"], _phases(lines, wall=wall)
    late = _kernels_compiled_late(folder / "caches" / "triton", lines, began=began)
    print(name, {what: round(seconds, 1) for what, seconds in phases.items()}, "compiled by passes:", late, flush=True)
    return {
        "phases": phases,
        "compiled_by_passes": late,
        "what": f"sweep, {name}",
        "wall_s": wall,
        "training": found["seconds"],
        "tokens": compute["trained_tokens"],
        "evaluated": compute["eval_tokens"],
        "evaluated_share": compute["eval_tokens"] / (3 * compute["trained_tokens"]),
        "of_grid": compute["share_of_full_grid"],
    }


def _phases(lines: list[tuple[float, str]], *, wall: float) -> dict[str, float]:
    """Return the seconds of each phase that the command names, and those before the first and behind the last."""
    starts = [("start-up and imports", 0.0)]
    for seconds, line in lines:
        # "[12s] training | 3 running": the phase is what comes before the first bar
        found = re.match(r"\[[^]]*\] ([^|]*?)(?: \||$)", line)
        if found and found[1] != starts[-1][0]:
            starts.append((found[1], seconds))
    ends = [*(seconds for _, seconds in starts[1:]), wall]
    phases: dict[str, float] = {}
    for (what, start), end in zip(starts, ends, strict=True):
        what = "loading" if what.startswith("loading") else what
        phases[what] = phases.get(what, 0.0) + end - start
    return phases


def _kernels_compiled_late(cache: Path, lines: list[tuple[float, str]], *, began: float) -> list[str]:
    """Return the kernels that were compiled after the first phase that launches some had begun."""
    launched = next((seconds for seconds, line in lines if "measuring the" in line), float("inf"))
    return sorted(path.stem for path in cache.glob("*/*.cubin") if path.stat().st_mtime > began + launched + 0.5)


def run_process(
    arguments: list[str], folder: Path, *, caches: Path | None, lines: list[tuple[float, str]] | None = None
) -> tuple[float, str]:
    """Return the wall seconds of a Python process, from its start to its end, and what it printed.

    Args:
        arguments: Behind Python's name.
        folder: Where its log goes.
        caches: Where Cohort, Triton and CUDA keep what they measured and compiled; None: where they usually do.
        lines: Takes the lines of its log with the seconds at which they came.
    """
    command = [sys.executable, *arguments]
    environment = {**os.environ, "PYTHONPATH": f"{REPOSITORY / 'src'}:{os.environ.get('PYTHONPATH', '')}"}
    environment["TOKENIZERS_PARALLELISM"] = "false"
    if caches is not None:
        environment |= {"COHORT_CACHE_DIR": str(caches), "TRITON_CACHE_DIR": str(caches / "triton")}
        environment["CUDA_CACHE_PATH"] = str(caches / "cuda")
    lines = [] if lines is None else lines
    began = time.perf_counter()
    with subprocess.Popen(
        command, env=environment, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        log = process.stderr

        def stamp() -> None:
            lines.extend((time.perf_counter() - began, line.rstrip("\n")) for line in log)

        stamping = threading.Thread(target=stamp)
        stamping.start()
        output = process.stdout.read()
        stamping.join()
        process.wait()
        wall = time.perf_counter() - began
    logged = "".join(f"{line}\n" for _, line in lines)
    (folder / "last.log").write_text(logged, encoding="utf-8")
    if process.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {process.returncode}:\n{logged[-3000:]}")
    return wall, output


def _headline(rows: list[dict[str, Any]], *, shape: str) -> dict[str, float]:
    """Return the sweep's wall time over each PEFT process's, and over its training steps alone."""
    by_name = {row["what"]: row for row in rows}
    headline = {}
    for name in ("cold", "warm"):
        wall = by_name[f"sweep, {name}"]["wall_s"]
        for batch_size, suffix in ((1, ""), (8, "_vs_batch8")):
            if (peft := by_name.get(f"PEFT, batch {batch_size}")) is not None:
                headline[f"whole_sweep_{shape}_{name}{suffix}"] = wall / peft["wall_s"]
                headline[f"whole_sweep_{shape}_{name}{suffix}_over_steps_alone"] = wall / peft["training"]
        if (alone := by_name.get("PEFT, batch 1")) is not None and shape in FAST_HOST_MS:
            num_steps = alone["training"] * 1e3 / alone["step_ms"]
            fast = alone["wall_s"] - alone["training"] + num_steps * FAST_HOST_MS[shape] / 1e3
            headline[f"whole_sweep_{shape}_{name}_against_fast_host"] = wall / fast
    return headline


def _print(rows: list[dict[str, Any]]) -> None:
    print_table(rows, columns=("what", "wall_s", "loading", "training", "step_ms", "tokens", "evaluated", "of_grid"))


if __name__ == "__main__":
    main()
