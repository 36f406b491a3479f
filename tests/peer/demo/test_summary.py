from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

import pytest

from peer.demo.summary import CASTS, Cast, DemoSummary, HostStatus, Seen, broken_promises, summarise
from peer.status.status import PeerStatus
from tests.peer.demo_world import FOUR, ROOT, UNIT_ROOTS, holder, report, round_row, sight

SEEN = sight((round_row(1), round_row(2, ("one", "three"))), heldout=(5.6, 2.4, 2.0))
FINAL = {number: report(number) for number in (1, 2, 3)}
HOLDERS = {number: holder(number) for number in FOUR}


def _reported(seen: Seen = SEEN, final: Mapping[int, PeerStatus] = FINAL, cast: Cast = CASTS["data"]) -> DemoSummary:
    return summarise(seen, final, cast).model_copy(update={"rejoin_s": 12.5})


def _broken(
    reported: DemoSummary,
    cast: Cast = CASTS["data"],
    stored: Mapping[str, str] = UNIT_ROOTS,
    *,
    is_verified: bool = True,
    went_on: bool = True,
) -> list[str]:
    return list(broken_promises(reported, cast, stored, is_verified=is_verified, went_on=went_on))


def test_no_promise_is_broken_when_all_held() -> None:
    reported = _reported()
    assert _broken(reported) == []
    assert (reported.heldout_loss_start, reported.heldout_loss_end, reported.heldout_loss_pairs) == (5.6, 2.0, 2.5)
    assert reported.members_per_round == (3, 2)
    assert reported.weights_per_round[1] == {"one": 0.5, "three": 0.5}
    assert set(reported.state_roots.values()) == {reported.checkpoint_root}


def test_bytes_are_those_of_the_last_status_and_of_the_killed_process() -> None:
    seen = sight((round_row(1),))
    seen.lost_bytes = (7, 9)
    seen.peers[1] = report(1).model_copy(update={"bytes_up": 40, "bytes_down": 50})
    reported = _reported(seen, {3: FINAL[3]})
    assert (reported.bytes_up, reported.bytes_down) == (7 + 40 + 100 + 100, 9 + 50 + 200 + 200)


def test_summary_has_every_documented_key() -> None:
    documented = {
        "ok", "failures", "heldout_loss_start", "heldout_loss_end", "heldout_loss_pairs", "heldout_experts_end",
        "rounds_committed", "rounds_before_kill", "members_per_round", "weights_per_round", "state_roots", "unit_roots", "rejoin_s",
        "others_paused_s", "bytes_up", "bytes_down", "checkpoint", "checkpoint_root", "plot", "seconds",
    }  # fmt: skip
    assert documented == set(DemoSummary.model_fields)


def test_loss_of_a_run_of_few_tokens_is_not_judged_and_all_else_is() -> None:
    few = replace(CASTS["data"], is_loss_judged=False)
    reported = _reported(sight((round_row(1),), (5.6, 5.4)))
    assert _broken(reported, few) == []
    assert len(_broken(reported.model_copy(update={"rejoin_s": None}), few, went_on=False)) == 2


@pytest.mark.parametrize(
    ("broken", "expected"),
    [
        (_broken(_reported(final=FINAL | {2: report(2, root="cd" * 32)})), "one state root"),
        (_broken(_reported(final={1: FINAL[1], 2: FINAL[2]})), "one state root"),
        (_broken(_reported(final={number: report(number, root="") for number in FINAL})), "one state root"),
        (_broken(_reported(final={number: report(number, root="cd" * 32) for number in FINAL})), "not the peers'"),
        (_broken(_reported(), is_verified=False), "does not verify"),
        (_broken(_reported().model_copy(update={"rejoin_s": None})), "not counted again"),
        (_broken(_reported(sight((round_row(1),), (5.6, 2.4)))), "2.400 nats per byte, not below 2.300"),
        (_broken(_reported(sight((round_row(1),), (5.6, 2.6)))), "pair model"),
        (_broken(_reported(sight((round_row(1),)))), "the held-out loss of the model"),
        (_broken(_reported(), went_on=False), "go on without it"),
        (_broken(_reported(Seen())), "no checkpoint was written"),
    ],
    ids=[
        "roots differ", "report missing", "no root", "other root", "bad checkpoint", "not rejoined", "above goal",
        "above pairs", "no loss", "nobody went on", "no checkpoint",
    ],
)  # fmt: skip
def test_promise_that_did_not_hold_is_named(broken: list[str], expected: str) -> None:
    assert any(expected in sentence for sentence in broken)


def test_experts_are_judged_by_the_roots_of_their_holders_and_of_the_checkpoint() -> None:
    reported = _reported(final=HOLDERS, cast=CASTS["expert"])
    assert _broken(reported, CASTS["expert"], {"trunk": ROOT, **UNIT_ROOTS}) == []
    assert reported.unit_roots == {unit: (root,) for unit, root in UNIT_ROOTS.items()}
    assert len(reported.state_roots) == 4


@pytest.mark.parametrize(
    ("final", "stored", "expected"),
    [
        (HOLDERS | {4: holder(4, root="cd" * 32)}, UNIT_ROOTS, "the peers did not end"),
        (HOLDERS | {4: holder(4, unit_root="cd" * 32)}, UNIT_ROOTS, "of expert-1 did not"),
        ({1: HOLDERS[1], 3: HOLDERS[3]}, UNIT_ROOTS, "expert-1 did not .*no reports"),
        (HOLDERS, {}, "expert-0 of the last checkpoint has root none"),
    ],
    ids=["trunks differ", "holders differ", "nobody holds one", "other root"],
)
def test_expert_whose_holders_or_checkpoint_differ_is_named(
    final: Mapping[int, PeerStatus], stored: Mapping[str, str], expected: str
) -> None:
    broken = _broken(_reported(final=final, cast=CASTS["expert"]), CASTS["expert"], stored)
    assert any(re.search(expected, sentence) for sentence in broken)


def test_stages_may_differ_from_one_another_but_not_from_the_checkpoint() -> None:
    cast, roots = CASTS["pipeline"], {f"stage-{stage}": f"{stage}" * 64 for stage in range(3)}
    assert cast.units == tuple(roots)
    final = {
        number: PeerStatus(peer=str(number), name="n", unit=unit, state_root=roots[unit])
        for number, unit in enumerate([*roots, *roots], 1)
    }
    assert _broken(_reported(final=final, cast=cast), cast, roots) == []
    assert "stage-2 of the last" in _broken(_reported(final=final, cast=cast), cast, roots | {"stage-2": ROOT})[0]


def test_every_expert_has_two_holders_one_of_them_no_victim() -> None:
    assert CASTS["expert"].experts == (0, 1, 0, 1)
    assert CASTS["expert"].units == ("expert-0", "expert-1")


def test_rounds_are_kept_after_the_host_lists_them_no_more() -> None:
    seen = sight((round_row(1), round_row(2, ("one", "three"))))
    seen.add_host(
        HostStatus(phase="training", index=3, total_tokens=300, target_total_tokens=600, rounds=(round_row(3),))
    )
    assert (sorted(seen.rounds), seen.index, seen.share) == ([1, 2, 3], 3, 0.5)
    assert [row.index for row in seen.rounds_after(0, with_victim=False)] == [2]
    assert [row.index for row in seen.rounds_after(1, with_victim=True)] == [3]


def test_host_status_reads_what_is_documented_and_ignores_the_rest() -> None:
    text = """{"run": "demo", "phase": "training", "reason": "r", "index": 1, "total_tokens": 5, "later": 1,
    "target_total_tokens": 9, "eta_s": 3.5, "heldout": [{"index": 0, "tokens": 0, "nats": 5.6}],
    "rounds": [{"index": 1, "commit": "aa", "members": ["p"], "weights": {"p": 1.0}, "coverage": 1.0,
    "omitted": [{"peer": "q", "reason": "silent"}], "unix_s": 7.0}],
    "train_loss": [{"tokens": 5, "nats": 5.0}], "checkpoints": [], "yardsticks": null}"""
    status = HostStatus.model_validate_json(text)
    assert (status.rounds[0].omitted[0].reason, status.heldout[0].nats) == ("silent", 5.6)
