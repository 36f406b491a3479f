"""What a peer says about itself: one frozen value that the status page, the metrics and the screen all read."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

FINAL_STATUS_FILE: Final = "final_status.json"
"""In the peer's state folder: the last status, written when the daemon leaves."""


class BulkTraffic(BaseModel):
    """Payload of bulk streams of one kind: the way they took ("direct", "libp2p"), channel, unit and codec, empty where unsaid."""

    model_config = ConfigDict(frozen=True)

    way: str
    channel: str
    unit: str
    codec: str
    bytes_up: int
    bytes_down: int


class ControlTraffic(BaseModel):
    """Payload of one channel of the control lane; what is said to the directory is of the channel "directory"."""

    model_config = ConfigDict(frozen=True)

    channel: str
    bytes_up: int
    bytes_down: int


class LastRound(BaseModel):
    """The latest committed round as this peer knows it; `weights` are shares that sum to 1, by peer id.

    `bytes_up` and `bytes_down` are payload of both lanes since the commit before, of it `control_bytes_up` and `control_bytes_down` of
    the control lane, `control` by channel, the rest `bulk`. `lost` is the share of the mean, by its squares, that the codec of results
    had no room for.
    """

    model_config = ConfigDict(frozen=True)

    index: int
    members: tuple[str, ...]
    weights: dict[str, float]
    coverage: float = 1.0
    bytes_up: int = 0
    bytes_down: int = 0
    control_bytes_up: int = 0
    control_bytes_down: int = 0
    control: tuple[ControlTraffic, ...] = ()
    bulk: tuple[BulkTraffic, ...] = ()
    lost: float = 0.0


class UnitPlace(BaseModel):
    """A unit beside the spine that is held here: how many rounds it has had, how many live peers hold it as far as is heard, with this
    one, its tokens ready here, what its next round waits for, and its last state root that is known here, as hex.
    """

    model_config = ConfigDict(frozen=True)

    unit: str
    index: int
    holders: int
    tokens_ready: int
    waiting: str
    state_root: str = ""


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """Where a peer of a pipeline run stands in its lanes. The fields that `PeerStatus` has, too, mean the same there.

    `paused` says why all lanes stand still, empty while they do not.
    """

    lane: int | None
    lane_reason: str
    move_reason: str = ""
    could_tokens_per_s: float = 0.0
    owed_tokens: int = 0
    paused: str = ""


class PeerStatus(BaseModel):
    """A peer at one moment. Hashes are hex, empty when there is none yet.

    Attributes:
        peer: peer id.
        name: its stable two-word name.
        state: "joining", "catching up", "training", "spare" (of a pipeline run: it serves no lane, so it trains nothing and takes the
            place of who is lost), "paused", "waiting", "leaving" or "finished".
        state_s: for how long so far, to a second or two; of a peer that waits, how long it has.
        reason: why, in one sentence.
        round_waiting: what the next round, or the open one, waits for; empty before there are rounds.
        restarted: where this process took up what an earlier one had on disk, and what of it was lost; empty for a newcomer.
        session: number of this process life, higher than those of all earlier ones.
        credential_left_s: until our credential ends, below 0 once it has; None before there is one.
        host_heard_ago_s: since the host was heard last; None before there is a membership.
        is_host_away: not heard for so long that voters are judged as of its last word.
        bans: how many bans of the host's are known here.
        ways_in: addresses of the host and of others that are dialled to get back in.
        caught_up: how the last rounds that were missed came here: "snapshot", "replay", or empty when none were.
        head: commit id of the unit's head.
        index: number of the head in its lineage, 0 at genesis.
        state_root: Merkle root of the outer state at `state_commit`.
        is_sound: whether the state is the one that the run attests; while it is made again this is false.
        state_commit: the commit that `state_root` belongs to.
        total_tokens: tokens committed by the run.
        target_total_tokens: at which the run ends, 0 while unknown.
        eta_s: seconds until the run is complete, at the pace of the latest rounds that came here; None before two came.
        round_tokens_ready: of `round_target_tokens`, at which the next round is opened: trained and not yet counted, here and at
            the peers that stand where we stand; 0 of 0 before there are rounds and after the last one.
        round_waited_s: since the last round came here; at `round_longest_s` the next one is opened with whatever is ready.
        tokens_ready: trained here and not yet credited.
        tokens_trained: trained here by this process, credited or not.
        loss: mean training loss of the latest steps, nats per byte.
        bytes_up: payload bytes sent by this process, both lanes.
        bytes_down: payload bytes received.
        control_bytes_up: the control lane's part of `bytes_up`.
        control_bytes_down: the control lane's part of `bytes_down`.
        control: both of these, by channel.
        bulk: the rest of `bytes_up` and `bytes_down`, by way, channel, unit and codec.
        host_bytes_up: what was said to the host, in reports mostly, and `host_bytes_down` what it answered: in no sum above.
        rounds_counted: committed rounds that count a contribution of this process.
        first_counted_unix_s: when this process first saw a certificate that counts a contribution of its own.
        suspected: members of the running exchange that are taken for dead or cut off at this moment, peer ids.
        worker_state: of the training process: "starting", "training", "paused", "held" or "restarting"; `worker_reason` says why.
        worker_restarts: how often the training process had to be brought back.
        download_bytes_here: of the state that is being downloaded, and `download_bytes_all`: 0 of 0 while there is no download;
            `download_donors` peers give it.
        disk_bytes: what the run's folder takes here, and `disk_bound_bytes` what states, updates and log may come to; without data.
        disk_free_bytes: what the disk of the state folder has left, of its `disk_all_bytes`; None where it cannot be told.
        memory_bytes: resident memory of all processes of this peer.
        gpu_memory_bytes: in use on the first NVIDIA card, None without one; `gpu_busy` (0 to 1), `gpu_celsius` and `gpu_watts`
            likewise, each None alone where the card does not tell it.
        cpu_celsius: temperature of the processor's hottest part, None where no driver measures it.
        started_unix_s: when this process started.
        version: of this program.
        is_outbound_only: it takes no connections.
        allowed_share: of full speed that its owner's controls allow now, 0 for no training; `allowed_reason` says what holds it back
            and until when, empty where nothing does.
        units: the other units that are held here.
        trouble: what its owner should see to or know of: a disk that refuses, or a state that is not the attested one; empty where
            nothing is wrong.
        writes_refused: what the disk refused to this process, and `generations_damaged` states on it that were found to be no good.
        lane: of a pipeline run, that is served here, None where none is; `lane_reason` says which and at which stage, or why none.
        move_reason: of a pipeline run, why its stage is the one that this peer holds, or when it goes over to another.
        could_tokens_per_s: what its stage could do here were it never to wait for others, 0 where it is not known.
        owed_tokens: of lanes' rounds that are over and did not count them here: the stage's next commit is to.
        apart: for how long the host has followed a lineage that is not here, in one sentence; empty while ours is the run's.
    """

    model_config = ConfigDict(frozen=True)

    peer: str
    name: str
    run: str = ""
    state: str = "joining"
    state_s: float = 0.0
    reason: str = ""
    round_waiting: str = ""
    restarted: str = ""
    session: int = 0
    credential_left_s: float | None = None
    host_heard_ago_s: float | None = None
    is_host_away: bool = False
    bans: int = 0
    ways_in: int = 0
    caught_up: str = ""
    unit: str = ""
    head: str = ""
    index: int = 0
    state_root: str = ""
    is_sound: bool = True
    state_commit: str = ""
    total_tokens: int = 0
    target_total_tokens: int = 0
    eta_s: float | None = None
    round_tokens_ready: int = 0
    round_target_tokens: int = 0
    round_waited_s: float = 0.0
    round_longest_s: float = 0.0
    tokens_per_s: float = 0.0
    tokens_ready: int = 0
    tokens_trained: int = 0
    loss: float | None = None
    bytes_up: int = 0
    bytes_down: int = 0
    control_bytes_up: int = 0
    control_bytes_down: int = 0
    control: tuple[ControlTraffic, ...] = ()
    bulk: tuple[BulkTraffic, ...] = ()
    host_bytes_up: int = 0
    host_bytes_down: int = 0
    rounds_counted: int = 0
    first_counted_unix_s: float | None = None
    suspected: tuple[str, ...] = ()
    worker_state: str = ""
    worker_reason: str = ""
    worker_restarts: int = 0
    download_bytes_here: int = 0
    download_bytes_all: int = 0
    download_donors: int = 0
    disk_bytes: int = 0
    disk_bound_bytes: int = 0
    disk_free_bytes: int | None = None
    disk_all_bytes: int | None = None
    memory_bytes: int = 0
    gpu_memory_bytes: int | None = None
    gpu_busy: float | None = None
    gpu_celsius: int | None = None
    gpu_watts: float | None = None
    cpu_celsius: float | None = None
    started_unix_s: float = 0.0
    version: str = ""
    is_outbound_only: bool = False
    allowed_share: float = 1.0
    allowed_reason: str = ""
    trouble: str = ""
    writes_refused: int = 0
    generations_damaged: int = 0
    apart: str = ""
    units: tuple[UnitPlace, ...] = ()
    lane: int | None = None
    lane_reason: str = ""
    move_reason: str = ""
    could_tokens_per_s: float = 0.0
    owed_tokens: int = 0
    last_round: LastRound | None = None

    @property
    def direct_share(self) -> float | None:
        """How much of the bulk went straight from peer to peer, 0 to 1; None before there is any."""
        total = sum(count.bytes_up + count.bytes_down for count in self.bulk)
        direct = sum(count.bytes_up + count.bytes_down for count in self.bulk if count.way == "direct")
        return direct / total if total else None

    @property
    def unit_bytes(self) -> dict[str, tuple[int, int]]:
        """Bulk payload of each unit, up and down, sorted by name; nothing in a run of one unit, whose bulk is all its own."""
        if not self.units:
            return {}
        names = sorted({count.unit for count in self.bulk if count.unit})
        of = {name: [count for count in self.bulk if count.unit == name] for name in names}
        return {name: (sum(c.bytes_up for c in own), sum(c.bytes_down for c in own)) for name, own in of.items()}

    @property
    def round_share(self) -> float:
        """How much of the way to the next round is behind us, 0 to 1: by tokens or, where anything is ready, by time."""
        if not self.round_target_tokens or not self.round_tokens_ready:
            return 0.0
        by_time = self.round_waited_s / self.round_longest_s if self.round_longest_s else 0.0
        return min(1.0, max(self.round_tokens_ready / self.round_target_tokens, by_time))


def write_final_status(state_dir: Path, status: PeerStatus) -> None:
    """Leave the last status behind, whole or not at all. For readers after the fact; nothing depends on it."""
    path = state_dir / FINAL_STATUS_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_text(status.model_dump_json() + "\n", encoding="utf8")
    os.replace(temporary, path)


def last_status(state_dir: Path) -> PeerStatus | None:
    """The status that the last daemon left behind; None where there is none that can be read."""
    try:
        return PeerStatus.model_validate_json((state_dir / FINAL_STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
