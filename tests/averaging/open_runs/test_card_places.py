"""Places in a directory are drawn where more hosts ask than there are places."""

from __future__ import annotations

from averaging.open_runs.card_places import MOST_ASKING, PERIOD_S, CardPlaces

MOST, TTL_S, EVERY_S = 64, 600.0, 200
NOW = 1000 * PERIOD_S


def _asked(places: CardPlaces, hosts: list[str], num_periods: int) -> dict[str, int]:
    """In how many periods each host got a place. All ask every few minutes, the first ones first."""
    periods = dict[str, set[int]]()
    for now in range(NOW, NOW + num_periods * PERIOD_S, EVERY_S):
        got = [host for host in hosts if places.takes(host, now + TTL_S, float(now))]
        for host in got:
            periods.setdefault(host, set()).add(now // PERIOD_S)
        with_place = [until_s for until_s in places._kept.values() if until_s > now]
        assert len(with_place) <= MOST, "whatever is drawn, a node stores no more"
    return {host: len(periods.get(host, ())) for host in hosts}


def test_as_many_hosts_as_places_keep_theirs() -> None:
    hosts = [f"host {number}" for number in range(MOST)]
    assert set(_asked(CardPlaces(MOST, 2 * TTL_S), hosts, 3).values()) == {3}


def test_keys_that_fill_a_node_first_and_ask_more_often_keep_no_other_host_out() -> None:
    crowd, honest = [f"crowd {number}" for number in range(3 * MOST)], ["honest"]
    found = _asked(CardPlaces(MOST, 2 * TTL_S, b"seed"), [*crowd, *crowd, *honest], 60)
    share = MOST / (2 * (len(crowd) + 1))
    assert 0.5 * share < found["honest"] / 60 < 2.0 * share
    mean = sum(found[host] for host in crowd) / len(crowd) / 60
    assert 0.8 * share < mean < 1.2 * share


def test_two_nodes_draw_differently_and_nobody_can_tell_how() -> None:
    hosts = [f"host {number}" for number in range(4 * MOST)]
    found = []
    for _ in range(2):
        places = CardPlaces(MOST, 2 * TTL_S)
        _asked(places, hosts, 1)
        found.append({host for host in hosts if places._is_drawn(host, NOW)})
    assert found[0] != found[1]


def test_hosts_that_ask_no_more_and_those_of_a_crowd_without_end_are_forgotten() -> None:
    places = CardPlaces(MOST, 2 * TTL_S)
    for number in range(MOST_ASKING + 9):
        places.takes(f"host {number}", NOW + TTL_S, NOW)
    assert len(places._asking) == MOST_ASKING
    assert not places.knows("host 8")
    later = NOW + 2 * TTL_S + 1.0
    assert places.takes("another", later + TTL_S, later)
    assert list(places._asking) == ["another"]
