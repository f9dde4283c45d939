"""What arrives is what was sent, whatever the tensors are."""

from __future__ import annotations

import threading
from multiprocessing import Pipe
from typing import Any

import numpy as np
import pytest
import torch

from cohort.ranks.transport import Channel


def test_messages_arrive_whole() -> None:
    ours, theirs = Pipe()
    message: dict[str, Any] = {
        "weights": torch.randn(3, 5),
        "narrow": torch.randn(7).to(torch.bfloat16),
        "view": torch.arange(24).reshape(4, 6)[:, 1::2],
        "none": torch.empty(0, 4),
        "large": torch.randn(1 << 20),
        "rows": np.arange(5),
        "words": "loss",
    }
    # more than a socket holds: somebody has to read while it is written
    sender = threading.Thread(target=Channel(ours).send, args=(message,))
    sender.start()
    found = Channel(theirs).receive()
    sender.join()
    for name in ("weights", "narrow", "view", "none", "large"):
        assert found[name].dtype == message[name].dtype
        assert torch.equal(found[name], message[name])
    assert np.array_equal(found["rows"], message["rows"])
    assert found["words"] == "loss"
    # what arrives is the receiver's own
    found["weights"].add_(1)


def test_a_closed_connection_is_no_message() -> None:
    ours, theirs = Pipe()
    ours.close()
    with pytest.raises(EOFError):
        Channel(theirs).receive()
