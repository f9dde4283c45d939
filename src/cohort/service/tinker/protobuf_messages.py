"""The protobuf messages of the Tinker client: data in, what passes and sampling gave out.

Only field numbers are on the wire; the messages are described here, so nothing is generated and nothing is compiled.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from numpy.typing import NDArray

from cohort.core.errors import InputError, Problem

__all__ = ["PassBody", "number_of_pass", "pass_answer", "read_pass", "sample_answer"]

_KINDS = {"str": 9, "bytes": 12, "bool": 8, "int32": 5, "int64": 3, "double": 1, "enum": 5}
# message -> field -> (number, kind or message, repeated)
_MESSAGES: dict[str, dict[str, tuple[int, str, bool]]] = {
    "Text": {"tokens": (1, "bytes", False)},
    "Chunk": {"encoded_text": (1, "Text", False), "image": (2, "bytes", False), "dmel": (3, "bytes", False)},
    "ModelInput": {"chunks": (1, "Chunk", True)},
    "Sparse": {"values": (1, "bytes", False), "crow": (2, "bytes", False), "col": (3, "bytes", False)},
    "Tensor": {
        "dense": (1, "bytes", False),
        "sparse_csr": (2, "Sparse", False),
        "dtype": (3, "enum", False),
        "shape": (4, "int64", True),
    },
    "InputEntry": {"key": (1, "str", False), "value": (2, "Tensor", False)},
    "Datum": {"chunks": (1, "Chunk", True), "loss_fn_inputs": (2, "InputEntry", True)},
    "NumberEntry": {"key": (1, "str", False), "value": (2, "double", False)},
    "Value": {"number": (1, "double", False), "text": (2, "str", False)},
    "ValueEntry": {"key": (1, "str", False), "value": (2, "Value", False)},
    "ForwardBackwardRequest": {
        "model_id": (1, "str", False),
        "seq_id": (2, "int32", False),
        "data": (3, "Datum", True),
        "loss_fn": (4, "str", False),
        "loss_fn_config": (5, "NumberEntry", True),
        "forward_only": (6, "bool", False),
        "loss_fn_config_v2": (7, "ValueEntry", True),
    },
    # the same message with all but its number passed over
    "NumberedRequest": {"model_id": (1, "str", False), "seq_id": (2, "int32", False)},
    "BatchedTensor": {
        "data": (1, "bytes", False),
        "offsets": (2, "bytes", False),
        "dtype": (3, "enum", False),
        "trailing_shape": (4, "int64", True),
    },
    "FieldEntry": {"key": (1, "str", False), "value": (2, "BatchedTensor", False)},
    "ArrayRecord": {
        "type_tag": (1, "str", False),
        "fields": (2, "FieldEntry", True),
        "num_datums": (3, "int64", False),
    },
    "ForwardBackwardOutput": {
        "loss_fn_output_type": (1, "str", False),
        "loss_fn_outputs": (2, "ArrayRecord", True),
        "metrics": (3, "NumberEntry", True),
    },
    "TopK": {
        "token_ids": (1, "bytes", False),
        "logprobs": (2, "bytes", False),
        "k": (3, "int32", False),
        "length": (4, "int32", False),
    },
    "Sequence": {
        "stop_reason": (1, "enum", False),
        "tokens": (2, "bytes", False),
        "logprobs": (3, "bytes", False),
        "topk": (4, "TopK", False),
    },
    "SampleResponse": {
        "sequences": (1, "Sequence", True),
        "prompt_logprobs": (2, "bytes", False),
        "topk_prompt_logprobs": (3, "TopK", False),
        "prompt_cache_hit_tokens": (4, "int32", False),
    },
}
_DTYPES: dict[int, np.dtype[Any]] = {1: np.dtype("<f4"), 2: np.dtype("<i8"), 3: np.dtype("<i4")}
_FLOAT32 = 1
MOST_VALUES = 1 << 24
"""Most values of all tensors of a call: a sparse one of a few bytes may ask for any number."""
_MESSAGE_KIND, _REPEATED, _OPTIONAL = 11, 3, 1


def _classes() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(name="cohort_tinker.proto", package="cohort.tinker", syntax="proto3")
    for name, entries in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (number, kind, repeated) in entries.items():
            own: Any = message.field.add(name=field, number=number, label=_REPEATED if repeated else _OPTIONAL)
            own.type = _KINDS.get(kind, _MESSAGE_KIND)
            if kind not in _KINDS:
                own.type_name = f".cohort.tinker.{kind}"
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    return {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"cohort.tinker.{name}")) for name in _MESSAGES
    }


_CLASSES = _classes()


class PassBody:
    """A ``forward_backward`` as it came.

    Attributes:
        data: Each datum's tokens [N] and what its loss reads, by name.
    """

    def __init__(self, message: Any) -> None:
        """Read a message.

        Raises:
            InputError: it holds what no text model reads, or a tensor that is none.
        """
        self.model_id, self.number = str(message.model_id), int(message.seq_id)
        self.loss, self.forward_only = str(message.loss_fn), bool(message.forward_only)
        self.config: dict[str, float] = {entry.key: entry.value for entry in message.loss_fn_config}
        for entry in message.loss_fn_config_v2:
            if entry.value.text:
                raise _wrong(
                    f"loss_fn_config.{entry.key}",
                    found=repr(entry.value.text),
                    allowed="numbers",
                    hint="Send a number, or leave it out.",
                )
            self.config[entry.key] = entry.value.number
        num_values = sum(_num_values(entry.value) for datum in message.data for entry in datum.loss_fn_inputs)
        if num_values > MOST_VALUES:
            raise _wrong(
                "data",
                found=f"{num_values:,} values",
                allowed=f"at most {MOST_VALUES:,} in a call",
                hint="Send fewer data, or fewer targets of a position.",
            )
        self.data = [
            (
                _tokens(datum.chunks, where=f"data[{place}].model_input"),
                {
                    entry.key: _array(entry.value, where=f"data[{place}].loss_fn_inputs.{entry.key}")
                    for entry in datum.loss_fn_inputs
                },
            )
            for place, datum in enumerate(message.data)
        ]


def read_pass(body: bytes) -> PassBody:
    """Return a ``forward_backward`` from its bytes.

    Raises:
        InputError: they are no such message.
    """
    message = _CLASSES["ForwardBackwardRequest"]()
    try:
        message.ParseFromString(body)
    except DecodeError as error:
        raise _wrong(
            "body",
            found=f"{len(body)} bytes that are no ForwardBackwardRequest ({error})",
            allowed="the message that the Tinker client sends",
            hint="Use the tinker package, 0.38 or later.",
        ) from None
    return PassBody(message)


def number_of_pass(body: bytes) -> tuple[str, int]:
    """Return the model and the number of a message that is wrong elsewhere; 0 where they cannot be read."""
    message = _CLASSES["NumberedRequest"]()
    try:
        message.ParseFromString(body)
    except DecodeError:
        return "", 0
    return str(message.model_id), int(message.seq_id)


def _tokens(chunks: Sequence[Any], *, where: str) -> NDArray[np.int64]:
    found = []
    for chunk in chunks:
        if chunk.image or chunk.dmel:
            raise _wrong(
                where,
                found="an image" if chunk.image else "sound",
                allowed="text: chunks of tokens",
                hint="Send text alone; this server trains the text part of a model.",
            )
        tokens = chunk.encoded_text.tokens
        if len(tokens) % 4:
            raise _wrong(where, found=f"{len(tokens)} bytes", allowed="int32 tokens", hint="Send four bytes a token.")
        found.append(np.frombuffer(tokens, dtype="<i4").astype(np.int64))
    return np.concatenate(found) if found else np.empty(0, dtype=np.int64)


def _num_values(tensor: Any) -> int:
    # of any size: a product in 64 bits could come out small
    return math.prod(max(0, int(size)) for size in tensor.shape) if len(tensor.shape) else 0


def _array(tensor: Any, *, where: str) -> NDArray[np.generic]:
    shape = [int(size) for size in tensor.shape]
    if tensor.dtype not in _DTYPES or min(shape, default=1) < 0:
        found = f"dtype {tensor.dtype} and shape {shape}"
        raise _wrong(where, found=found, allowed="float32 or int64 values", hint="Send a tensor of numbers.")
    dtype = _DTYPES[tensor.dtype]
    try:
        if not tensor.HasField("sparse_csr"):
            values = np.frombuffer(tensor.dense, dtype=dtype)
            return values.reshape(shape) if shape else values
        return _dense(tensor.sparse_csr, dtype, shape)
    except (ValueError, IndexError):
        raise _wrong(
            where,
            found=f"values that do not fill shape {shape}",
            allowed="as many values as the shape says",
            hint="Send the tensor as the client makes it.",
        ) from None


def _dense(sparse: Any, dtype: np.dtype[Any], shape: Sequence[int]) -> NDArray[np.generic]:
    values = np.frombuffer(sparse.values, dtype=dtype)
    crow, col = (np.frombuffer(part, dtype="<i8") for part in (sparse.crow, sparse.col))
    if len(shape) != 2 or len(crow) != shape[0] + 1 or len(col) != len(values):
        raise ValueError(shape)
    counts = np.diff(crow)
    if (counts < 0).any() or crow[0] != 0 or crow[-1] != len(values) or (col < 0).any():
        raise ValueError(shape)
    dense = np.zeros(shape, dtype=dtype)
    dense[np.repeat(np.arange(shape[0]), counts), col] = values
    return dense


def pass_answer(
    fields: Mapping[str, Sequence[NDArray[np.float64]]], *, num_data: int, metrics: Mapping[str, float]
) -> bytes:
    """Return the answer to a pass.

    Args:
        fields: Arrays of each datum by name, [N] or [N, K]. Data whose K differ become records of their own.
    """
    message = _CLASSES["ForwardBackwardOutput"](loss_fn_output_type="TorchLossReturn")
    start = 0
    while start < num_data:
        trailing = {name: arrays[start].shape[1:] for name, arrays in fields.items()}
        stop = start
        while stop < num_data and all(arrays[stop].shape[1:] == trailing[name] for name, arrays in fields.items()):
            stop += 1
        record = message.loss_fn_outputs.add(type_tag="TorchLossReturn", num_datums=stop - start)
        for name, arrays in fields.items():
            own = [np.ascontiguousarray(array, dtype="<f4").tobytes() for array in arrays[start:stop]]
            entry = record.fields.add(key=name)
            entry.value.data = b"".join(own)
            entry.value.offsets = np.cumsum([0, *map(len, own)]).astype("<i8").tobytes()
            entry.value.dtype = _FLOAT32
            entry.value.trailing_shape.extend(trailing[name])
        start = stop
    for name, value in metrics.items():
        message.metrics.add(key=name, value=value)
    return bytes(message.SerializeToString())


def sample_answer(
    sequences: Sequence[tuple[Sequence[int], Sequence[float], bool]], *, prompt_logprobs: Sequence[float] | None
) -> bytes:
    """Return the answer to a sampling request.

    Args:
        sequences: Tokens, their log-probabilities, and whether the sequence ended by itself.
        prompt_logprobs: Of each token of the prompt, NaN for the first; None where they were not asked for.
    """
    message = _CLASSES["SampleResponse"]()
    for tokens, logprobs, stopped in sequences:
        message.sequences.add(
            stop_reason=0 if stopped else 1,
            tokens=np.asarray(tokens, dtype="<i4").tobytes(),
            logprobs=np.asarray(logprobs, dtype="<f4").tobytes(),
        )
    if prompt_logprobs is not None:
        message.prompt_logprobs = np.asarray(prompt_logprobs, dtype="<f4").tobytes()
    return bytes(message.SerializeToString())


def _wrong(where: str, *, found: str, allowed: str, hint: str) -> InputError:
    return InputError(Problem(where=where, found=found, allowed=allowed, hint=hint))
