"""Peers of a pipeline run as their daemons have them from the state on (peer/pipeline/lane_training.py): real rounds, lanes, logs
on disk, credentials and records, over the network in memory; training processes are threads, and the host answers from here.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import trio

from averaging.data.shards import DatasetManifest, ShardCache
from averaging.network.memory.memory_network import MemorySwarm
from averaging.network.seams.offload import ThreadOffload
from averaging.rounds.lineage.unit_chain import UnitChain
from averaging.rounds.traffic.directory_keys import keys_of
from averaging.rounds.traffic.discovery import DirectoryPoller, announce
from averaging.state.start_state import start_root
from peer.holdings.held_stage import OwnStage
from peer.holdings.verified_holders_core import everybody
from peer.membership.coordinator_client import CoordinatorClient
from peer.membership.credential_cache import CredentialCache
from peer.membership.incarnation import take_incarnation
from peer.membership.joining import Membership, open_start_record
from peer.membership.process_takeover import DirectoryClaim
from peer.pipeline.lane_training import LaneControl, train_in_lanes
from peer.session.await_state import FirstState
from peer.session.build import open_chains
from peer.session.leaving import Departure
from peer.session.session import JoinedSession, PeerSession, SequenceNumbers
from peer.settings.config import PeerConfig
from peer.status.reporting import Reporter
from peer.status.status_board import StatusBoard
from peer.status.status_of import Sources
from protocol.host.calls import START_DOMAIN
from protocol.host.reports import PeerReport, ReportReply
from protocol.identity.credential import CertificateAuthority, make_ca
from protocol.identity.envelope import NEVER_MS, seal
from protocol.identity.identity import Identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import CommitId
from protocol.rounds.lineage.rule_numbers import NEW_RUNS
from protocol.rounds.messages.start import StartRecord, StartUnit
from protocol.rounds.messages.wire import decode_body, encode_body
from protocol.tensors.tensor_schema import ChunkGrid
from tests.peer.training_world import training_plan
from tests.protocol.run.made_manifest import manifest_of
from tests.protocol.run.test_pipeline_section import pipeline_run
from tests.virtual import VirtualClock

HOST = Identity(b"host".ljust(32, b"h"))
MODEL = {"dim": 16, "num_layers": 2, "num_heads": 2, "num_kv_heads": 1, "ffn_dim": 32, "context_tokens": 16}
BATCH_TOKENS = 64
ROUND_TOKENS = 2 * BATCH_TOKENS


@dataclass
class Host:
    """The host that gets reports, and its answers."""

    reports: list[PeerReport] = field(default_factory=list)

    async def report(self, report: PeerReport, credential: bytes = b"") -> ReportReply:
        """As CoordinatorClient."""
        await trio.lowlevel.checkpoint()
        self.reports.append(report)
        return ReportReply("training", CommitId(bytes(32)), 0, want_from_index=1, is_final_checkpoint_written=True)


@dataclass
class Controls:
    """Allows everything, and has what is ordered."""

    ordered: list[LaneControl] = field(default_factory=list)

    async def order(self, control: LaneControl) -> None:
        """As peer/owner/controls.py."""
        self.ordered.append(control)
        await trio.sleep_forever()


@dataclass
class Trainee:
    """One peer.

    Attributes:
        over: set when it has left the run.
    """

    stage: int
    joined: JoinedSession
    chain: UnitChain
    controls: Controls
    over: trio.Event = field(default_factory=trio.Event)

    @property
    def board(self) -> StatusBoard:
        """Its own status."""
        return self.joined.life.board


class LaneRun:
    """A run of two stages; `open` makes a peer."""

    def __init__(self, folder: Path, nursery: trio.Nursery, total_tokens: int) -> None:
        self.host = Host()
        self.peers: dict[int, Trainee] = {}
        self._folder, self._nursery, self._clock = folder, nursery, VirtualClock()
        self._num_opened = 0
        self._swarm = MemorySwarm(nursery, random.Random(1))
        self._ca: CertificateAuthority = make_ca(b"c" * 32, now_unix_s=self._clock.unix_s())
        training_plan(folder)
        self._manifest = manifest_of(
            pipeline_run(
                run={"total_tokens": total_tokens, "min_members": 2},
                model=MODEL,
                inner={"batch_tokens": BATCH_TOKENS, "warmup_tokens": 0},
                round={"target_tokens": ROUND_TOKENS, "longest_interval_s": 60.0},
                pipeline={
                    "stages": None,
                    "layers": "1, 1",
                    "inner_steps": 2,
                    "snapshot_every_steps": 1,
                    "micro_batches": 2,
                },
            ),
            host_public_key=HOST.public_key.hex(),
        )
        self._identities = [Identity(bytes([number]) * 32) for number in range(2)]
        self._start = self._sealed_start()

    def _sealed_start(self) -> bytes:
        manifest = self._manifest
        units = []
        for stage, schema in enumerate(manifest.units_held([0, 1]).schemas):
            grid = ChunkGrid(schema.num_elements, manifest.config.chunk_elements)
            root = start_root(schema, grid, manifest.config.run.seed, (), manifest.model_schema)
            units.append(StartUnit(schema.unit, schema.fingerprint(), root, (self._identities[stage].peer_id,)))
        roster = tuple(sorted(identity.peer_id for identity in self._identities))
        start = encode_body(StartRecord(manifest.run_id, tuple(units), roster, ROUND_TOKENS, 1, rules=NEW_RUNS))
        return seal(HOST, START_DOMAIN, manifest.run_id, 1, NEVER_MS, start)

    async def open(self, stage: int) -> Trainee:
        """The founder of a stage, at its first start or with what it has on its disk."""
        joined, controls = self._joined(stage)
        life, me, reported = joined.life, joined.life.identity.peer_id, joined.life.board.has_restarted
        payload = open_start_record(self._start, self._manifest)
        joined.roster.hold(await joined.experts.settle(decode_body(StartRecord, payload), me, everybody({})))
        (chain,) = await open_chains(
            life.folder, joined.membership, payload, joined.verifier, me, reported, (), (stage,)
        )
        one = self.peers[stage] = Trainee(stage, joined, chain, controls)
        self._nursery.start_soon(self._live, one)
        return one

    async def _live(self, one: Trainee) -> None:
        joined, life = one.joined, one.joined.life
        votes = await one.chain.votes_on_head()
        first = FirstState(one.chain, votes, lambda: 0, 0, life.board)
        cache = cast(ShardCache, SimpleNamespace(path=lambda sha256: self._folder / "data" / sha256))
        own = DirectoryClaim(
            life.identity, joined.membership.run_id, life.session, life.sequence.take, joined.verifier, joined.roster
        )
        async with trio.open_nursery() as nursery:
            make = partial(own.make, joined.poller)
            nursery.start_soon(announce, joined.poller, life.clock, make)
            await train_in_lanes(joined, cache, one.chain, votes, first)
            nursery.cancel_scope.cancel()
        one.over.set()

    def _joined(self, stage: int) -> tuple[JoinedSession, Controls]:
        identity, run_id = self._identities[stage], self._manifest.run_id
        config = PeerConfig(state_dir=self._folder / f"peer{stage}", device="cpu", num_threads=1)
        folder = config.state_dir / "run"
        folder.mkdir(parents=True, exist_ok=True)
        self._num_opened += 1
        session = self._num_opened
        sources, controls = Sources(StatusBoard(identity.peer_id, self._clock, 0.0)), Controls()
        invite = SimpleNamespace(run_id=run_id, ca_certificate_der=self._ca.certificate_der)
        life = PeerSession(
            config, cast("Any", invite), cast("Any", SimpleNamespace(identity=identity)), folder,
            take_incarnation(folder), session, SequenceNumbers(session), cast("Any", self._clock), sources, None,
            cast("Any", controls), Departure(),
        )  # fmt: skip
        certificate, key = self._ca.issue_own(identity.peer_id, run_id, now_unix_s=self._clock.unix_s(), days=1)
        verifier = Ed25519Verifier()
        roster = CredentialCache(
            run_id, self._ca.certificate_der, HOST.peer_id, certificate, verifier, self._clock, own_tls_key_pem=key
        )
        network = self._swarm.start(identity.peer_id)
        roster.serve(network)
        client = cast(CoordinatorClient, self.host)
        reporter = Reporter(client, sources, roster.host_was_heard, lambda: roster.own_credential)
        reporter.start_record = self._start
        manifest = self._manifest
        dataset = DatasetManifest.model_validate_json((self._folder / "data" / "dataset.json").read_bytes())
        membership = SimpleNamespace(manifest=manifest, run_id=run_id, dataset=dataset, coordinator=HOST.peer_id)
        stages = manifest.config.stages
        assert stages is not None
        experts = OwnStage(config, manifest.config, stages, folder, ThreadOffload())
        poller = DirectoryPoller(network, keys_of(manifest))
        joined = JoinedSession(
            life, cast(Membership, membership), client, network, roster, reporter, False, experts, poller
        )
        return joined, controls
