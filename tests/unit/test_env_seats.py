"""Places of the server: who gets one, who waits for one, and who gives way."""

from __future__ import annotations

import asyncio

from helpers.stories import played

from env.server.door.seats import Seats


class Session:
    """A session that waits for its client, or is in a step."""

    def __init__(self, waits: bool = True) -> None:
        self.waits, self.ended = waits, False

    def end(self) -> bool:
        self.ended = self.waits
        return self.waits


def seats(count: int, **times: float) -> Seats:
    made = Seats(**times)
    made.limit(count, "because")
    return made


@played
async def test_there_are_as_many_places_as_the_limit_says() -> None:
    places = seats(2, wait_s=0.01)
    assert [await places.take(Session()) for _ in range(3)] == [True, True, False]
    assert places.rule == "this server plays at most 2 episodes at a time (because)"


@played
async def test_a_place_that_becomes_free_is_given_to_a_client_that_waits() -> None:
    places, first = seats(1), Session()
    await places.take(first)
    late = asyncio.create_task(places.take(Session()))
    await asyncio.sleep(0)
    places.leave(first)
    assert await late


@played
async def test_a_full_server_closes_a_session_that_never_began_and_no_other() -> None:
    places = seats(3, silent_s=0.0, wait_s=0.01)
    playing, steps, silent = Session(), Session(waits=False), Session()
    for session in (playing, steps, silent):
        assert await places.take(session)
    places.plays(playing)
    await asyncio.sleep(0.01)
    assert not await places.take(Session())  # the closed one has not yet left
    assert [playing.ended, steps.ended, silent.ended] == [False, False, True]
