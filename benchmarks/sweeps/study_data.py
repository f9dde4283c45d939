"""Data of the early-exit study: which sets are studied, and a pretraining corpus that has seen none of them.

``prepare`` needs the data folder and no GPU. It writes one folder that the other scripts of the study read:

    tokenizer/      byte-level BPE of the corpus, as transformers saves it
    corpus.npz      token ids of the corpus' documents, each ended by the end token, and of held-out ones
    sets/NAME.npz   tokenised rows of a studied set: what is trained on, and a pool of validation rows
    about.json      files, rows, tokens and what was left out
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from cohort.data.loading import load_dataset
from cohort.data.settings import DatasetSettings
from cohort.data.tokenised import TokenisedRows

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["END", "EVALUATION_ROWS", "STUDIED", "StudiedSet", "read_rows", "validation_rows"]

END = "<|end|>"
MAX_LENGTH = 512
# validation rows of one seed: what the product evaluates on by default
EVALUATION_ROWS = 128
SEEDS_OF_THE_POOL = 5
# documents that share this many words in a row with a studied row are left out of the corpus
SHARED_WORDS = 10
HELD_OUT_EVERY = 50


@dataclass(frozen=True, kw_only=True)
class StudiedSet:
    """A set whose rows the base model must not have seen.

    Attributes:
        file: What is trained and evaluated on, below the data folder.
        copies: Further files with the same problems.
        columns, prompt_template: As in a task file.
        role: ``studied``; ``range`` for the set that only the learning rates' scale is chosen on; ``further`` for a set
            that the pretraining corpus holds, whose grids train models of others.
    """

    file: str
    copies: tuple[str, ...] = ()
    columns: Mapping[str, str] = field(default_factory=dict)
    prompt_template: str | None = None
    role: str = "studied"


STUDIED: Mapping[str, StudiedSet] = {
    "gsm8k": StudiedSet(
        file="sft/gsm8k_train.jsonl",
        copies=("sft/gsm8k_test.jsonl", "preference/gsm8k_solutions.jsonl"),
        columns={"prompt": "question", "completion": "answer"},
        prompt_template="Question: {question}\nAnswer:\n",
    ),
    "banking77": StudiedSet(file="nlu/banking77.jsonl"),
    "cot_reasoning": StudiedSet(file="sft/cot_reasoning.jsonl"),
    "svamp": StudiedSet(file="sft/svamp.jsonl", role="range"),
    "clinc150": StudiedSet(file="nlu/clinc150.jsonl", role="further"),
    "induction": StudiedSet(file="sft/induction_tasks.jsonl", role="further"),
}
CORPUS_FOLDERS = ("sft", "nlu", "summarization", "preference", "text")
TEXT_KEYS = ("text", "prompt", "question", "completion", "answer", "chosen")


def documents(path: Path) -> Iterator[str]:
    """Yield the text of each row: the prompt and what should follow it."""
    for line in path.read_text(encoding="utf-8").split("\n"):
        if not line:
            continue
        row = json.loads(line)
        yield "".join(str(row[key]) for key in TEXT_KEYS if row.get(key))


def word_runs(text: str) -> set[int]:
    """Return hashes of all runs of ``SHARED_WORDS`` words, lower-cased, marks aside."""
    words = re.findall(r"[a-z0-9]+", text.lower())
    return {hash(tuple(words[start : start + SHARED_WORDS])) for start in range(len(words) - SHARED_WORDS + 1)}


def corpus(data: Path) -> tuple[list[str], list[str], dict[str, Any]]:
    """Return documents to train on, documents to watch, and what was taken and left out."""
    studied = (entry for entry in STUDIED.values() if entry.role != "further")
    excluded = sorted({name for entry in studied for name in (entry.file, *entry.copies)})
    seen_in_studied = {run for name in excluded for text in documents(data / name) for run in word_runs(text)}
    kept: dict[str, None] = {}
    files: dict[str, dict[str, int]] = {}
    for path in sorted(path for folder in CORPUS_FOLDERS for path in (data / folder).glob("*.jsonl")):
        name = path.relative_to(data).as_posix()
        if name in excluded:
            continue
        counts = files.setdefault(name, {"documents": 0, "shared_words_with_a_studied_row": 0, "repeated": 0})
        for text in documents(path):
            if text in kept:
                counts["repeated"] += 1
            elif word_runs(text) & seen_in_studied:
                counts["shared_words_with_a_studied_row"] += 1
            else:
                kept[text] = None
                counts["documents"] += 1
    texts = list(kept)
    order = np.random.default_rng(0).permutation(len(texts))
    shuffled = [texts[index] for index in order]
    watched = shuffled[::HELD_OUT_EVERY]
    trained = [text for index, text in enumerate(shuffled) if index % HELD_OUT_EVERY]
    return trained, watched, {"excluded": excluded, "files": files, "held_out": len(watched)}


def train_tokenizer(texts: Sequence[str], *, vocab_size: int) -> PreTrainedTokenizerBase:
    """Return a byte-level BPE tokenizer of ``vocab_size`` entries trained on ``texts``."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token=END, bos_token=END, pad_token=END)


def _token_ids(tokenizer: PreTrainedTokenizerBase, texts: Sequence[str]) -> np.ndarray[Any, np.dtype[np.uint16]]:
    ids: list[int] = []
    for found in tokenizer(list(texts))["input_ids"]:
        ids += found
        ids.append(tokenizer.convert_tokens_to_ids(END))
    return np.asarray(ids, dtype=np.uint16)


def _pool(rows: TokenisedRows, order: Sequence[int]) -> dict[str, Any]:
    samples = [rows.sample(int(index)) for index in order]
    return {
        "tokens": np.concatenate([sample.tokens for sample in samples]).astype(np.uint16),
        "trained": np.concatenate([sample.trained for sample in samples]),
        "lengths": np.asarray([len(sample.tokens) for sample in samples], dtype=np.int32),
    }


def prepare_set(
    name: str, data: Path, *, tokenizer: PreTrainedTokenizerBase, rows: int, out: Path, max_length: int = MAX_LENGTH
) -> dict[str, Any]:
    """Write the rows of one set; return their counts. Training and validation rows are disjoint in content."""
    entry = STUDIED[name]
    evaluated = EVALUATION_ROWS * SEEDS_OF_THE_POOL
    settings = DatasetSettings(
        train=data / entry.file,
        validation=0.2,
        columns=dict(entry.columns),
        prompt_template=entry.prompt_template,
        max_length=max_length,
        max_train_samples=rows,
    )
    loaded = load_dataset(settings, tokenizer=tokenizer, evaluation_max_examples=evaluated, use_cache=False)
    shuffle = np.random.default_rng(0).permutation(len(loaded.validation))
    parts = {"train": _pool(loaded.train, range(len(loaded.train))), "validation": _pool(loaded.validation, shuffle)}
    out.mkdir(parents=True, exist_ok=True)
    arrays = {f"{part}_{key}": value for part, found in parts.items() for key, value in found.items()}
    np.savez_compressed(out / f"{name}.npz", **arrays)
    return {
        "file": entry.file,
        "role": entry.role,
        "train_rows": len(loaded.train),
        "validation_rows": len(loaded.validation),
        "mean_tokens": float(loaded.train.lengths.mean()),
        "mean_trained_tokens": float(loaded.train.trained_T.sum() / len(loaded.train)),
        "too_long": loaded.report.counts.get("too_long", 0),
    }


def read_rows(prepared: Path, name: str, part: str, *, first: int = 0, count: int | None = None) -> TokenisedRows:
    """Return rows ``first`` to ``first + count`` of a prepared set; ``part`` is ``train`` or ``validation``."""
    with np.load(prepared / "sets" / f"{name}.npz") as arrays:
        tokens, trained, lengths = (arrays[f"{part}_{key}"] for key in ("tokens", "trained", "lengths"))
    offsets = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(lengths, dtype=np.int64)])
    last = len(lengths) if count is None else min(first + count, len(lengths))
    start, stop = offsets[first], offsets[last]
    return TokenisedRows(
        tokens_T=tokens[start:stop].astype(np.int32),
        trained_T=trained[start:stop],
        offsets=offsets[first : last + 1] - start,
        prompts=("",) * (last - first),
        references=("",) * (last - first),
        sources=tuple(f"{name} {part} {index}" for index in range(first, last)),
        fingerprint=f"{name} {part} {first}:{last}",
    )


def validation_rows(prepared: Path, name: str, *, seed: int, count: int = EVALUATION_ROWS) -> TokenisedRows:
    """Return the validation rows of one seed; seeds have none in common while the pool lasts, then it begins again.

    Raises:
        ValueError: the pool has fewer rows than ``count``.
    """
    blocks = len(read_rows(prepared, name, "validation")) // count
    if not blocks:
        raise ValueError(f"{name} has fewer than {count} validation rows; lower --evaluation-rows")
    return read_rows(prepared, name, "validation", first=seed % blocks * count, count=count)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with sft/, nlu/, summarization/, ...")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--vocab-size", type=int, default=6144)
    parser.add_argument("--rows", type=int, default=1000, help="training rows of each set")
    parser.add_argument("--tokenizer", type=Path, default=None, help="take this one, write the sets alone")
    parser.add_argument("--sets", nargs="+", default=list(STUDIED), choices=list(STUDIED))
    return parser.parse_args()


def main() -> None:
    """Write the folder, print what is in it."""
    arguments = _arguments()
    arguments.out.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"max_length": MAX_LENGTH}
    if arguments.tokenizer is None:
        trained, watched, about["corpus"] = corpus(arguments.data)
        tokenizer = train_tokenizer(trained, vocab_size=arguments.vocab_size)
        tokenizer.save_pretrained(arguments.out / "tokenizer")
        tokens, watched_tokens = _token_ids(tokenizer, trained), _token_ids(tokenizer, watched)
        np.savez_compressed(arguments.out / "corpus.npz", tokens=tokens, held_out=watched_tokens)
        about["corpus"] |= {"tokens": len(tokens), "held_out_tokens": len(watched_tokens), "vocab": len(tokenizer)}
    else:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(str(arguments.tokenizer))
    about["sets"] = {
        name: prepare_set(name, arguments.data, tokenizer=tokenizer, rows=arguments.rows, out=arguments.out / "sets")
        for name in arguments.sets
    }
    (arguments.out / "about.json").write_text(json.dumps(about, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(about, indent=1))


if __name__ == "__main__":
    main()
