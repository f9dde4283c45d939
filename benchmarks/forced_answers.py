"""Answers of forced lengths for models with random weights, which never end by themselves: both sides get the same.

Lengths are drawn from a log-normal distribution with a median of 90 tokens and a spread of 0.7, cut at the longest
that is allowed: 7 % reach 256, the mean is 109. Answers of models that reason have such a long tail; what matters here
is that a group waits for its longest.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.llama_shapes import gsm8k_lengths
from cohort.data.tokenised import AnswerScoring, TokenisedRows
from cohort.metrics.rewards import PlannedReward, RewardPlan

__all__ = ["PROMPTS", "drawn_length", "even_share", "prompt_rows", "save_tokenizer"]

MEDIAN, SPREAD = 90.0, 0.7
PROMPTS = 64


def drawn_length(seed: int, *, most: int, median: float = MEDIAN) -> int:
    """Return the length of one answer, at least 4 tokens and at most ``most``."""
    drawn = np.random.default_rng(seed).lognormal(np.log(median), SPREAD)
    return int(np.clip(round(drawn), min(4, most), most))


def even_share(completions: list[str], **_: Any) -> list[float]:
    """Reward the share of words with an even number: rewards differ within every group, so every group teaches."""
    words = [[int(word[1:]) for word in text.split() if word[1:].isdigit()] for text in completions]
    return [sum(number % 2 == 0 for number in own) / max(len(own), 1) for own in words]


def save_tokenizer(folder: Path, *, vocab_size: int) -> Path:
    """Save a tokenizer whose every token is a word with its number, in a folder."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {f"w{number}": number for number in range(vocab_size)}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="w2"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="w0", pad_token="w1").save_pretrained(folder)
    return folder


def prompt_rows(tokenizer: Path, *, vocab_size: int, shape: str, count: int = PROMPTS) -> TokenisedRows:
    """Return prompts of random words with the lengths of GSM8K's, and the reward of this file."""
    recorded, rng = gsm8k_lengths(), np.random.default_rng(0)
    lengths = [recorded[int(index)][0] for index in rng.choice(len(recorded), size=count)]
    if shape == "tiny":
        lengths = [length // 8 + 17 for length in lengths]
    tokens = [rng.integers(3, vocab_size, size=length).astype(np.int32) for length in lengths]
    texts = [" ".join(f"w{token}" for token in own) for own in tokens]
    plan = RewardPlan(functions=(PlannedReward(name="even_share", function=f"{Path(__file__).resolve()}:even_share"),))
    return TokenisedRows(
        tokens_T=np.concatenate(tokens),
        trained_T=np.zeros(sum(lengths), dtype=np.bool_),
        offsets=np.cumsum([0, *lengths]).astype(np.int64),
        prompts=tuple(texts),
        references=("",) * count,
        sources=tuple(f"random:{line}" for line in range(1, count + 1)),
        columns=tuple(json.dumps({"prompt": text}) for text in texts),
        fingerprint="forced-answers",
        scoring=AnswerScoring(tokenizer=str(tokenizer), rewards=plan),
    )
