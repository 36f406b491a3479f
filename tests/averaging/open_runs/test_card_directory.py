"""The rule of a public directory of cards, and what a reader takes of it."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest
import trio

from averaging.network.libp2p.hivemind_parts import import_hivemind
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.directory import Record, directory_id
from averaging.open_runs.card_directory import (
    CARD_TTL_S,
    CHECK_BURST,
    CHECKS_PER_S,
    MOST_KEPT,
    MOST_READ,
    RUNS_KEY,
    CardRule,
    directory_addresses,
    publish_card,
    read_cards,
    unfit_directory,
)
from protocol.host.card_stamp import DAY_S, day_of
from protocol.host.run_card import MAX_CARD_BYTES, RunCard, seal_card
from protocol.identity.identity import Identity
from protocol.ids import PeerId
from tests.protocol.host.test_card_stamp import stamped_card
from tests.protocol.host.test_run_card import CARD, HOST, NOW, OTHER, RUN, VERIFIER

KEY = directory_id(RUNS_KEY)
ADDRESS = f"/ip4/192.0.2.1/tcp/4700/p2p/{HOST.peer_id}"


def _record(
    host: Identity = HOST, made_unix_s: float = NOW, expires_s: float = CARD_TTL_S, **changes: object
) -> Record:
    raw = seal_card(host, RUN, CARD, made_unix_s)
    return Record(host.peer_id, raw, NOW + expires_s, KEY)._replace(**changes)


def test_a_host_has_its_own_signed_card_under_the_one_key_for_ten_minutes() -> None:
    rule = CardRule(VERIFIER)
    assert rule(_record(), NOW) == ""
    wrong = {
        "another key": _record(key=directory_id("potluck/others")),
        "stored for": _record(subkey=OTHER.peer_id),
        "allowed are 0 to 600 s": _record(expires_s=CARD_TTL_S + 60),
        "expires in -": _record(expires_s=-60.0),
        "expires in nan": _record(expires_unix_s=float("nan")),
        "at most": _record(value=bytes(MAX_CARD_BYTES + 1)),
        "envelope": _record(value=b"junk"),
        "expired": _record(made_unix_s=NOW - 3600),
        "signature": _record(value=seal_card(HOST, RUN, CARD, NOW)[:-1] + b"x"),
    }
    for found, record in wrong.items():
        assert found in rule(record, NOW)
    assert rule.num_refused == len({record.value for record in wrong.values()})
    rule(wrong["envelope"], NOW)
    assert rule.num_refused == len({record.value for record in wrong.values()}), "each card is counted once"


def test_a_node_keeps_the_cards_of_so_many_hosts_until_they_expire() -> None:
    rule = CardRule(VERIFIER)
    hosts = [Identity(number.to_bytes(32, "big")) for number in range(1, MOST_KEPT + 2)]
    for host in hosts[:-1]:
        assert rule(_record(host), NOW) == ""
    assert rule(_record(hosts[0]), NOW) == "", "a known host renews its card"
    assert rule(_record(hosts[-1]), NOW) == "the directory is full now"
    later = _record(hosts[-1], NOW + 3 * CARD_TTL_S, 4 * CARD_TTL_S)
    assert rule(later, NOW + 3 * CARD_TTL_S) == ""


def test_the_id_of_a_key_is_that_of_the_dht() -> None:
    import_hivemind()
    from hivemind.dht.routing import DHTID

    for key in (RUNS_KEY, "x" * 31, "x" * 32, "é" * 100):
        assert directory_id(key) == DHTID.generate(source=key).to_bytes()


@pytest.mark.usefixtures("autojump_clock")
async def test_a_reader_takes_so_many_cards_drawn_from_all_and_counts_the_others() -> None:
    async with trio.open_nursery() as nursery:
        swarm = MemorySwarm(nursery, random.Random(1), record_rule=lambda record, now_unix_s: "")
        us = swarm.start(PeerId("us"))
        for number in range(MOST_READ + 5):
            assert await publish_card(
                us, b"card %d" % number, f"host {number:03}", swarm.unix_offset_s + trio.current_time()
            )
        cards, num_more = await read_cards(us, lambda num: num - 1)
        nursery.cancel_scope.cancel()
    assert num_more == 5
    assert sorted(cards) == sorted(b"card %d" % number for number in range(5, MOST_READ + 5))


def test_addresses_of_a_directory_name_their_nodes() -> None:
    both = f"{ADDRESS}, /dns4/runs.example.org/tcp/4700/p2p/{OTHER.peer_id}"
    assert unfit_directory(both) == ""
    assert len(directory_addresses(both)) == 2
    without_peer, elsewhere = "/ip4/192.0.2.1/tcp/4700", "192.0.2.1:4700"
    for text in (
        "",
        ",",
        without_peer,
        elsewhere,
        f"{ADDRESS},{without_peer}",
        ADDRESS + " x",
        ",".join([ADDRESS] * 9),
    ):
        assert "potluck directory" in unfit_directory(text)


def test_a_card_that_says_something_new_replaces_the_one_before() -> None:
    rule = CardRule(VERIFIER)
    assert rule(_record(), NOW) == ""
    newer = seal_card(HOST, RUN, replace(CARD, num_peers=9), NOW + 200)
    assert rule(Record(HOST.peer_id, newer, NOW + 800, KEY), NOW + 200) == ""


BITS = 4
FAST = 1000.0
"""A flood brings so many cards a second."""


def _flood(rule: CardRule, cards: Iterator[Record], begin_unix_s: float) -> Counter[str]:
    """The answers of the rule to these cards, counted."""
    return Counter(rule(record, begin_unix_s + number / FAST) for number, record in enumerate(cards))


def _free_keys(count: int, card: RunCard = CARD) -> Iterator[Record]:
    hosts = (Identity(number.to_bytes(32, "big")) for number in range(1, count + 1))
    return (Record(host.peer_id, seal_card(host, RUN, card, NOW), NOW + CARD_TTL_S, KEY) for host in hosts)


def _stamped(host: Identity = HOST, now_unix_s: float = NOW) -> Record:
    card = stamped_card(host, now_unix_s, BITS)
    return Record(host.peer_id, seal_card(host, RUN, card, now_unix_s), now_unix_s + CARD_TTL_S, KEY)


def test_a_flood_of_keys_without_work_takes_no_place_in_a_directory() -> None:
    rule = CardRule(VERIFIER, BITS)
    assert set(_flood(rule, _free_keys(2 * MOST_KEPT), NOW)) == {"no stamp of today, as newer releases make one"}
    assert rule(_stamped(), NOW + 1) == ""


def test_a_flood_of_false_stamps_is_checked_at_a_bounded_rate_and_a_known_host_keeps_its_place() -> None:
    rule = CardRule(VERIFIER, 20)
    rule._stamp_bits = BITS
    assert rule(_stamped(), NOW) == ""
    rule._stamp_bits = 20
    false = replace(CARD, stamp=7, stamp_day=day_of(NOW))
    found = _flood(rule, _free_keys(600, false), NOW)
    assert found["a false stamp"] <= CHECK_BURST + CHECKS_PER_S * 600 / FAST
    assert found["a false stamp"] + found["a crowd at the directory"] == 600
    assert rule(_stamped(), NOW + 1) == "", "its stamp is known"


def test_a_known_host_gets_its_next_stamp_checked_amid_a_crowd_but_no_second_false_one() -> None:
    rule = CardRule(VERIFIER, BITS)
    assert rule(_stamped(), NOW) == ""
    rule._allowance = 0.0
    tomorrow = NOW + DAY_S
    rule._looked_unix_s = tomorrow
    assert rule(_stamped(OTHER, tomorrow), tomorrow) == "a crowd at the directory"
    assert rule(_stamped(HOST, tomorrow), tomorrow) == ""
    false = [replace(CARD, stamp=number, stamp_day=day_of(tomorrow)) for number in (1 << 40, 1 << 41)]
    said = [
        rule(Record(HOST.peer_id, seal_card(HOST, RUN, card, tomorrow), tomorrow + CARD_TTL_S, KEY), tomorrow)
        for card in false
    ]
    assert said == ["a false stamp", "a crowd at the directory"]
