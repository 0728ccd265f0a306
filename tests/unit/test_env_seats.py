"""Places of the server: who gets one, who waits for one, and who gives way."""

import asyncio

from helpers.stories import played

from env.server.door.seats import Seats, network


class Session:
    """A session that waits for its client, or is in a step."""

    def __init__(self, waits: bool = True, address: str = "a") -> None:
        self.waits, self.ended, self.address = waits, False, address

    def end(self) -> bool:
        self.ended = self.waits
        return self.waits


def seats(count: int, **times: float) -> Seats:
    made = Seats(**{"idle_s": 60.0, **times})
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


@played
async def test_an_address_with_more_than_half_gives_way_to_another_once_it_is_idle() -> None:
    for addresses, idle_s, ends in (("bbba", 0.02, 1), ("bbaa", 0.02, 0), ("bbba", 0.0, 0)):
        places = seats(4, wait_s=0.01, crowd_s=0.01)
        held = [Session(address=address) for address in addresses]
        for session in held:
            assert await places.take(session)
            places.plays(session)
        await asyncio.sleep(idle_s)
        await places.take(Session(address="c"))
        assert [session.ended for session in held].count(True) == ends
        assert not held[-1].ended


@played
async def test_an_idle_episode_gives_way_to_another_address_after_a_quarter_of_the_time() -> None:
    places, steps, idle = seats(2, wait_s=0.01, idle_s=0.04), Session(), Session(address="b")
    for session in (steps, idle):
        assert await places.take(session)
        places.plays(session)
    await asyncio.sleep(0.02)
    places.plays(steps)
    await places.take(Session(address="b"))
    assert not idle.ended
    await places.take(Session(address="c"))
    assert [steps.ended, idle.ended] == [False, True]


def test_a_client_with_many_addresses_of_ipv6_counts_as_one() -> None:
    assert network("2001:db8::1") == network("2001:db8::ffff:1") != network("2001:db8:0:1::1")
    assert network("192.0.2.1") != network("192.0.2.2") == network("::ffff:192.0.2.2")
    assert network("testclient") == "testclient"
