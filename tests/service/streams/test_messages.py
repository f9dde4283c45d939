"""Messages arrive whole and in order, however the connection cuts them."""

from __future__ import annotations

import random

from cohort.service.streams.messages import Attach, Forget, Frames, Outputs, framed
from cohort.serving.step_output import FinishReason, StepOutput, TokenLogprobs


def test_messages_are_whole_however_they_are_cut() -> None:
    output = StepOutput(
        number=4,
        token=7,
        text="é",
        logprobs=TokenLogprobs(picked=-0.5, top=((7, -0.5),)),
        finish=FinishReason.STOP,
        error="no",
    )
    sent = [Attach(number=3), Outputs(plain=[1, 2, 3, 4], others=[(9, output)]), Forget(number=3)]
    data = b"".join(map(framed, sent))
    for seed in range(20):
        chance, frames, place = random.Random(seed), Frames(), 0
        found: list[object] = []
        while place < len(data):
            size = chance.choice((1, 3, 50, len(data)))
            found += frames.read(data[place : place + size])
            place += size
        assert found == sent
