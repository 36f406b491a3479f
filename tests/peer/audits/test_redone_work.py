"""Work done again on real trainers: auditors tell assigned work from all other."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coordinator.policy.audited_work_core import KnownVerdict, audited_work, passes, usual_fit
from peer.audits.audit_turns import MOST_LATE
from peer.audits.redone_work import ClaimedSteps, RedoneWork
from peer.audits.trainer_state import delta_bytes, state_bytes, state_of
from peer.audits.work_audit_core import Finding
from peer.training.replica.exchange_values import PIECE_VALUES
from protocol.errors import LocalProtocolError
from protocol.host.work_verdict import VERDICT_DOMAIN, decode_verdict, encode_verdict, verdict_of
from protocol.identity.envelope import NEVER_MS, open_envelope, seal
from protocol.ids import CommitId, PeerId, Root, RunId, UnitName
from tests.peer.audits.redone_world import NUM_PEERS, SIGNERS, STEPS, World, contributed, lies, read_once, sent
from tests.simulation.signing import HashVerifier

RUN, UNIT = RunId(b"r" * 32), UnitName("fragment-0")


def test_training_goes_on_bit_for_bit_after_work_that_was_redone_in_turns(world: World) -> None:
    trainer = world.trainers[1]
    before = state_of(trainer)
    redone_N = world.redone(1, 0)
    after = state_of(trainer)
    assert all(torch.equal(a, b) for a, b in zip(before.values, after.values, strict=True))
    assert all(torch.equal(a, b) for a, b in zip(before.moments, after.moments, strict=True))
    assert (before.counters, before.plan, before.schedule_tokens) == (after.counters, after.plan, after.schedule_tokens)
    whole = RedoneWork(trainer, ClaimedSteps(SIGNERS[0].peer_id, world.first_step, STEPS), world.begun[1])
    assert whole.advance(STEPS)
    assert torch.equal(whole.delta(), redone_N), "turns change nothing"


class NewMemory(TorchDispatchMode):
    """Counts bytes of results that lie in no argument's memory."""

    num_bytes = 0

    def __torch_dispatch__(
        self, func: Callable[..., object], types: object, args: tuple[object, ...] = (), kwargs: object = None
    ) -> object:
        named = cast("dict[str, object]", kwargs or {})
        result = func(*args, **named)
        known = {
            each.untyped_storage().data_ptr() for each in tree_leaves((args, named)) if isinstance(each, torch.Tensor)
        }
        for each in tree_leaves(result):
            if isinstance(each, torch.Tensor) and each.untyped_storage().data_ptr() not in known:
                self.num_bytes += each.nbytes
        return result


def test_a_turn_takes_no_memory_for_states_beside_the_copy_that_the_audit_keeps(world: World) -> None:
    steps = ClaimedSteps(SIGNERS[0].peer_id, world.first_step, STEPS)
    with NewMemory() as at_the_beginning:
        work = RedoneWork(world.trainers[1], steps, world.begun[1])
    with NewMemory() as in_a_turn:
        assert not work.advance(0)
    with NewMemory() as of_the_delta:
        work.delta()
    piece_bytes = 4 * PIECE_VALUES
    assert at_the_beginning.num_bytes == state_bytes(world.trainers[1]) + piece_bytes
    assert in_a_turn.num_bytes == 0
    assert of_the_delta.num_bytes == delta_bytes(world.trainers[1])


def test_own_steps_done_again_with_the_moments_of_their_beginning_make_the_same_bytes(world: World) -> None:
    assert torch.equal(sent(world.redone(2, 2)), world.deltas[2])


def test_claimed_steps_that_cannot_be_are_refused() -> None:
    for wrong in ((0, 0), (-1, 5), (0, 1 << 21)):
        with pytest.raises(LocalProtocolError, match="steps from step"):
            ClaimedSteps("alice", *wrong)


def _verdict(auditor: int, contributor: int, finding: Finding, number: int) -> KnownVerdict:
    """A finding on its way: signed by the auditor, read by the host."""
    root, commit = Root(bytes([contributor]) * 32), CommitId(number.to_bytes(32, "big"))
    signer, accused = SIGNERS[auditor], SIGNERS[contributor].peer_id
    said = verdict_of(UNIT, commit, accused, root, gap=finding.gap, length_ratio=finding.length_ratio)
    sealed = seal(signer, VERDICT_DOMAIN, RUN, number, NEVER_MS, encode_verdict(said))
    envelope = open_envelope(sealed, verifier=HashVerifier(), domain=VERDICT_DOMAIN, run_id=RUN, now_unix_ms=None)
    read = decode_verdict(envelope.payload)
    return KnownVerdict(
        envelope.sender, read.contributor, read.commit, read.gap_ppm / 1e6, read.length_permille / 1e3, float(number)
    )


def test_assigned_work_passes_with_every_auditor_and_makes_a_member_and_other_work_puts_its_peer_aside(
    world: World,
) -> None:
    _hold_judged(world)


def test_under_overlap_the_same_work_passes_and_fails(tmp_path: Path) -> None:
    setting = read_once()
    _hold_judged(contributed(tmp_path, replace(setting, num_over=int(MOST_LATE * setting.num_steps))))


def _hold_judged(world: World) -> None:
    """The last peer is a stranger; the others audit each other and it."""
    stranger, number = NUM_PEERS - 1, 0
    verdicts: list[KnownVerdict] = []
    lying: dict[str, list[KnownVerdict]] = {}
    for auditor in range(stranger):
        control_N = world.control(auditor)
        for contributor in (each for each in range(NUM_PEERS) if each != auditor):
            number += 1
            redone_N = world.redone(auditor, contributor)
            honest = world.finding(world.deltas[contributor], redone_N, control_N)
            verdicts.append(_verdict(auditor, contributor, honest, number))
            if contributor == stranger:
                for name, sent_N in lies(world, contributor, auditor).items():
                    found = world.finding(sent_N, redone_N, control_N)
                    lying.setdefault(name, []).append(_verdict(auditor, contributor, found, number))
    # the keepers' verdicts about each other come again, as in later rounds, until there are enough for a usual fit
    trusted: set[PeerId] = {signer.peer_id for signer in SIGNERS[:stranger]}
    about = [each for each in verdicts if each.contributor in trusted]
    usual = usual_fit([*about, *about], trusted)
    assert usual is not None
    assert all(passes(each, usual) for each in verdicts)
    own = [each for each in verdicts if each.contributor not in trusted]
    rounds = [replace(each, commit=CommitId(bytes([turn]) * 32)) for turn in range(4) for each in own]
    assert audited_work(rounds, usual).makes_member
    for name, found in lying.items():
        assert audited_work(found, usual).is_doubted, name
        assert sum(passes(each, usual) for each in found) <= 1, "a single auditor may err"
