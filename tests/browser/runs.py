"""A run as the status page shows it: four peers, one silent, three experts, one frozen; a hundred rounds, a lone one, one left out."""

from __future__ import annotations

import math
import random
import time
from dataclasses import replace
from pathlib import Path

from coordinator.ledger.ledger import CheckpointRow, LossPoint
from coordinator.presence.presence import PeerEntry
from coordinator.progress.heldout_core import expert_kind
from coordinator.progress.run_core import Phase, RunState
from coordinator.progress.run_events import EventBook
from coordinator.progress.run_view import RunPicture, TimedRound, Yardsticks
from coordinator.progress.unit_holders import UnitHolders
from coordinator.status.metrics.moment import Counts, Moment
from peer.status.status import LastRound, PeerStatus
from protocol.host.reports import PeerReport
from protocol.identity.identity import Identity
from protocol.ids import CommitId, Root, UnitName
from protocol.rounds.lineage.round_row import RoundRow
from protocol.run.page_section import PageSection
from protocol.tensors.expert_schema import expert_unit

NUM_ROUNDS = 100
TOKENS = 400_000
NUM_EXPERTS = 3
NOW_S = 10_000.0
MARKUP = "<img src=x onerror=alert(1)>"


AWAY_ROUNDS = 11
ROUND_S = 180
PAGE = PageSection(
    description=f"A model of Python's own library {MARKUP}\nfor everybody",
    contact="host@example.org",
    join="ask for an invite at https://example.org/chat?a=b, or by mail",
)


def after_outage(folder: Path, now_unix_s: int) -> Moment:
    """The run with rounds of 25,000 tokens a second, after the host was away: its last 11 rounds came at once."""
    seen = moment(folder, now_unix_s, tokens=25_000 * ROUND_S)
    kept, missed = seen.picture.rounds[:-AWAY_ROUNDS], seen.picture.rounds[-AWAY_ROUNDS:]
    came = tuple(replace(timed, seen_unix_s=now_unix_s - 25 - (place < 4)) for place, timed in enumerate(missed))
    restarted = f"restarted at round {len(kept)}; nothing was lost"
    picture = replace(seen.picture, rounds=(*kept, *came), target_tokens=600_000_000, restarted=restarted)
    return replace(seen, picture=picture)


def moment(folder: Path, now_unix_s: int, num_rounds: int = NUM_ROUNDS, tokens: int = TOKENS) -> Moment:
    """The run after so many rounds of so many tokens."""
    chance = random.Random(7)
    peers = [Identity(bytes([number]) * 32).peer_id for number in range(1, 5)]
    speeds = (900.0, 620.0, 310.0, 0.0)
    rounds, points, total = [], [], 0
    for index in range(1, num_rounds + 1):
        here = [p for n, p in enumerate(peers) if n < 3 or index < 60]
        omitted = ((here.pop(), f"its delta came too late {MARKUP}"),) if index % 17 == 0 else ()
        weights = [speeds[peers.index(p)] * chance.uniform(0.9, 1.1) + 90 for p in here]
        shares = tuple(w / sum(weights) for w in weights)
        total += tokens
        commit = CommitId(index.to_bytes(4, "big") * 8)
        own = tuple(int(tokens * share) for share in shares)
        row = RoundRow(
            index, commit, tuple(here), shares, 0.93 if omitted else 1.0, omitted, is_lone=index == 41, tokens=own
        )
        rounds.append(TimedRound(row, total, now_unix_s - (num_rounds - index) * ROUND_S - 25))
        nats = math.log(2) * (1.55 + 6.2 * math.exp(-index / 14)) + chance.uniform(-0.01, 0.01)
        points.append(LossPoint("heldout", index, total, nats, peers[0]))
        for expert in range(NUM_EXPERTS):
            points.append(LossPoint(expert_kind(expert), index, total, nats - 0.3 + 0.2 * expert, peers[expert]))
        if index % 5 == 0 and index < num_rounds:  # the newest round has none of it yet
            points.append(LossPoint("prose", index, total, nats + 0.6, peers[0]))
        points.append(LossPoint("train", index, total, nats - 0.04 + chance.uniform(-0.05, 0.05), peers[1]))
    states = ("training", "training", "paused", "training")
    reasons = ("training", "waits for the round that falls due in 40 s", "its owner uses the machine", "training")
    entries = {
        peer: PeerEntry(
            PeerReport(
                state,
                reason,
                UnitName("fragment-0"),
                index=num_rounds,
                tokens_per_s=speed,
                tokens_ready=21_000,
                loss_nats=1.17,
                bytes_up=812_000_000,
                bytes_down=640_000_000,
                state_root=Root(b"r" * 32),
                version="0.1.0",
                is_outbound_only=number == 2,
            ),
            NOW_S - (400.0 if number == 3 else 2.0),
            NOW_S - 900.0 * (number + 1),
        )
        for number, (peer, state, reason, speed) in enumerate(zip(peers, states, reasons, speeds, strict=True))
    }
    head = rounds[-1].row.commit if rounds else CommitId(b"g" * 32)
    written = [timed for timed in rounds if timed.row.index % 25 == 0]
    picture = RunPicture(
        run_name=f"python-small {MARKUP}",
        run_id_hex="ab" * 32,
        reason="everybody trains; the next round falls due in 40 s",
        state=RunState(phase=Phase.TRAINING, head=head, index=num_rounds, total_tokens=total),
        target_tokens=60_000_000,
        peers=entries,
        rounds=tuple(rounds),
        loss_points=tuple(points),
        checkpoints=tuple(
            CheckpointRow(
                timed.row.commit,
                UnitName("fragment-0"),
                timed.row.index,
                timed.total_tokens,
                Root(b"r" * 32),
                f"{timed.row.index:08d}-cc",
                timed.seen_unix_s,
            )
            for timed in written
        ),
        checkpoint_folder=folder,
        yardsticks=Yardsticks(1.9, 3.5 * math.log(2)),
        num_forks=0,
        units=tuple(
            UnitHolders(expert_unit(expert), tuple(peers[: 2 - expert]), num_rounds, expert == 2, num_rounds - 2)
            for expert in range(NUM_EXPERTS)
        ),
    )
    return Moment(picture, Counts(), NOW_S)


def events(folder: Path, now_unix_s: int) -> EventBook:
    """The events of its last rounds."""
    book = EventBook()
    for back in range(40, -1, -1):
        seen = moment(folder, now_unix_s, NUM_ROUNDS - back)
        book.note(seen.picture, NOW_S, now_unix_s - back * ROUND_S)
    return book


def volunteer() -> PeerStatus:
    """The status that a volunteer's own peer shows while the machine is in use."""
    me = Identity(bytes([1]) * 32).peer_id
    return PeerStatus(
        peer=me,
        name="rosy-relish",
        run=f"python-small {MARKUP}",
        state="paused",
        state_s=372.0,
        reason=f"the owner uses the machine {MARKUP}",
        allowed_share=0.0,
        allowed_reason=f"the owner uses the machine {MARKUP}",
        round_waiting="round 101 falls due in 40 s",
        index=100,
        total_tokens=100 * TOKENS,
        target_total_tokens=60_000_000,
        tokens_per_s=900.0 + 60 * math.sin(time.time()),
        eta_s=41_000.0,
        round_tokens_ready=61_000,
        round_target_tokens=TOKENS,
        round_waited_s=21.0,
        round_longest_s=60.0,
        tokens_ready=21_000,
        tokens_trained=18_390_000,
        rounds_counted=97,
        loss=1.17,
        bytes_up=812_000_000,
        bytes_down=640_000_000,
        worker_state="paused",
        worker_reason="the owner uses the machine",
        credential_left_s=500_000.0,
        host_heard_ago_s=3.0,
        memory_bytes=1_900_000_000,
        gpu_busy=0.93,
        gpu_celsius=71,
        gpu_watts=243.7,
        cpu_celsius=63.5,
        gpu_memory_bytes=9_100_000_000,
        disk_bytes=412_000_000,
        disk_bound_bytes=900_000_000,
        started_unix_s=time.time() - 70_000,
        version="0.1.0",
        last_round=LastRound(index=100, members=(me,), weights={me: 0.46}),
    )
