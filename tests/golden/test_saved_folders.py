"""State folders on disk, as a release wrote them: today's code opens them and finds the same run in them.

The daemons of commit bc6521f wrote `saved_folders/`: `potluck host run.toml` and three `potluck join` on one machine, all ended by
Ctrl-C. The model has 560 values, and its contributions have error feedback. One peer was banned before the run began. Round 1 was
committed without a quorum, rounds 2 to 5 by two peers, and round 6 by the peer whose folder this is, after the other one had left.
That peer ended before it wrote a state of round 6, so its state follows from round 5 and the results on the disk.

Logs are left out, and so is the peer's copy of the text, which the host has as well. The keys were made for this and are in no use.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch

from averaging.data.shards import ShardCache
from averaging.network.seams.clocks import SystemClock
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.state.residual_files import ResidualFiles
from averaging.storage.file_storage import FileStorage
from coordinator.checkpoints.checkpoints import verify_checkpoint
from coordinator.ledger.ledger import LEDGER_FILE, START_RECORD, Ledger, open_ledger
from coordinator.ledger.ledger_writer import LedgerWriter
from coordinator.progress.chain_log import ChainLog
from coordinator.progress.run_core import Phase
from coordinator.progress.tracker import RunTracker, TrackedRun
from coordinator.run.run_files import CHECKPOINT_FOLDER, DATA_FOLDER, IDENTITY_FILE, RunFiles, reopen_run, start_units
from coordinator.status.local_view import runs as hosted_runs
from peer.membership.credential_cache import CredentialCache
from peer.membership.incarnation import take_incarnation
from peer.membership.joining import Membership, invite_of_named_run, open_start_record, saved_membership
from peer.membership.revocations import Revocations
from peer.membership.saved_membership import host_heard_s, last_run_folder, take_session
from peer.session.build import open_chains
from peer.status.local_view import runs as joined_runs
from peer.status.status import last_status
from protocol.errors import RemoteProtocolError
from protocol.identity.envelope import NEVER_MS, seal, seal_of
from protocol.identity.identity import Identity
from protocol.identity.identity_file import read_identity
from protocol.identity.names import peer_name
from protocol.identity.revocation import Revocation, open_revocation
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId, PeerId, Root
from protocol.rounds.lineage.chain import attested_roots, verify_certificate
from protocol.rounds.lineage.chain_link import ChainLink, genesis_link
from protocol.rounds.lineage.record_rules import ROUND_DOMAIN, sum_in
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.claim import encode_claim, encode_sum
from protocol.rounds.messages.messages import Ack, Certificate, Member, Proposal, ResultHeader, SliceSpec
from protocol.rounds.messages.record import Ballot, CommitRecord, Included, OuterStep
from protocol.rounds.messages.requests import ContributionHeader
from protocol.rounds.messages.wire import commit_id, encode_message, encode_record
from protocol.rounds.schedule.proposal import Voters, make_record
from protocol.rounds.voting import ACK_VERSION
from protocol.run.manifest import load_run_config
from protocol.tensors.model_config import WHOLE_MODEL
from tests.coordinator.checkpoints.loaded import load_checkpoint

SAVED = Path(__file__).with_name("saved_folders")
RUN_ID = "725b2239eb35a4ce4dbad76f5f481fe6e3228339d33637c29ba3e7f24538dd79"
PEER = PeerId("12D3KooWQQzJFAUyCtNdNX1t5pgijuARd372VWxk9aGqHebUeQ1n")
BANNED_NAME = "still-taco"
HEAD = CommitId(bytes.fromhex("5b1411ed015370ae9b8a183735c847317c83e33a77da10b3e8f2f275404fd906"))
HEAD_ROOT = "94823872ab50263a5c69a7166ec072c07c209a63d2319c02e7feaa786667f5f2"
"""Of the state after round 6, as the peer's last status gives it."""

NUM_ROUNDS = 6
TOKENS = 362_368
CHECKPOINT = "00000005-4ff18ce2b3c1135e"
CHECKPOINT_ROOT = "003c416d95582de8627a86f5c4df43a3a5ee603003acddec3e9bf6bb0e75d7fa"
UNIX_S = 1_795_935_600.0
"""Minutes after the folders were written; credentials last for 30 days."""

LATER_S = UNIX_S + 40 * 86_400


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """A copy. Opening a folder writes to it, and keys that others could read are refused."""
    copy = tmp_path / "saved"
    shutil.copytree(SAVED, copy)
    for path in copy.rglob("*"):
        path.chmod(0o700 if path.is_dir() else 0o600)
    return copy


@dataclass(frozen=True)
class SavedPeer:
    """The peer's folder, and what it takes to open the rounds in it."""

    state_dir: Path
    identity: Identity
    membership: Membership

    @property
    def folder(self) -> Path:
        """Of the run."""
        return self.state_dir / "runs" / RUN_ID[:16]

    @property
    def start(self) -> bytes:
        return open_start_record(self.membership.saved.start_record, self.membership.manifest)

    async def open_chain(self) -> tuple[UnitChain, list[str]]:
        """The lineage of the run's one unit, and the sentences that its owner is told."""
        told: list[str] = []
        verifier, me = Ed25519Verifier(), self.identity.peer_id
        (chain,) = await open_chains(self.folder, self.membership, self.start, verifier, me, told.append)
        return chain, told


@pytest.fixture
def peer(saved: Path) -> SavedPeer:
    state_dir = saved / "peer"
    identity, folder = read_identity(state_dir / "identity"), last_run_folder(state_dir)
    assert folder is not None
    run_id = invite_of_named_run(state_dir).run_id
    assert run_id.hex() == RUN_ID
    membership = saved_membership(folder, identity, run_id, UNIX_S)
    assert membership is not None, "the credential is of this identity, of this run, and holds"
    return SavedPeer(state_dir, identity, membership)


@pytest.fixture
def host_run(saved: Path) -> RunFiles:
    """The host's folder, opened again with the file that it was opened with."""
    return reopen_run(saved / "run.toml", load_run_config(saved / "run.toml"), saved / "host")


def _the_ban(ledger: Ledger, run: RunFiles) -> Revocation:
    (entry,) = ledger.revocations()
    host_key = bytes.fromhex(run.manifest.host_public_key)
    return open_revocation(entry, verifier=Ed25519Verifier(), run_id=run.manifest.run_id, host_public_key=host_key)


def test_a_saved_peer_is_the_same_member_of_the_same_run(peer: SavedPeer) -> None:
    assert peer.identity.peer_id == PEER
    assert peer.membership.manifest.config.run.name == "old-folders"
    assert not peer.membership.has_ended
    assert len(peer.membership.saved.ways_in) == 2, "the host and the other peer"
    # while the host is away, an expired credential counts as of the host's last answer
    later = saved_membership(peer.folder, peer.identity, peer.membership.run_id, LATER_S)
    assert later is not None
    assert later.has_ended


def test_a_saved_peer_keeps_its_incarnation_and_counts_its_session_up(peer: SavedPeer) -> None:
    number, session = int((peer.folder / "incarnation").read_text()), int((peer.state_dir / "session").read_text())
    assert take_incarnation(peer.folder) == number, "another number would cost it its vote"
    assert take_session(peer.state_dir, 0.0) > session
    assert 0 < host_heard_s(peer.folder) < UNIX_S


async def test_every_certificate_of_a_saved_lineage_verifies_up_to_its_head(peer: SavedPeer) -> None:
    chain, told = await peer.open_chain()
    assert told == ["restarted at round 6; nothing was lost but steps that no round had counted"]
    assert (chain.head.commit, chain.head.index, len(chain.line.certificates)) == (HEAD, NUM_ROUNDS, NUM_ROUNDS)
    verifier, link = Ed25519Verifier(), genesis_link(peer.start, chain.tools.unit)
    for certificate in chain.line.certificates:
        link = verify_certificate(certificate, link, verifier=verifier, run_id=peer.membership.run_id)
    assert link.commit == HEAD
    assert [link.is_lone for link in chain.links[1:]] == [True, False, False, False, False, False]
    assert chain.data_position() > 0, "no step is trained twice"


def _signed_record(peer: SavedPeer, base: ChainLink) -> CommitRecord:
    """The next commit of the saved peer with today's code. It is the only voter that is left."""
    run_id, me, root = peer.membership.run_id, Member(PEER, base.disks[PEER], 99), Root(b"r" * 32)

    def sealed(payload: bytes) -> bytes:
        return seal_of(seal(peer.identity, ROUND_DOMAIN, run_id, 1, NEVER_MS, payload))

    part, ballot = SliceSpec(0, 1, PEER), Ballot(0, PEER)
    proposal = Proposal(base.unit, base.commit, base.index + 1, ballot, (me,), (part,), "int8", 4096, 5.0)
    claim = ContributionHeader(base.unit, base.commit, me, 64, "int8", root, base.commit, root)
    seal_bytes = sealed(encode_claim(claim))
    entry = Included(PEER, me.incarnation, root, 64, base.commit, root, session=99, seal=seal_bytes)
    header = ResultHeader(base.unit, base.commit, ballot, 0, 1, PEER, (entry,), (), 64, root)
    header = replace(header, sum_seal=sealed(encode_sum(sum_in(header, proposal))))
    voters = Voters(frozenset((PEER,)), frozenset())
    return make_record(base, proposal, ballot, (header,), voters, OuterStep("mean", 1.0, 0.0), base.target_tokens)


def _certified(peer: SavedPeer, record: CommitRecord) -> Certificate:
    raw = encode_record(record)
    ack = Ack(record.unit, record.parent, record.ballot, commit_id(record.parent, raw), version=ACK_VERSION)
    signed = seal(peer.identity, ROUND_DOMAIN, peer.membership.run_id, 2, NEVER_MS, encode_message(ack))
    return Certificate(raw, (signed,))


async def test_a_saved_run_goes_on_with_signed_records_and_after_one_says_what_to_do_about_a_record_without(
    peer: SavedPeer,
) -> None:
    """The records of the saved run have no signatures of those whom they count."""
    chain, _ = await peer.open_chain()
    verify = partial(verify_certificate, verifier=Ed25519Verifier(), run_id=peer.membership.run_id)
    old, new = chain.head, _signed_record(peer, chain.head)
    assert (old.rules, new.rules) == (0, NEW_RUNS)
    signed = verify(_certified(peer, new), old)
    assert (signed.index, signed.rules) == (NUM_ROUNDS + 1, NEW_RUNS)
    unsigned = tuple(replace(entry, seal=b"", attests=0) for entry in new.contributors)
    without = replace(
        new,
        parent=signed.commit,
        index=signed.index + 1,
        total_tokens=signed.total_tokens + 64,
        rules=0,
        contributors=unsigned,
        attestations=(),
    )
    with pytest.raises(RemoteProtocolError, match=r"as older releases make it.*ask its leader's owner to install it"):
        verify(_certified(peer, without), signed)


async def test_every_saved_state_has_the_root_that_the_run_committed(peer: SavedPeer) -> None:
    chain, _ = await peer.open_chain()
    generations, attested = chain.tools.generations, attested_roots(chain.links)
    assert (generations.last_load.index, generations.last_load.problems) == (NUM_ROUNDS - 1, ())
    loaded = [await generations.load(ref) for ref in await generations.list()]
    assert [state.index for state, _ in loaded] == [2, 4, 5]
    assert [root for _, root in loaded] == [attested[state.head] for state, _ in loaded]
    assert loaded[-1][1].hex() == CHECKPOINT_ROOT
    assert (chain.state.head, chain.state.total_tokens, chain.root.hex()) == (HEAD, TOKENS, HEAD_ROOT)


async def test_saved_results_lead_from_the_start_to_the_same_state(peer: SavedPeer) -> None:
    shutil.rmtree(peer.folder / WHOLE_MODEL / "generations")
    chain, _ = await peer.open_chain()
    assert chain.tools.generations.last_load.index == 0
    assert (chain.head.commit, chain.root.hex()) == (HEAD, HEAD_ROOT)
    assert chain.is_sound


async def test_saved_error_feedback_is_read_without_damage(peer: SavedPeer) -> None:
    chain, _ = await peer.open_chain()
    found = await ResidualFiles(
        FileStorage(peer.folder / chain.tools.unit, ThreadOffload()), chain.tools.grid, ThreadOffload()
    ).load()
    assert found.problems == ()
    assert set(found.standing) == {HEAD}
    assert chain.tools.feedback is not None
    residual = chain.tools.feedback.state.residual
    assert torch.equal(residual.values_N, found.residual.values_N)
    assert torch.count_nonzero(residual.values_N) > 0


async def test_a_saved_ban_still_counts(peer: SavedPeer, host_run: RunFiles) -> None:
    with open_ledger(host_run.folder / LEDGER_FILE) as ledger:
        banned = _the_ban(ledger, host_run).peer
    saved, verifier, manifest = peer.membership.saved, Ed25519Verifier(), peer.membership.manifest
    roster = CredentialCache(
        manifest.run_id,
        saved.ca_certificate_der,
        PeerId(saved.coordinator_peer_id),
        saved.credential,
        verifier,
        SystemClock(),
    )
    host_key = bytes.fromhex(manifest.host_public_key)
    bans = Revocations(peer.folder, manifest.run_id, host_key, verifier, roster, PEER, ThreadOffload())
    await bans.restore()
    assert peer_name(banned) == BANNED_NAME
    assert roster.is_banned(banned)
    assert roster.num_banned == 1


def test_a_saved_last_status_is_shown(peer: SavedPeer) -> None:
    status = last_status(peer.state_dir)
    assert status is not None
    assert (status.index, status.head, status.state_root) == (NUM_ROUNDS, HEAD.hex(), HEAD_ROOT)


def test_a_saved_host_folder_is_the_run_of_its_file(host_run: RunFiles) -> None:
    assert host_run.manifest.run_id.hex() == RUN_ID
    host = read_identity(host_run.folder / IDENTITY_FILE)
    assert host.public_key.hex() == host_run.manifest.host_public_key
    cache = ShardCache(host_run.folder / DATA_FOLDER)
    assert len(host_run.dataset.files) == 2
    assert all(cache.has(entry) for entry in host_run.dataset.files)


async def test_a_saved_ledger_goes_on_at_its_last_round(host_run: RunFiles) -> None:
    host, clock, offload = read_identity(host_run.folder / IDENTITY_FILE), SystemClock(), ThreadOffload()
    with open_ledger(host_run.folder / LEDGER_FILE) as ledger:
        manifest, verifier = host_run.manifest, Ed25519Verifier()
        units = start_units(manifest, ledger.get(START_RECORD))
        folder = host_run.folder / CHECKPOINT_FOLDER
        run = TrackedRun(manifest, manifest.run_id, units, host, verifier, folder)
        tracker = RunTracker(run, LedgerWriter(ledger, offload), clock, offload)
        await tracker.restore()
        picture = tracker.picture()
        assert (picture.state.phase, picture.state.index, picture.state.total_tokens) == (
            Phase.TRAINING,
            NUM_ROUNDS,
            TOKENS,
        )
        assert (picture.num_bans, [row.path for row in picture.checkpoints]) == (1, [CHECKPOINT])
        assert {point.kind for point in picture.loss_points} == {"heldout", "train"}
        admitted = set(ledger.peers())
        banned = _the_ban(ledger, host_run)
    assert (len(admitted), banned.reason) == (3, "a test of bans")
    assert {PEER, banned.peer} <= admitted


async def test_every_certificate_of_a_saved_ledger_verifies(host_run: RunFiles) -> None:
    with open_ledger(host_run.folder / LEDGER_FILE) as ledger:
        (unit,) = host_run.manifest.unit_schemas()
        rows = ledger.commits(unit)
        sealed = ledger.get(START_RECORD)
    assert sealed is not None
    run_id = host_run.manifest.run_id
    log = ChainLog(genesis_link(open_start_record(sealed, host_run.manifest), unit), run_id, Ed25519Verifier())
    accepted = log.verify([row.certificate for row in rows], HEAD, NUM_ROUNDS)
    log.add(accepted.new)
    assert [row.index for row in rows] == [item.link.index for item in accepted.new] == list(range(1, NUM_ROUNDS + 1))
    assert log.head.commit == HEAD


async def test_a_saved_checkpoint_verifies_and_holds_the_peers_state_of_that_round(
    peer: SavedPeer, host_run: RunFiles
) -> None:
    path = host_run.folder / CHECKPOINT_FOLDER / CHECKPOINT
    verified = verify_checkpoint(path)
    assert (verified.index, verified.state_root) == (NUM_ROUNDS - 1, CHECKPOINT_ROOT)
    _, state = load_checkpoint(path)
    chain, _ = await peer.open_chain()
    newest = await chain.tools.generations.load_newest()
    assert newest is not None
    assert torch.equal(state.anchor_N, newest[0].anchor_N)
    assert torch.equal(state.momentum_N, newest[0].momentum_N)


def test_saved_runs_are_listed(saved: Path) -> None:
    (hosted,) = hosted_runs(saved / "host")
    (joined,) = joined_runs(saved / "peer")
    for row in (hosted, joined):
        assert (row["name"], row["run_id"], row["note"]) == ("old-folders", RUN_ID, "")
    assert (hosted["phase"], hosted["index"], hosted["total_tokens"]) == ("training", NUM_ROUNDS, TOKENS)
    assert joined["index"] == NUM_ROUNDS, "the newest commit, though the newest state is of the one before"
