"""Loads a checkpoint through transformers, freezes it behind packed linears, and proves it before it is used."""

from __future__ import annotations

import contextlib
import json
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from cohort.core.errors import InputError, Problem
from cohort.models.bridge.adapted import adapt_linears, mark_token_rows, recompute_layers
from cohort.models.bridge.backbone import BridgedDecoder
from cohort.models.bridge.description import stored_method
from cohort.models.bridge.experts import adapt_experts
from cohort.models.bridge.interfaces import ATTENTION, register_attention
from cohort.models.bridge.norms import fuse_norms
from cohort.models.bridge.probe import prove
from cohort.models.bridge.recurrent import bound_recurrent_functions
from cohort.models.config import DecoderConfig
from cohort.models.finite_weights import require_finite
from cohort.models.weight_formats import WeightFormat

__all__ = ["load_bridged", "prove_either_way", "wrap_model"]

_log = logging.getLogger(__name__)

_SAME_MODEL = "Use the config.json and the weights of the same model."


def load_bridged(
    folder: Path, config: DecoderConfig, *, dtype: torch.dtype, device: torch.device, weight_format: WeightFormat
) -> BridgedDecoder:
    """Return the model in ``folder``, which no native family computes, ready to train adapters on.

    Raises:
        InputError: anything wrong with its files; or the probe found that it does not compute a stream right.
    """
    assert config.bridged is not None, "a native family has a loader of its own"
    model = _read(folder, dtype=dtype, runs_code=bool(config.bridged.own_code))
    decoder = wrap_model(model, config, device=device, weight_format=weight_format, is_packed=device.type == "cuda")
    prove_either_way(decoder, where=str(folder))
    return decoder


def prove_either_way(decoder: BridgedDecoder, *, where: str) -> None:
    """Prove a decoder with a stream as one row or, where that fails, with each sequence computed by itself.

    Layers that attend over a mask of their own, or whose state runs on over a bound, need the second way.

    Raises:
        InputError: both fail; it tells what the first one did.
    """
    try:
        prove(decoder, where=where)
        return
    except InputError as error:
        if not decoder.is_packed:
            raise
        first = error
    decoder.compute_one_by_one(first.problems[0].found)
    try:
        prove(decoder, where=where)
    except InputError:
        raise first from None
    _log.warning("each sequence of a pass is computed by itself, which is slower: %s", first.problems[0].found)


def wrap_model(
    model: Any, config: DecoderConfig, *, device: torch.device, weight_format: WeightFormat, is_packed: bool
) -> BridgedDecoder:
    """Return a model of transformers as a decoder that nothing has proved yet; its linears are replaced."""
    assert config.bridged is not None, "a native family has a loader of its own"
    model.requires_grad_(False).eval()
    model.to(device)
    names = [name for name, _, _ in config.bridged.linears]
    linears = adapt_linears(model, names, weight_format=weight_format)
    adapt_experts(model, config.bridged.layers)
    mark_token_rows(model.get_input_embeddings())
    recompute_layers(model.get_submodule(config.bridged.layers))
    bound_recurrent_functions(model)
    if is_packed:
        register_attention()
        fuse_norms(model)
    decoder = BridgedDecoder(config, model, linears=linears, is_packed=is_packed)
    if is_packed:
        try:
            decoder.attend_by(ATTENTION)
        except ValueError as error:  # transformers has no replaceable attention for these classes
            decoder.compute_one_by_one(str(error).split(".")[0])
    return decoder


def _read(folder: Path, *, dtype: torch.dtype, runs_code: bool) -> Any:
    from transformers import AutoModelForCausalLM

    stored = _as_plain_numbers(folder)
    try:
        with _quiet():
            model, report = AutoModelForCausalLM.from_pretrained(
                folder,
                dtype=dtype,
                local_files_only=True,
                trust_remote_code=runs_code,
                output_loading_info=True,
                # all of them are listed below, with what is missing
                ignore_mismatched_sizes=True,
                **stored,
            )
    except Exception as error:  # files are read by several libraries, each with errors of its own
        raise InputError(
            Problem(
                where=str(folder),
                found=" ".join(str(error).split()) or type(error).__name__,
                allowed="the complete files of a model, as save_pretrained writes them",
                hint="Fetch all files of the model again.",
            )
        ) from error
    problems = [
        Problem(where=f"{folder}: {key}", found="no such tensor", allowed="all tensors of the model", hint=_SAME_MODEL)
        for key in sorted(report["missing_keys"])
    ]
    for key, found, wanted in sorted(report["mismatched_keys"]):
        problems.append(
            Problem(
                where=f"{folder}: {key}",
                found=f"shape {list(found)}",
                allowed=f"shape {list(wanted)}, as config.json says",
                hint=_SAME_MODEL,
            )
        )
    if problems:
        raise InputError(problems)
    require_finite(model.named_parameters(), folder)
    if stored:
        # transformers makes bfloat16 of some formats, whatever is asked for
        for tensor in (*model.parameters(), *model.buffers()):
            if tensor.is_floating_point() and tensor.dtype == torch.bfloat16:
                tensor.data = tensor.data.to(dtype)
    return model


def _as_plain_numbers(folder: Path) -> dict[str, Any]:
    """Return the arguments with which transformers reads a quantised checkpoint as plain numbers; none elsewhere."""
    import transformers

    method = stored_method(json.loads((folder / "config.json").read_text(encoding="utf-8")))
    if method is None:
        return {}
    kind = {"mxfp4": transformers.Mxfp4Config, "fp8": transformers.FineGrainedFP8Config}[method]
    return {"quantization_config": kind(dequantize=True)}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep transformers' progress bars and advice about loading off the terminal; errors are raised as usual."""
    from transformers.utils import logging as their_logging

    level, has_bars = their_logging.get_verbosity(), their_logging.is_progress_bar_enabled()
    their_logging.set_verbosity(logging.ERROR)
    their_logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        their_logging.set_verbosity(level)
        if has_bars:
            their_logging.enable_progress_bar()
