"""A request hears every output once and in order, whichever thread is faster."""

from __future__ import annotations

import asyncio
import threading

from cohort.service.subscription import Subscription, wake_all
from cohort.serving.step_output import StepOutput


def output(token: int) -> StepOutput:
    return StepOutput(number=0, token=token)


def test_what_comes_while_a_request_is_busy_wakes_nothing_and_is_taken_at_once() -> None:
    async def take() -> None:
        subscription = Subscription(asyncio.get_running_loop())
        assert not subscription.put(0, output(1)), "nothing waits"
        assert not subscription.put(1, output(2))
        assert [(place, each.token) for place, each in await subscription.arrived()] == [(0, 1), (1, 2)]

    asyncio.run(take())


def test_a_request_that_waits_is_woken_by_its_loop() -> None:
    async def take() -> list[int | None]:
        loop = asyncio.get_running_loop()
        subscription = Subscription(loop)
        waiting = asyncio.ensure_future(subscription.arrived())
        await asyncio.sleep(0)
        assert subscription.put(0, output(3)), "it waits"
        loop.call_soon_threadsafe(wake_all, [subscription])
        return [each.token for _, each in await waiting]

    assert asyncio.run(take()) == [3]


def test_a_request_that_gives_up_waiting_loses_nothing_that_comes_later() -> None:
    async def take() -> list[int | None]:
        subscription = Subscription(asyncio.get_running_loop())
        waiting = asyncio.ensure_future(subscription.arrived())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
        assert not subscription.put(0, output(4))
        # a wake-up that was on its way
        subscription.wake()
        return [each.token for _, each in await subscription.arrived()]

    assert asyncio.run(take()) == [4]


def test_ten_thousand_outputs_of_another_thread_come_once_each_and_in_order() -> None:
    total = 10_000

    async def take() -> list[int | None]:
        loop = asyncio.get_running_loop()
        subscription = Subscription(loop)

        def give() -> None:
            for token in range(total):
                if subscription.put(0, output(token)):
                    loop.call_soon_threadsafe(wake_all, [subscription])

        giver = threading.Thread(target=give)
        giver.start()
        heard: list[int | None] = []
        while len(heard) < total:
            heard += [each.token for _, each in await asyncio.wait_for(subscription.arrived(), timeout=30.0)]
            # a request that gathers before it writes
            if len(heard) % 3 == 0:
                await asyncio.sleep(0.0005)
        giver.join()
        return heard

    assert asyncio.run(take()) == list(range(total))
