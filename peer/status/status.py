"""A peer's status: one frozen value that the status page, the metrics and the screen all read."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pydantic import BaseModel, ConfigDict

from averaging.trio_errors import first_of_ours
from peer.cards.card_status import CardStatus

FINAL_STATUS_FILE: Final = "final_status.json"
"""In the peer's state folder: the last status, written when the daemon leaves."""


class BulkTraffic(BaseModel):
    """Payload of bulk streams of one kind: way ("direct", "libp2p"), channel, unit and codec. Unknown labels are empty."""

    model_config = ConfigDict(frozen=True)

    way: str
    channel: str
    unit: str
    codec: str
    bytes_up: int
    bytes_down: int


class ControlTraffic(BaseModel):
    """Payload of one channel of the control lane. Messages to the directory are on channel "directory"."""

    model_config = ConfigDict(frozen=True)

    channel: str
    bytes_up: int
    bytes_down: int


class LastRound(BaseModel):
    """The latest committed round as this peer knows it. `weights` are shares by peer id that sum to 1.

    `bytes_up` and `bytes_down` are payload of both lanes since the previous commit. `control_bytes_up` and `control_bytes_down` are
    the control lane's part, listed in `control` by channel; the rest is `bulk`. `lost` is the share of the mean's squared norm that
    the codec of results dropped. `left_out` is the share of this peer's work that disagreed with most others' and does not count.
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
    left_out: float = 0.0


class UnitPlace(BaseModel):
    """A unit other than the spine that this peer holds. Gives its round index, its number of known live holders including this
    peer, tokens ready here, the reason why its next round waits, and its last known state root as hex.
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
    """The state of a pipeline run's peer in its lanes. Fields that `PeerStatus` also has mean the same there.

    `paused` says why all lanes are stopped; empty while they run.
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
        nickname, team: chosen by the owner, for display only; empty for none.
        state: "joining", "catching up", "training", "spare" (in a pipeline run: serves no lane, trains nothing and replaces a lost
            peer), "paused", "waiting", "leaving" or "finished"; in the final status also "left on" and "ended on" a date, the latter
            by an error.
        state_s: seconds in this state so far, accurate to a second or two; for a waiting peer, seconds waited.
        reason: why, in one sentence.
        round_waiting: the reason why the next or open round waits; empty before there are rounds.
        restarted: the state that this process resumed from disk, and any losses; empty for a newcomer.
        session: number of this process life, higher than those of all earlier ones.
        credential_left_s: seconds until our credential ends, below 0 once it has; None before there is one.
        host_heard_ago_s: seconds since the host was last heard; None before there is a membership.
        is_host_away: the host has been silent so long that voters are judged as of its last answer.
        bans: number of the host's bans known here.
        ways_in: addresses of the host and of other peers that are dialled to reconnect.
        caught_up: how the last missed rounds were fetched: "snapshot", "replay", or empty when none were missed.
        head: commit id of the unit's head.
        index: number of the head in its lineage, 0 at genesis.
        state_root: Merkle root of the outer state at `state_commit`.
        is_sound: whether the state is the one that the run attests; false while it is being rebuilt.
        state_commit: the commit that `state_root` belongs to.
        total_tokens: tokens committed by the run.
        target_total_tokens: the run ends at this many tokens; 0 while unknown.
        eta_s: seconds until the run is complete, estimated from the latest rounds seen here; None before two rounds.
        round_tokens_ready: trained and not yet counted tokens, here and at peers on the same head. The next round opens at
            `round_target_tokens`. Both are 0 before there are rounds and after the last one.
        round_waited_s: seconds since the last round came here; at `round_longest_s` the next one opens with the tokens that are
            ready.
        tokens_ready: trained here and not yet credited.
        tokens_trained: trained here by this process, credited or not.
        loss: mean training loss of the latest steps, nats per byte.
        bytes_up: payload bytes sent by this process, both lanes.
        bytes_down: payload bytes received.
        control_bytes_up: the control lane's part of `bytes_up`.
        control_bytes_down: the control lane's part of `bytes_down`.
        control: both of these, by channel.
        bulk: the rest of `bytes_up` and `bytes_down`, by way, channel, unit and codec.
        host_bytes_up: bytes sent to the host, mostly reports; `host_bytes_down` its answers. Not part of any sum above.
        rounds_counted: committed rounds that count a contribution of this process.
        first_counted_unix_s: when this process first saw a certificate that counts one of its contributions.
        suspected: peer ids of members of the running exchange that are suspected to be dead or cut off.
        worker_state: of the training process: "starting", "training", "paused", "held" or "restarting"; `worker_reason` says why.
        worker_restarts: number of restarts of the training process.
        card_plan: how the card trains, and why; empty before the training process has told it.
        card_expected_bytes: of the card's memory with that plan, None before it is known. `card_used_bytes`: the most that training
            took of it, None where it is not measured.
        layout: how several cards train together, and why; empty for one.
        cards: each card, by its number; none where there is one and none is left out.
        mfu: model FLOPs utilisation, the share of the card's peak that training uses, 0 to 1; None where the peak is not known.
        download_bytes_here: bytes received of the state that is being downloaded, of `download_bytes_all` from `download_donors`
            peers. All are 0 while there is no download.
        disk_bytes: disk use of the run's folder; `disk_bound_bytes` is the limit for states, updates and log. Both exclude data.
        disk_files_bound_bytes: `disk_bound_bytes` without the log, which grows by a certificate a round.
        skipped_steps: steps of this process that were not taken, because their gradient was not finite.
        source_tokens: of a mixture, tokens of each source, in the order of run.toml, that were trained on here; empty without one.
        compile_note: why layers run eagerly although the plan compiles them; empty if they need no reason.
        disk_free_bytes: free bytes on the disk of the state folder, of its `disk_all_bytes`; None if unknown.
        memory_bytes: resident memory of all processes of this peer.
        gpu_memory_bytes: in use on the first NVIDIA card, None without one; likewise `gpu_busy` (0 to 1), `gpu_celsius` and
            `gpu_watts`. Each is also None if the card does not report it.
        energy_joules: of the cards that train and of the processor since this process started, by all programs; None without a meter.
            `energy_note` says which meter is missing; `grid_g_per_kwh` are grams of CO2 a kilowatt-hour, the owner's or the run's.
        cpu_celsius: temperature of the processor's hottest part, None if no driver measures it.
        started_unix_s: when this process started.
        version: of this program.
        is_outbound_only: it takes no connections.
        standing: "stranger", "member" or "keeper"; empty before there are rounds.
        allowed_share: share of full speed that the owner's controls allow now, 0 for no training. `allowed_reason` names the limit
            and when it ends; empty if there is none.
        units: the other units held here.
        trouble: problems that the owner should fix or know of: a disk that refuses, a state that is not the attested one, or members
            that their own signatures convict. Empty if there are none.
        chunks_audited: chunks of others' sums that this process computed again, from `audited_bytes` that others showed;
            `chunks_not_shown` could not be, since nobody showed them.
        writes_refused: number of writes of this process that the disk refused; `generations_damaged` counts states on it that were
            found damaged.
        lane: in a pipeline run, the lane served here, None if there is none; `lane_reason` gives lane and stage, or why there is
            none.
        move_reason: in a pipeline run, why this peer holds its stage, or when it moves to another.
        could_tokens_per_s: possible speed of its stage if it never waited for other peers, 0 if unknown.
        owed_tokens: tokens of finished lane rounds that did not count them; the stage's next commit should.
        is_unheard: whether others are at work, or may be, and this peer hears none of them: it commits nothing alone then.
        offline: for how long neither a peer nor the host has answered, in one sentence; empty while one does.
        download_what: what is being downloaded; `download_left_s` is the estimated time to its end, None while unknown.
        tokens_counted: tokens of this process in the rounds of `rounds_counted`.
        run_rounds_counted: rounds of the run that this peer saw and that count it, over all its starts, with `run_tokens_counted`
            tokens; 0 in the last status of older releases.
        audits: others' work that this process did again and of which the host took the verdict; `last_audit` tells the newest one,
            and `audit_now` the one under way. `untellable` is why nobody can do this peer's own work again.
        apart: for how long the host has followed a lineage that is not here, in one sentence; empty while our lineage is the run's.
    """

    model_config = ConfigDict(frozen=True)

    peer: str
    name: str
    nickname: str = ""
    team: str = ""
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
    tokens_counted: int = 0
    run_rounds_counted: int = 0
    run_tokens_counted: int = 0
    audits: int = 0
    last_audit: str = ""
    audit_now: str = ""
    untellable: str = ""
    first_counted_unix_s: float | None = None
    suspected: tuple[str, ...] = ()
    worker_state: str = ""
    worker_reason: str = ""
    worker_restarts: int = 0
    card_plan: str = ""
    card_expected_bytes: int | None = None
    card_used_bytes: int | None = None
    mfu: float | None = None
    compile_note: str = ""
    skipped_steps: int = 0
    source_tokens: tuple[int, ...] = ()
    layout: str = ""
    cards: tuple[CardStatus, ...] = ()
    download_bytes_here: int = 0
    download_bytes_all: int = 0
    download_donors: int = 0
    download_what: str = "the run's state"
    download_left_s: float | None = None
    disk_bytes: int = 0
    disk_bound_bytes: int = 0
    disk_files_bound_bytes: int = 0
    disk_free_bytes: int | None = None
    disk_all_bytes: int | None = None
    memory_bytes: int = 0
    gpu_memory_bytes: int | None = None
    gpu_busy: float | None = None
    gpu_celsius: int | None = None
    gpu_watts: float | None = None
    energy_joules: float | None = None
    energy_note: str = ""
    grid_g_per_kwh: float | None = None
    cpu_celsius: float | None = None
    started_unix_s: float = 0.0
    version: str = ""
    is_outbound_only: bool = False
    standing: str = ""
    allowed_share: float = 1.0
    allowed_reason: str = ""
    trouble: str = ""
    writes_refused: int = 0
    chunks_audited: int = 0
    audited_bytes: int = 0
    chunks_not_shown: int = 0
    generations_damaged: int = 0
    is_unheard: bool = False
    apart: str = ""
    offline: str = ""
    units: tuple[UnitPlace, ...] = ()
    lane: int | None = None
    lane_reason: str = ""
    move_reason: str = ""
    could_tokens_per_s: float = 0.0
    owed_tokens: int = 0
    last_round: LastRound | None = None

    @property
    def direct_share(self) -> float | None:
        """Share of the bulk payload that went directly from peer to peer, 0 to 1; None before there is any."""
        total = sum(count.bytes_up + count.bytes_down for count in self.bulk)
        direct = sum(count.bytes_up + count.bytes_down for count in self.bulk if count.way == "direct")
        return direct / total if total else None

    @property
    def joules_per_token(self) -> float | None:
        """Energy over the tokens trained here; None without a meter, or before there is a token."""
        return (
            None if self.energy_joules is None or not self.tokens_trained else self.energy_joules / self.tokens_trained
        )

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
        """Progress towards the next round, 0 to 1, by tokens or by time, whichever the round will open at."""
        if not self.round_target_tokens or not self.round_tokens_ready:
            return 0.0
        by_time = self.round_waited_s / self.round_longest_s if self.round_longest_s else 0.0
        return min(1.0, max(self.round_tokens_ready / self.round_target_tokens, by_time))


def write_final_status(state_dir: Path, status: PeerStatus) -> None:
    """Write the final status file, whole or not at all."""
    path = state_dir / FINAL_STATUS_FILE
    temporary = path.with_suffix(".tmp")
    temporary.write_text(status.model_dump_json() + "\n", encoding="utf8")
    os.replace(temporary, path)


@contextmanager
def kept_final_status(state_dir: Path, read: Callable[[], PeerStatus]) -> Iterator[None]:
    """Write the final status file at the end of the block: how the peer left, or the error of ours that ended it, and when."""
    try:
        yield
    except BaseException as error:
        ours = first_of_ours(error)
        reason = ours.one_line() if ours is not None else "by an error; see: potluck logs"
        with suppress(OSError):  # the error tells more
            write_final_status(state_dir, _at_end(read(), "ended", reason))
        raise
    status = read()
    write_final_status(state_dir, _at_end(status, "left", status.reason) if status.state == "leaving" else status)


def _at_end(status: PeerStatus, state: str, reason: str) -> PeerStatus:
    when = time.strftime("%a %d %b %H:%M")
    return status.model_copy(update={"state": f"{state} on {when}", "state_s": 0.0, "reason": reason})


def last_status(state_dir: Path) -> PeerStatus | None:
    """The status that the last daemon left; None if it cannot be read or there is none."""
    try:
        return PeerStatus.model_validate_json((state_dir / FINAL_STATUS_FILE).read_bytes())
    except (OSError, ValueError):
        return None
