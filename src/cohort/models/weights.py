"""Loads a checkpoint: files are mapped, every tensor is copied once, to its place in the fused layout, and frozen."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterable, Iterator, Sequence
from enum import Enum
from pathlib import Path

import torch
from torch import Tensor

from cohort.core.errors import InputError, Problem
from cohort.core.process.short_turns import short_turns
from cohort.core.source_location import Place
from cohort.kernels.packed_linear import FrozenProduct
from cohort.models.bridge.loading import load_bridged
from cohort.models.checkpoint.checkpoint_reading import MOST_AHEAD, FusedContent, read_fused
from cohort.models.checkpoint.quantised_files import QuantisedFiles
from cohort.models.checkpoint.quantised_reading import read_quantised
from cohort.models.checkpoint.safetensors_files import read_headers
from cohort.models.checkpoint.stored_tensors import match_layout
from cohort.models.checkpoint.writing_behind import write_behind
from cohort.models.checkpoint_layout import FusedTensor, checkpoint_layout
from cohort.models.config import DecoderConfig
from cohort.models.config_file import read_config
from cohort.models.decoder import Decoder
from cohort.models.finite_weights import refusing_non_finite
from cohort.models.source import find_model
from cohort.models.streaming.layer_streaming import LayerStreaming
from cohort.models.weight_formats import PLAIN, WeightFormat, all_formats, format_named
from cohort.models.weight_formats.declaration import FORMAT_DECLARATIONS
from cohort.models.weight_formats.weight_format import StoredTensors

__all__ = [
    "LoadStoppedError",
    "WeightDtype",
    "format_problem",
    "stored_problem",
    "freeze_weights",
    "load_decoder",
]

# fused: query-key-value, output, gate-up, down
LINEARS_PER_LAYER = 4


class LoadStoppedError(Exception):
    """A model that is no longer wanted was not read to its end."""


class WeightDtype(Enum):
    """In what the frozen model computes. ``AUTO``: float32 on a CPU, bfloat16 on a GPU."""

    AUTO = "auto"
    BFLOAT16 = "bfloat16"
    FLOAT32 = "float32"
    FLOAT64 = "float64"

    @classmethod
    def parse(cls, text: str) -> WeightDtype:
        """Return the dtype that ``text`` names (``bf16`` and ``fp32`` are understood).

        Raises:
            InputError: another name.
        """
        names = {"bf16": "bfloat16", "fp32": "float32", "fp64": "float64"}
        try:
            return cls(names.get(text, text))
        except ValueError:
            allowed = ", ".join(dtype.value for dtype in cls)
            raise InputError(
                Problem(where="dtype", found=repr(text), allowed=allowed, hint="Choose one of these.")
            ) from None

    def on(self, device: torch.device) -> torch.dtype:
        if self is WeightDtype.AUTO:
            return torch.float32 if device.type == "cpu" else torch.bfloat16
        dtype: torch.dtype = getattr(torch, self.value)
        return dtype


def load_decoder(
    name_or_path: str | Path,
    *,
    dtype: WeightDtype | str = WeightDtype.AUTO,
    device: torch.device | str = "cpu",
    weight_format: str = PLAIN.name,
    cache_directory: Path | None = None,
    room_bytes: int | None = None,
    streaming: LayerStreaming | None = None,
    part: range | None = None,
    has_head: bool = False,
    stop: threading.Event | None = None,
) -> Decoder:
    """Load the model ``name_or_path`` (a local directory or a hub id) for computing in ``dtype`` on ``device``.

    Args:
        weight_format: One of :data:`~cohort.models.weight_formats.declaration.FORMAT_DECLARATIONS`.
        cache_directory: Where quantised weights are kept for the next load, written behind this one; None for nowhere.
        room_bytes: What the model may take of a GPU; None for all of it. No number depends on it.
        streaming: The layers that are not to be resident, and where their weights are kept; None for no layer.
        part: The layers of a stage of a pipeline: the rest of the model is not read. None for all.
        has_head: Whether a stage has the loss head though it is not the last, which always has it.
        stop: Set from another thread, it ends the load at the next tensor.

    Raises:
        LoadStoppedError: ``stop`` was set before the last tensor was there.
        UnsupportedModelError: no causal language model that transformers loads.
        InputError: anything wrong with the files, all problems at once; no such format, or one without this dtype or
            device.
    """
    device = torch.device(device)
    chosen = (dtype if isinstance(dtype, WeightDtype) else WeightDtype.parse(dtype)).on(device)
    kept = _format_for(weight_format, dtype=chosen, device=device)
    folder = find_model(name_or_path)
    config = read_config(folder)
    if (problem := stored_problem(config, name=weight_format, where="weight_format")) is not None:
        raise InputError(problem)
    if config.bridged is not None:
        assert streaming is None, "layers of bridged models are never streamed"
        assert part is None, "pipelines refuse bridged models"
        return load_bridged(folder, config, dtype=chosen, device=device, weight_format=kept)
    layout = checkpoint_layout(config)
    stored = match_layout(layout, read_headers(folder), config=config, folder=folder, weight_format=kept)
    if part is not None:
        layout = tuple(fused for fused in layout if _is_of_part(fused.name, part, config=config, has_head=has_head))
    # streamed layers leave the device one by one: no more of them are there at once
    most_ahead = MOST_AHEAD if device.type == "cuda" and streaming is None else 0
    quantisation, cache, disassemble = kept.quantisation, None, None
    if quantisation is None:
        read = read_fused(layout, stored, dtype=chosen, device=device, most_ahead=most_ahead)
    else:
        if cache_directory is not None:
            files = {place.file for place in stored.values()}
            cache = QuantisedFiles(cache_directory, files=files, weight_format=kept)
        # streamed layers keep no weight of their own
        disassemble = quantisation.disassemble if streaming is None else None
        read = read_quantised(
            layout,
            stored,
            dtype=chosen,
            device=device,
            quantisation=quantisation,
            cache=cache,
            is_written=disassemble is None,
            most_ahead=most_ahead,
        )
    read = refusing_non_finite(read if stop is None else _until(stop, read), stored)
    # threads copy meanwhile, next to one that prepares a run
    with short_turns() if most_ahead else contextlib.nullcontext():
        tensors, products = freeze_weights(read, weight_format=kept, room_bytes=room_bytes, streaming=streaming)
    if cache is not None and disassemble is not None:
        write_behind(cache, layout, products, disassemble=disassemble, device=device)
    ring = None if streaming is None else streaming.ring()
    return Decoder(config, tensors=tensors, products=products, ring=ring, part=part)


def _until(
    stop: threading.Event, read: Iterator[tuple[FusedTensor, FusedContent]]
) -> Iterator[tuple[FusedTensor, FusedContent]]:
    """Yield what is read until ``stop`` is set."""
    for each in read:
        if stop.is_set():
            raise LoadStoppedError
        yield each


def _is_of_part(name: str, part: range, *, config: DecoderConfig, has_head: bool) -> bool:
    """Return whether a stage with the layers ``part`` has a fused tensor."""
    has_head = has_head or part.stop == config.num_layers
    if name.startswith("layers."):
        return int(name.split(".")[1]) in part
    if name == "embed":
        # a tied head is the token table
        return part.start == 0 or (has_head and config.tie_word_embeddings)
    return has_head


def _format_for(name: str, *, dtype: torch.dtype, device: torch.device) -> WeightFormat:
    names = FORMAT_DECLARATIONS.names()
    if name not in names:
        raise InputError(
            Problem(where="weight_format", found=repr(name), allowed=", ".join(names), hint="Choose one of these.")
        )
    found = format_named(name)
    if dtype not in found.compute_dtypes:
        raise InputError(
            Problem(
                where="dtype",
                found=f"{_name_of(dtype)} with the weight format '{name}'",
                allowed=", ".join(map(_name_of, found.compute_dtypes)),
                hint="Choose one of these, or another format.",
            )
        )
    if (problem := format_problem(name, device=device, where="weight_format")) is not None:
        raise InputError(problem)
    return found


def format_problem(name: str, *, device: torch.device, where: Place | str) -> Problem | None:
    """Return what is wrong with a format of frozen weights on a device; None where it can be used there."""
    asked = format_named(name)
    found = asked.device_problem(device)
    if found is None:
        return None
    others = (kept.name for kept in all_formats() if kept.device_problem(device) is None)
    return Problem(
        where=where,
        found=f"{name} on {found}",
        allowed=f"on this device {', '.join(others)}; {name} runs on {asked.runs_on}",
        hint="Choose another format, or another device.",
    )


def stored_problem(config: DecoderConfig, *, name: str, where: Place | str) -> Problem | None:
    """Return what is wrong with the format ``name`` for a checkpoint that is stored quantised; None where it fits."""
    stored = config.stored_quantization
    if stored in (PLAIN.name, name):
        return None
    return Problem(
        where=where,
        found=f"{name}, for a base model whose checkpoint is stored in {stored}",
        allowed=stored,
        hint=f"Write quantization: {stored}, or name the unquantised checkpoint of this model.",
    )


def _name_of(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def freeze_weights(
    fused: Iterable[tuple[FusedTensor, FusedContent]],
    *,
    weight_format: WeightFormat = PLAIN,
    room_bytes: int | None = None,
    streaming: LayerStreaming | None = None,
) -> tuple[dict[str, Tensor], dict[str, FrozenProduct]]:
    """Return the tensors and the products of a decoder from its fused tensors, in the order of the layout.

    One weight at a time is there both as it was read and as it is kept; of streamed layers, one layer.
    """
    tensors: dict[str, Tensor] = {}
    products: dict[str, FrozenProduct] = {}
    # the products of a layer that has not been read to its end
    unfinished: dict[str, FrozenProduct] = {}
    quantisation = weight_format.quantisation
    for each, content in fused:
        if not each.is_linear:
            assert isinstance(content, Tensor), "linears alone are quantised"
            tensors[each.name] = content
            continue
        name = each.name.removesuffix(".weight")
        bias = tensors.pop(f"{name}.bias", None)
        if quantisation is None:
            assert isinstance(content, Tensor), "a format without quantisation keeps weights as they are"
            products[name] = weight_format.freeze(content, bias)
        else:
            pieces: Sequence[StoredTensors] = ()
            if isinstance(content, Tensor):
                rows = content.split([piece.shape[0] for piece in each.pieces])
                pieces = [quantisation.quantise(piece) for piece in rows]
            else:
                pieces = content
            # the token table or a norm comes first, in the dtype that the model computes in
            products[name] = quantisation.assemble(pieces, bias, next(iter(tensors.values())).dtype)
        if streaming is not None:
            unfinished[name] = products[name]
            if len(unfinished) == LINEARS_PER_LAYER:
                streaming.take(int(name.split(".")[1]), unfinished)
                unfinished = {}
    # where layers are streamed there is no room to keep more than their weights
    if quantisation is not None and quantisation.finish is not None and streaming is None:
        quantisation.finish(products.values(), room_bytes)
    # a tied head shares the token table's memory; a stage without the final norm has none
    if "norm" in tensors:
        products["head"] = PLAIN.freeze(tensors.pop("head") if "head" in tensors else tensors["embed"], None)
    return tensors, products
