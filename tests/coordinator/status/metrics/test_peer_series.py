"""Contributors as series: bounded, members that are here by name, all others in one."""

from __future__ import annotations

from dataclasses import replace

from coordinator.ledger.run_memory import Credits, RunPast
from coordinator.presence.presence import PeerEntry
from coordinator.status.metrics.metrics_text import render_metrics
from coordinator.status.metrics.moment import Counts, Moment
from coordinator.status.metrics.peer_series import MAX_SERIES, OTHERS, peer_series
from protocol.identity.chosen_name import ChosenName
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.lineage.round_row import Counted
from tests.coordinator.progress.test_run_view import A, B, C, peer, picture


def _past(**counted: tuple[int, int]) -> RunPast:
    ids = {"a": A, "b": B, "c": C}
    return RunPast(Credits(9, by_peer={ids.get(k, PeerId(k)): Counted(*v) for k, v in counted.items()}))


def test_members_that_are_here_have_series_by_name_and_who_is_away_or_left_is_among_the_others() -> None:
    entries = {A: PeerEntry(peer(), 95.0), B: PeerEntry(peer(state="left"), 99.0)}
    moment = Moment(replace(picture(), peers=entries), Counts(), 100.0, past=_past(a=(30, 3), b=(20, 2), c=(10, 1)))
    lines = render_metrics(lambda: moment).decode().splitlines()
    labels = f'{{name="{peer_name(A)}",peer="{A[-6:]}"}}'
    assert [line for line in lines if line.startswith("potluck_run_peer_")] == [
        f"potluck_run_peer_counted_tokens{labels} 30.0",
        'potluck_run_peer_counted_tokens{name="others",peer=""} 30.0',
        f"potluck_run_peer_counted_rounds{labels} 3.0",
        'potluck_run_peer_counted_rounds{name="others",peer=""} 3.0',
        f"potluck_run_peer_left_out_ratio{labels} 0.0",
        f"potluck_run_peer_heard_ago_seconds{labels} 5.0",
    ]


def test_the_series_are_the_hundred_with_the_most_tokens_and_the_others_sum_to_the_run() -> None:
    members = [PeerId(f"peer{number:04d}") for number in range(3 * MAX_SERIES)]
    past = RunPast(Credits(9, by_peer={each: Counted(number, 1) for number, each in enumerate(members)}))
    rows = peer_series(replace(picture(), peers={each: PeerEntry(peer(), 95.0) for each in members}), past, now_s=100.0)
    assert (len(rows), rows[-1].name, rows[-1].silent_s) == (MAX_SERIES + 1, OTHERS, None)
    assert min(row.counted.tokens for row in rows[:-1]) == 2 * MAX_SERIES
    assert sum(row.counted.tokens for row in rows) == sum(range(len(members)))


def test_two_members_of_one_name_are_two_series_and_without_others_there_is_no_row_of_them() -> None:
    twins = [PeerId(f"peer{number:06d}") for number in range(200)]
    by_name: dict[str, list[PeerId]] = {}
    for each in twins:
        by_name.setdefault(peer_name(each), []).append(each)
    pair = next(group for group in by_name.values() if len(group) > 1)
    rows = peer_series(
        replace(picture(), peers={each: PeerEntry(peer(), 95.0) for each in pair}), RunPast(), now_s=100.0
    )
    assert len({row.name for row in rows}) == 1
    assert len({(row.name, row.peer) for row in rows}) == len(rows) == len(pair)


def test_chosen_names_are_an_information_of_their_own_escaped_and_bounded() -> None:
    named = {
        PeerId(f"peer{n:04d}"): PeerEntry(replace(peer(), chosen=ChosenName(f'x"}} {n}\\', "oak")), 95.0)
        for n in range(300)
    }
    shown = replace(picture(), peers=named)
    text = render_metrics(lambda: Moment(shown, Counts(), 100.0)).decode()
    lines = [line for line in text.splitlines() if line.startswith("potluck_peer_info{")]
    assert len(lines) == MAX_SERIES
    assert lines[0] == 'potluck_peer_info{nickname="x\\"} 0\\\\",peer="er0000",team="oak"} 1.0'
    assert "oak" not in "".join(line for line in text.splitlines() if not line.startswith("potluck_peer_info{"))
    bare = render_metrics(lambda: Moment(picture(), Counts(), 100.0)).decode()
    assert "potluck_peer_info{" not in bare
