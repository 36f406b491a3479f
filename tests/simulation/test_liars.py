"""Worlds in which members lie: honest peers never take in what the rules forbid, and the run goes on. And each rule is needed."""

from __future__ import annotations

import inspect
import json
import sys
from dataclasses import replace
from typing import Final

import pytest

from protocol.rounds.lineage import record_rules
from tests.simulation.beside import Beside, Play
from tests.simulation.profiles import PROFILES
from tests.simulation.stories import simulate

HALVES: Final = [
    Play("tests.simulation.__main__", ("--json", "--profile", "liars", "--start", str(start), "--seeds", "30"), seed)
    for start, seed in ((0, "1"), (30, "2"))
]
"""`python -m tests.simulation --profile liars --seeds N` tells more."""

PLAYS: Final = HALVES


def test_no_honest_peer_takes_in_what_the_rules_forbid_and_the_run_goes_on_though_a_third_lies(beside: Beside) -> None:
    told = [json.loads(printed) for printed in beside.output(*HALVES)]
    assert {**told[0]["errors"], **told[1]["errors"]} == {}
    assert sum(totals["faults"]["lie"] for totals in told) > 1000
    assert sum(totals["faults"].get("crash", 0) for totals in told) > 0


@pytest.mark.parametrize("seed", range(6))
def test_in_a_run_of_two_false_tokens_of_one_neither_stop_nor_end_it(seed: int) -> None:
    profile = replace(PROFILES["liars"], num_peers=(2, 2), weights={"lossy link": 1}, num_faults=(1, 1))
    assert simulate(seed, profile).error == ""


def test_who_signs_false_sums_is_convicted_by_a_proof_and_nobody_honest_is() -> None:
    outcomes = [simulate(seed, PROFILES["false-sums"]) for seed in range(3)]
    assert [outcome.error for outcome in outcomes] == [""] * 3
    assert all(outcome.faults["lie"] for outcome in outcomes)
    assert all(outcome.faults["conviction"] for outcome in outcomes)


LEFT_OUT: Final = {
    "unknown rules": ("record_problem", "version > NEWEST", 3),
    "older rules": ("record_problem", "not may_follow(record.rules, parent.rules)", 7),
    "weight cap of the run": ("record_problem", "found != expected", 3),
    "attests range": ("_claims_problem", "not 0 < entry.attests <= len(record.attestations)", 6),
    "signatures of claims": ("_claims_problem", "not is_signed(check, entry.peer, entry.seal, payload)", 36),
    "admission of contributors": ("_claims_problem", "entry.peer not in voters and not check.verifier.admits", 9),
    "signatures of sums": ("_sums_problem", "not is_signed(check, part.reducer, part.seal, encode_sum(what))", 71),
    "admission of reducers": ("_sums_problem", "part.reducer not in voters", 15),
    "members left out once": ("_sums_problem", "len({entry.peer for entry in part.omitted}) < len(part.omitted)", 12),
    "somebody in a slice": ("_sums_problem", "not any(each.weight and not each.is_stranger", 1),
    "words of omissions": ("_sums_problem", "any(entry.reason or entry.code == OmissionCode.UNKNOWN", 8),
    "contributors in a slice": ("_sums_problem", "entry.peer not in counted", 17),
    "weight cap": ("_numbers_problem", "record.weight_cap_tokens > most_cap", 1),
    "a low weight cap": ("_low_problem", "cap_tokens < least", 177),
    "credited tokens": ("_numbers_problem", "entry.credited_tokens != tokens", 29),
    "strangers in the roster": ("_roster_problem", "outsider is not None", 9),
    "contributors in the roster": ("_roster_problem", "unfair:", 46),
    "a roster that shrinks": ("_roster_problem", "not record.lone and len(roster) < fewest", 18),
    "disks of voters": ("_roster_problem", "incarnation != known", 11),
    "unused attestations": ("_attestation_problem", "len(named) != len(record.attestations) or", 41),
    "attested state": ("_attestation_problem", "record.attested != expected", 8),
}
"""By what is left out: the function, the beginning of its condition, and a seed that finds it."""


def leave_out(patch: pytest.MonkeyPatch, function: str, condition: str) -> None:
    """Let a check never find anything."""
    source = inspect.getsource(getattr(record_rules, function))
    assert source.count(condition) == 1, f"{function} has no such check any more: {condition}"
    namespace = dict(vars(record_rules))
    changed = compile(source.replace(condition, f"False and {condition}"), function, "exec")
    exec(changed, namespace)  # noqa: S102 - our own source, one condition changed
    broken = namespace[function]
    real = getattr(record_rules, function)
    for module in [each for name, each in sorted(sys.modules.items()) if name.startswith("protocol.rounds.")]:
        if vars(module).get(function) is real:
            patch.setattr(module, function, broken)


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_check_of_records_that_is_left_out_is_found(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, condition, seed = LEFT_OUT[name]
    leave_out(monkeypatch, function, condition)
    assert "an honest peer took in commit" in simulate(seed, PROFILES["liars"]).error
