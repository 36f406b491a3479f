"""Every number of a manifest that leaves a run without a single round is refused with one that works, and the bounds are real."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Final

import pytest

from protocol.errors import RemoteProtocolError
from protocol.estimates.round_limits import (
    MAX_UNITS,
    MOST_TOTAL_TOKENS,
    RoundProblem,
    round_problem,
)
from protocol.ids import PeerId
from protocol.pipeline.messages.lane_messages import MAX_PASSED_BYTES
from protocol.rounds.messages import messages as m
from protocol.rounds.messages import record as rec
from protocol.rounds.messages.bounds import MAX_CREDENTIAL_BYTES, MAX_MEMBERS, MAX_SLICES, require_tokens
from protocol.rounds.messages.wire import MAX_MESSAGE_BYTES, encode_message, encode_record
from protocol.run.manifest import RunConfig, parse_run_config
from tests.protocol.rounds.messages.test_wire import BASE, HEAD, PROPOSAL, RECORD, ROOT
from tests.protocol.run.test_experts_section import expert_toml
from tests.protocol.run.test_pipeline_section import pipeline_run

PEERS: Final = tuple(PeerId(f"{number:052}") for number in range(MAX_MEMBERS))
MANY_LAYERS: Final = (
    "[run]\nname = 'here'\ntotal_tokens = {total}\n[model]\nvocab_size = 257\ndim = {dim}\nnum_layers = {layers}\n"
    "num_heads = 1\nnum_kv_heads = 1\nffn_dim = 8\ncontext_tokens = 8\n[inner]\nbatch_tokens = 8\nlearning_rate = 0.001\n"
    "[round]\ntarget_tokens = 100000\n{more}\n"
)


def _run(*, total: int = 1 << 30, layers: int = 2, dim: int = 8, more: str = "") -> RunConfig:
    return parse_run_config(MANY_LAYERS.format(total=total, layers=layers, dim=dim, more=more))


def _fragments(count: int) -> RunConfig:
    return _run(layers=80, more=f'mode = "streaming"\nfragments = {count}')


def _holdings(count: int) -> RunConfig:
    section = f"[experts]\nnum_experts = 80\nffn_dim = 64\nholdings = {count}\n"
    return parse_run_config(expert_toml("min_members = 2", section=section))


def _interval(seconds: float) -> RunConfig:
    return _run(dim=1 << 16, layers=2, more=f"longest_interval_s = {float(seconds)}\ncodec = 'fp32'")


def _micro_batches(count: int, **model: Any) -> RunConfig:
    batch = 8 * 16_384
    return pipeline_run(
        model={"dim": 16_384, "context_tokens": 16_384, **model},
        inner={"batch_tokens": batch},
        round={"target_tokens": 20 * batch},
        run={"total_tokens": 1000 * batch},
        pipeline={"micro_batches": count, "forward_codec": "bf16"},
    )


def _chunks(elements: int) -> RunConfig:
    return _run(dim=1 << 15, layers=2, more=f"chunk_elements = {elements}\nlongest_interval_s = 3600.0")


CASES: Final = {
    "chunk_elements too long": (_chunks, 1 << 18, "round.chunk_elements is 262144"),
    "chunk_elements too short": (_chunks, 256, "round.chunk_elements is 256"),
    "fragments": (_fragments, 64, "round.fragments is 64"),
    "holdings": (_holdings, 64, "experts.holdings is 64"),
    "total_tokens": (lambda total: _run(total=total), 1 << 53, f"run.total_tokens is {1 << 53}"),
    "longest_interval_s": (_interval, 1, "round.longest_interval_s is 1"),
    "micro_batches": (_micro_batches, 1, "pipeline.micro_batches is 1"),
}


def _problem(run: RunConfig) -> RoundProblem:
    problem = round_problem(run)
    assert problem is not None
    return problem


@pytest.mark.parametrize(("make", "number", "found"), CASES.values(), ids=CASES)
def test_a_number_with_which_no_round_could_be_committed_is_refused_with_the_nearest_that_works(
    make: Any, number: int, found: str
) -> None:
    problem = _problem(make(number))
    assert problem.found.startswith(f"{found}: ") or problem.found.startswith(f"{found}, ")
    match = re.fullmatch(r"at (least|most) (\d+)", problem.expected)
    assert match is not None, problem.expected
    works = int(match[2])
    assert round_problem(make(works)) is None
    if found.startswith("pipeline"):
        assert works == 4  # sequences of a step are cut evenly
    else:
        assert round_problem(make(works - 1 if match[1] == "least" else works + 1)) is not None


def test_a_run_of_the_default_file_has_no_such_number() -> None:
    assert round_problem(_run()) is None


def test_fragments_that_nobody_chose_are_named_with_the_number_to_write() -> None:
    problem = _problem(_run(layers=200, more='mode = "streaming"'))
    assert problem.found.startswith("round.fragments is 67")
    assert problem.expected == "at most 63"
    assert "write fragments = 63 into [round]" in problem.remedy


def test_a_sequence_that_no_parcel_carries_is_to_be_shorter() -> None:
    problem = _problem(_micro_batches(8, dim=65_536))
    assert problem.found.startswith("model.context_tokens is 16384")
    most = int(problem.expected.removeprefix("at most "))
    assert most * 2 * 65_536 <= MAX_PASSED_BYTES


def test_the_bounds_are_those_of_the_messages() -> None:
    beat = m.Heartbeat(PROPOSAL.members[0], True, 0, (HEAD,) * MAX_UNITS)
    with pytest.raises(RemoteProtocolError):
        replace(beat, heads=(HEAD,) * (MAX_UNITS + 1))
    require_tokens(2 * MOST_TOTAL_TOKENS)
    with pytest.raises(RemoteProtocolError):
        require_tokens(2 * MOST_TOTAL_TOKENS + 1)


def test_the_most_members_and_slices_fit_into_a_message_so_neither_number_of_a_manifest_can_stop_a_round() -> None:
    credential, seal = b"c" * MAX_CREDENTIAL_BYTES, b"s" * 82
    members = tuple(m.Member(peer, 2**63, 2**32) for peer in PEERS)
    slices = tuple(m.SliceSpec(part, part + 1, PEERS[part]) for part in range(MAX_SLICES))
    proposal = replace(PROPOSAL, members=members, slices=slices, pre_votes=(b"v" * 1024,) * MAX_MEMBERS)
    omitted = tuple(rec.Omission(peer, "", rec.OmissionCode.LATE) for peer in PEERS)
    record = replace(
        RECORD,
        slices=tuple(
            rec.SliceRecord(part, part + 1, PEERS[part], ROOT, omitted, 999_999, seal, credential)
            for part in range(MAX_SLICES)
        ),
        contributors=tuple(
            rec.Contributor(peer, 2**63, ROOT, 1 << 52, 1 << 52, (), 2**32, seal, 1, credential) for peer in PEERS
        ),
        roster=PEERS,
        incarnations=(2**63,) * MAX_MEMBERS,
        rules=1,
        attestations=(rec.Attestation(BASE, ROOT),),
    )
    settle = m.Settle(PROPOSAL.unit, BASE, PROPOSAL.ballot, encode_record(record), PEERS)
    assert max(len(encode_message(message)) for message in (proposal, settle)) <= MAX_MESSAGE_BYTES
