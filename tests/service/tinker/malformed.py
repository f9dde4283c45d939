"""Requests that no client should send, drawn from a seed: wrong bodies, messages, sizes, orders and foreign ids."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.service.tinker.tinker_calls import pass_message
from tests.service.tinker.trained_models import TOKENS, data

__all__ = ["Malformed", "Request"]

JSON_CALLS = (
    *("create_session", "session_heartbeat", "get_info", "create_model", "optim_step", "save_weights"),
    *("save_weights_for_sampler", "load_weights", "unload_model", "create_sampling_session", "asample"),
    *("retrieve_future", "cancel_future", "weights_info"),
)
KEYS = (
    *("session_id", "model_id", "seq_id", "path", "adam_params", "prompt", "request_id", "model_seq_id", "base_model"),
    *("lora_config", "sampling_params", "num_samples", "sampling_session_id", "ttl_seconds", "tinker_path"),
)
VALUES: tuple[Any, ...] = (
    *(None, -1, 0, 1.5, 2**31, 2**70, -(2**63), 1e308, "", "x" * 3000, "\u0000", "../..", "\U0001f600", True),
    *(
        [],
        {},
        [{}],
        {"a": {"b": []}},
        [[[[]]]],
        {"rank": "four"},
        {"learning_rate": -1},
        {"chunks": [{"tokens": ["a"]}]},
    ),
)


@dataclass(frozen=True, kw_only=True)
class Request:
    """One request.

    Attributes:
        content: Its body.
        may_be_right: Whether a server may take it: it was changed at random.
        is_unheard: Whether nobody waits for its answer, which takes half a minute or is none of ours.
    """

    method: str = "POST"
    path: str
    content: bytes = b""
    may_be_right: bool = False
    is_unheard: bool = False


class Malformed:
    """Draws requests of a client that has a model and knows ids of another client."""

    def __init__(
        self,
        seed: int,
        *,
        model_id: str,
        rough_model_id: str,
        session_id: str,
        foreign: dict[str, str],
        next_number: Callable[[], int],
    ) -> None:
        """Draw from ``seed``.

        Args:
            rough_model_id: Of a second model, for calls whose numbers come in no order and may be lost.
            foreign: Ids that are not the client's: of a ``session``, a ``model``, a ``sampler``, a ``checkpoint``.
            next_number: Returns the next number of the first model.
        """
        self._rough_model_id, self._rough_numbers = rough_model_id, itertools.count(1)
        self._chance, self._model_id, self._session_id = random.Random(seed), model_id, session_id
        self._foreign, self._next_number = foreign, next_number

    def draw(self) -> Request:
        kinds = (
            self._body,
            self._text,
            self._message,
            self._garbled,
            self._size,
            self._order,
            self._foreign_id,
            self._get,
        )
        return self._chance.choice(kinds)()

    def _body(self) -> Request:
        chance = self._chance
        path = chance.choice(JSON_CALLS)
        body = {chance.choice(KEYS): chance.choice(VALUES) for _ in range(chance.randrange(1, 6))}
        # a session asks for nothing, and what is not known need not be cancelled
        may_be_right = path in ("create_session", "cancel_future")
        return Request(path=path, content=json.dumps(body).encode(), may_be_right=may_be_right)

    def _text(self) -> Request:
        chance = self._chance
        whole = json.dumps({"model_id": self._model_id, "seq_id": 1, "adam_params": {"learning_rate": 0.1}}).encode()
        content = chance.choice(
            [
                b"",
                b"null",
                b"[]",
                b"\xff\xfe" + whole,
                b"[" * 5000,
                b'{"a":' * 2000,
                whole[: chance.randrange(1, len(whole))],
                whole.replace(b"0.1", b"NaN"),
                whole.replace(b"0.1", b"1" * 400),
                bytes(chance.randrange(256) for _ in range(chance.randrange(1, 300))),
            ]
        )
        # where the id of a model is not all that is needed
        path = chance.choice(
            [call for call in JSON_CALLS if call not in ("create_session", "get_info", "unload_model")]
        )
        return Request(path=path, content=content)

    def _message(self) -> Request:
        """A message that is well-formed and asks for what cannot be."""
        right = {"target_tokens": TOKENS[1:], "weights": [1.0] * 6}
        inputs: list[dict[str, Any]] = [
            {"target_tokens": TOKENS[1:], "weights": [math.nan] * 6},
            {"target_tokens": TOKENS[1:], "weights": [math.inf] * 6},
            {"target_tokens": TOKENS[1:], "weights": [1.0] * 5},
            {"target_tokens": [10**6] * 6, "weights": [1.0] * 6},
            {"target_tokens": [-1] * 6, "weights": [1.0] * 6},
            {"target_tokens": np.ones((6, 65), dtype=int), "weights": np.ones((6, 65))},
            {"target_tokens": np.ones((6, 0), dtype=int), "weights": np.ones((6, 0))},
            {"weights": [1.0] * 6},
            {**right, "mask": [1.0] * 6},
            {},
        ]
        row, loss = TOKENS[:-1], "cross_entropy"
        wrong = self._chance.randrange(5)
        if wrong == 0:
            right = self._chance.choice(inputs)
        elif wrong == 1:
            row = self._chance.choice([[], [-1] * 6, [2**30] * 6, [5] * 1000])
        elif wrong == 2:
            loss = self._chance.choice(["", "nothing", "x" * 3000, "stable_reinforce", "ppo"])
        elif wrong == 3:
            right = {**right, "weights": np.ones((6, 2))}
        number, rows = self._next_number(), [(row, right)]
        if wrong == 4:
            return Request(path="forward_backward", content=pass_message(self._model_id, number, rows, beta=0.1))
        return Request(path="forward_backward", content=pass_message(self._model_id, number, rows, loss=loss))

    def _garbled(self) -> Request:
        chance = self._chance
        changed = bytearray(pass_message(self._rough_model_id, next(self._rough_numbers), data()))
        # its id stays: another one is a call of an unknown model
        for _ in range(chance.randrange(1, 8)):
            changed[chance.randrange(40, len(changed))] = chance.randrange(256)
        if chance.random() < 0.3:
            del changed[chance.randrange(40, len(changed)) :]
        return Request(path="forward_backward", content=bytes(changed), may_be_right=True, is_unheard=True)

    def _size(self) -> Request:
        chance = self._chance
        large = {"model_id": self._model_id, "seq_id": 1, "path": "x" * 300_000}
        prompt = {"chunks": [{"tokens": [5] * 20_000}]}
        asked = {"sampling_session_id": f"{self._session_id}:sample:0", "seq_id": 1, "prompt": prompt}
        shape = pass_message(self._rough_model_id, next(self._rough_numbers), [(TOKENS, {"target_tokens": TOKENS})])
        # the shape of its targets, said to be far larger than they are
        vast = shape[:-4] + b"\x22\x05\xff\xff\xff\xff\x7f"
        return chance.choice(
            [
                Request(path="save_weights", content=json.dumps(large).encode()),
                Request(path="asample", content=json.dumps(asked).encode()),
                Request(path="forward_backward", content=bytes(300_000)),
                Request(path="forward_backward", content=vast, may_be_right=True, is_unheard=True),
            ]
        )

    def _order(self) -> Request:
        chance = self._chance
        number = chance.choice([0, -1, -(2**31), 1, 1.5, "1", 2**31, 2**63, 2**31 - 1])
        path = chance.choice(["optim_step", "save_weights", "save_weights_for_sampler"])
        body = {
            "model_id": self._rough_model_id,
            "seq_id": number,
            "path": f"../{number}",
            "adam_params": {"eps": -1.0},
        }
        return Request(path=path, content=json.dumps(body).encode(), may_be_right=path != "optim_step", is_unheard=True)

    def _foreign_id(self) -> Request:
        chance, foreign = self._chance, self._foreign
        made_up = {key: value[:-1] + chance.choice("xyz0:/") for key, value in foreign.items()}
        ids = chance.choice([foreign, made_up])
        sample = {"sampling_session_id": ids["sampler"], "seq_id": 9, "prompt": {"chunks": [{"tokens": [5]}]}}
        bodies: dict[str, dict[str, Any]] = {
            "optim_step": {"model_id": ids["model"], "seq_id": 1, "adam_params": {}},
            "save_weights": {"model_id": ids["model"], "seq_id": 1, "path": "taken"},
            "save_weights_for_sampler": {"model_id": ids["model"], "seq_id": 1, "sampling_session_seq_id": 5},
            "load_weights": {"session_id": self._session_id, "model_seq_id": 77, "path": ids["checkpoint"]},
            "create_model": {"session_id": ids["session"], "model_seq_id": 5, "base_model": "base"},
            "asample": sample,
            "get_info": {"model_id": ids["model"]},
            "unload_model": {"model_id": ids["model"]},
            "weights_info": {"tinker_path": ids["checkpoint"]},
            "retrieve_future": {"request_id": f"{ids['model']}:1"},
            "cancel_future": {"request_id": f"{ids['model']}:1"},
            "session_heartbeat": {"session_id": ids["session"]},
        }
        path = chance.choice([*bodies, "forward_backward"])
        if path == "forward_backward":
            return Request(path=path, content=pass_message(ids["model"], 1, data()))
        # what is not known need not be cancelled
        return Request(path=path, content=json.dumps(bodies[path]).encode(), may_be_right=path == "cancel_future")

    def _get(self) -> Request:
        chance, foreign = self._chance, self._foreign
        name = chance.choice([foreign["model"], foreign["session"], "..%2f..", "%00", "x" * 500, "a:b:c"])
        path = chance.choice(
            [
                f"training_runs/{name}",
                f"sessions/{name}",
                f"samplers/{name}",
                f"training_runs/{name}/checkpoints/weights/kept/ttl",
                "nothing",
            ]
        )
        return Request(method="PUT" if path.endswith("ttl") else "GET", path=path, content=b'{"ttl_seconds": 1}')
