from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import cast

import pytest
import structlog
import trio
import trio.testing

from averaging.rounds.unit_service import RoundService
from averaging.state.log_entries import LoggedContribution
from peer.audits.audited_run import watch_own_work, why_not_here
from peer.status.status_board import GivenToRun
from protocol.host.work_rules import MOST_STEPS
from protocol.identity.standing import PeerStanding
from protocol.ids import PeerId, Root
from protocol.run.manifest import parse_run_config
from tests.e2e.run_file import run_toml


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"mode": "blocking"}, ""),
        ({"mode": "blocking", "codec": "int4"}, ""),
        ({}, ""),
        ({"mode": "streaming", "fragments": 2}, "fragments"),
        ({"mode": "blocking", "codec": "topk"}, "sparse"),
        ({"mode": "blocking", "error_feedback": 0.5}, "rests"),
    ],
)
def test_audits_are_possible_in_rounds_of_the_whole_model_and_a_dense_codec_and_otherwise_the_reason_is_named(
    changes: Mapping[str, object], words: str
) -> None:
    layers = {"num_layers": 2} if "fragments" in changes else {}
    config = parse_run_config(run_toml("audited", 100_000, round={"target_tokens": 1000, **changes}, model=layers))
    why_not = why_not_here(config, trains_alone=True)
    assert words in why_not
    assert bool(why_not) == bool(words)


def test_several_cards_or_islands_of_one_peer_audit_nobody() -> None:
    config = parse_run_config(run_toml("audited", 100_000, round={"target_tokens": 1000, "mode": "blocking"}))
    assert "several processes" in why_not_here(config, trains_alone=False)


@pytest.mark.parametrize(
    ("num_steps", "words"), [(0, "several replicas"), (MOST_STEPS + 1, f"at most {MOST_STEPS}"), (MOST_STEPS, "")]
)
@pytest.mark.parametrize("standing", list(PeerStanding))
async def test_a_peer_whose_work_nobody_can_do_again_notes_it_and_says_it_once_if_it_is_a_stranger(
    num_steps: int, words: str, standing: PeerStanding, autojump_clock: trio.testing.MockClock
) -> None:
    me, given = PeerId("me"), GivenToRun()
    work, barred = SimpleNamespace(newest=None), SimpleNamespace(standings={me: standing})
    heads = [SimpleNamespace(commit=number) for number in range(3)]
    service = SimpleNamespace(chain=SimpleNamespace(offered=work), state=SimpleNamespace(barred=barred, link=heads[0]))
    service.wait_changed = lambda: trio.sleep(1.0)
    with structlog.testing.capture_logs() as logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch_own_work, cast("RoundService", service), me, given)
            await trio.sleep(1.5)
            assert given.untellable == "", "there is no work yet"
            work.newest = LoggedContribution(Root(bytes(32)), 64, 9, num_steps)
            for head in heads[1:]:
                service.state.link = head
                await trio.sleep(2.0)
            nursery.cancel_scope.cancel()
    assert words in given.untellable
    assert bool(words) == bool(given.untellable)
    is_said = bool(words) and standing is PeerStanding.STRANGER
    assert [each["event"] for each in logs] == ["no_member_by_work"] * is_said
