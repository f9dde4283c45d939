"""What is decided and refused before a server opens: the device, the format of weights, the longest request."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from cohort.core.errors import InputError, Problem
from cohort.core.source_location import Place
from cohort.machine.machine import Machine, choose_machine
from cohort.models.checkpoint.stored_tensors import check_checkpoint
from cohort.models.decoder import Decoder
from cohort.models.weight_formats import PLAIN
from cohort.models.weight_formats.declaration import FORMAT_DECLARATIONS
from cohort.models.weights import format_problem, stored_problem
from cohort.service.settings import ServedSettings
from cohort.serving.engine import ServingEngine

__all__ = ["length_note", "require_context", "serving_machine"]


def serving_machine(settings: ServedSettings, directory: Path, *, trained: str | None) -> Machine:
    """Return where the model in ``directory`` is served, with the format of its weights.

    Args:
        trained: The format in which a run's adapters were trained; None for a model.

    Raises:
        InputError: there is no such device or format, or they do not go together.
    """
    size, config = settings.tensor_parallel_size, check_checkpoint(directory)
    if size == 1 or settings.gpus == 0 or not torch.cuda.is_available():
        machine = choose_machine(settings.gpus, where=Place(option="command line --gpus"))
    else:
        machine = choose_machine(size, where=Place(option="command line --tensor-parallel-size"))
    kept = settings.quantization or trained or config.stored_quantization
    where = Place(option="command line --quantization")
    if kept not in FORMAT_DECLARATIONS.names():
        allowed = " | ".join(FORMAT_DECLARATIONS.names())
        raise InputError(Problem(where=where, found=kept, allowed=allowed, hint="Choose one of these."))
    problem = format_problem(kept, device=machine.device, where=where) or stored_problem(config, name=kept, where=where)
    if problem is None and size > 1 and config.bridged is not None:
        problem = Problem(
            where=Place(option="command line --tensor-parallel-size"),
            found=f"{size} with {config.architecture}, whose layers transformers computes",
            allowed="1 with this model: native families alone are divided",
            hint="Leave --tensor-parallel-size out.",
        )
    if problem is None and size > 1 and kept != PLAIN.name:
        problem = Problem(
            where=where,
            found=f"{kept} with --tensor-parallel-size {size}",
            allowed=f"{PLAIN.name}: a model is divided in the weights it computes with",
            hint=f"Add --quantization {PLAIN.name}, or leave --tensor-parallel-size out.",
        )
    if problem is not None:
        raise InputError(problem)
    return replace(machine, quantization=kept)


def require_context(settings: ServedSettings, decoder: Decoder) -> None:
    context = decoder.config.max_position_embeddings
    if settings.max_model_len is not None and settings.max_model_len > context:
        raise InputError(
            Problem(
                where=Place(option="command line --max-model-len"),
                found=str(settings.max_model_len),
                allowed=f"at most {context}, the model's context",
                hint="Write a smaller number, or leave it out.",
            )
        )


def length_note(settings: ServedSettings, engine: ServingEngine) -> str | None:
    """Return what to say, or raise, where keys and values have less room than one sequence at its longest."""
    if engine.most_tokens == engine.max_model_len:
        return None
    if settings.max_model_len is not None:
        raise InputError(
            Problem(
                where=Place(option="command line --max-model-len"),
                found=f"{settings.max_model_len}, with room for the keys and values of {engine.most_tokens} tokens",
                allowed=f"at most {engine.most_tokens}, or more memory for keys and values",
                hint=f"Write --max-model-len {engine.most_tokens}, or raise --kv-cache-gib.",
            )
        )
    return (
        f"requests may have {engine.most_tokens} tokens, not the model's {engine.max_model_len}: there is no room for "
        "the keys and values of more (--kv-cache-gib)"
    )
