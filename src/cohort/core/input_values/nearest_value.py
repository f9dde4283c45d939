"""The word that a user probably meant: what other tools call it, or the one that is spelled most alike."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from pathlib import PurePath

__all__ = ["keys_text", "nearest_file", "nearest_word"]

# of several, the first that can be chosen is meant
_OTHER_WORDS: dict[str, tuple[str, ...]] = {
    # samplers
    **dict.fromkeys(("bayes", "bayesian", "bayesopt", "bo", "gp", "optuna", "hyperopt"), ("tpe",)),
    **dict.fromkeys(("grid_search", "gridsearch", "exhaustive", "all"), ("grid",)),
    **dict.fromkeys(("random_search", "randomsearch", "uniform"), ("random",)),
    # exit rules
    **dict.fromkeys(("sha", "successive_halving", "succesive_halving"), ("halving",)),
    **dict.fromkeys(("early_stopping", "earlystopping", "plateau"), ("patience",)),
    **dict.fromkeys(("median_stopping", "medianstopping"), ("median",)),
    **dict.fromkeys(("off", "no", "never", "disabled"), ("none", "never")),
    # formats of rows
    **dict.fromkeys(("chat", "chatml", "openai", "conversational", "conversation"), ("messages",)),
    **dict.fromkeys(("conversations", "vicuna"), ("sharegpt",)),
    **dict.fromkeys(("instruction", "instruct", "stanford_alpaca"), ("alpaca",)),
    **dict.fromkeys(("prompt_response", "input_output", "qa", "question_answer"), ("prompt_completion",)),
    **dict.fromkeys(("pretrain", "pretraining", "raw", "plain", "completion", "language_modeling"), ("text",)),
    **dict.fromkeys(("dpo", "pairs", "pairwise", "rlhf"), ("preference",)),
    # metrics
    **dict.fromkeys(("accuracy", "em", "exact"), ("exact_match",)),
    **dict.fromkeys(("rouge", "rougel", "rouge-l"), ("rouge_l",)),
    **dict.fromkeys(("eval_loss", "validation_loss", "perplexity", "ppl"), ("loss",)),
    **dict.fromkeys(("multiple_choice", "mc"), ("choice_accuracy",)),
    "f1": ("token_f1",),
    # schedules, and what happens to rows
    "constant_with_warmup": ("constant",),
    **dict.fromkeys(("cosine_with_restarts", "cosine_with_min_lr", "cosine_annealing"), ("cosine",)),
    **dict.fromkeys(("ignore", "warn", "drop", "skip"), ("skip", "drop")),
    **dict.fromkeys(("truncation", "cut"), ("truncate",)),
    **dict.fromkeys(("chunk", "wrap", "pack"), ("split",)),
}


# of one level of a task file; a list of forty hides the one that was meant
_MOST_LISTED = 12

# methods that Cohort does not have; by its letters, GRPO would be a misspelt ORPO
_NOT_HERE = {"grpo", "gspo", "ppo", "rloo"}


def nearest_word(value: object, options: Iterable[str]) -> str | None:
    """Return the option that ``value`` most probably means; None where none comes near."""
    word, known = str(value).lower(), list(options)
    meant = next((option for option in _OTHER_WORDS.get(word.replace("-", "_"), ()) if option in known), None)
    near = [] if word in _NOT_HERE else get_close_matches(word, known, n=1, cutoff=0.5)
    return meant or (near[0] if near else None)


def nearest_file(name: str, names: Iterable[str]) -> str | None:
    """Return the file that ``name`` probably means: alike without the ending, which files of one kind share."""
    by_stem = {PurePath(other).stem: other for other in names}
    near = get_close_matches(PurePath(name).stem, by_stem, n=1)
    return by_stem[near[0]] if near else None


def keys_text(unknown: str, known: Sequence[str], *, meant: str | None = None) -> str:
    """Return the keys of one level of a task file for an error about an unknown one, the nearest first.

    The others follow where they are few, and are counted where they are many.

    Args:
        unknown: What was written.
        known: The keys of the level.
        meant: The key that was probably meant, of this level or another.
    """
    near = get_close_matches(unknown.lower().replace("-", "_"), known, n=3)
    first = [*([meant] if meant is not None and meant in known else []), *(key for key in near if key != meant)]
    if len(known) <= _MOST_LISTED:
        return ", ".join(dict.fromkeys([*first, *known]))
    shown = first or list(known[:_MOST_LISTED])
    return f"{', '.join(shown)} and {len(known) - len(shown)} others (`cohort check --schema` lists all)"
