"""The peer's metrics as one table, in base units and with closed label sets. Served at /metrics."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeAlias

from averaging.metrics.metric_table import MetricRow, Samples, metrics_body, one
from peer.cards.card_status import CardStatus
from peer.status.status import BulkTraffic, PeerStatus
from peer.training.plan.gpus_core import MOST_CARDS

PeerMetric: TypeAlias = MetricRow[PeerStatus]

STATES: Final = ("joining", "catching up", "training", "spare", "paused", "waiting", "leaving", "finished")

WAYS_TO_CATCH_UP: Final = ("snapshot", "replay")


def _by_lane(control: int, total: int, host: int) -> Samples:
    return ((("control",), float(control)), (("bulk",), float(total - control)), (("host",), float(host)))


KIND_LABELS: Final = ("way", "channel", "unit", "codec")


def _kind(count: BulkTraffic) -> tuple[str, ...]:
    return (count.way, count.channel, count.unit, count.codec)


CARD_LABELS: Final = ("card",)


def _by_card(status: PeerStatus, read: Callable[[CardStatus], float | None]) -> Samples:
    """A sample a card, labelled with its number; at most MOST_CARDS."""
    found = ((card.number, read(card)) for card in status.cards[:MOST_CARDS])
    return tuple(((str(number),), float(value)) for number, value in found if value is not None)


PEER_METRICS: Final = (
    PeerMetric("potluck_peer_round_index", "gauge", "Round index of the unit's head.", lambda s: one(s.index)),
    PeerMetric("potluck_peer_run_tokens", "gauge", "Tokens committed by the run.", lambda s: one(s.total_tokens)),
    PeerMetric(
        "potluck_peer_tokens_trained", "counter", "Tokens trained by this process.", lambda s: one(s.tokens_trained)
    ),
    PeerMetric(
        "potluck_peer_tokens_ready", "gauge", "Tokens trained, not yet credited.", lambda s: one(s.tokens_ready)
    ),
    PeerMetric("potluck_peer_tokens_per_second", "gauge", "Training speed.", lambda s: one(s.tokens_per_s)),
    PeerMetric(
        "potluck_peer_could_tokens_per_second",
        "gauge",
        "In a pipeline run, possible speed of its stage without waiting for others.",
        lambda s: one(s.could_tokens_per_s if s.lane_reason else None),
    ),
    PeerMetric(
        "potluck_peer_owed_tokens",
        "gauge",
        "In a pipeline run, tokens of finished rounds that the stage's next round is to count.",
        lambda s: one(s.owed_tokens if s.lane_reason else None),
    ),
    PeerMetric(
        "potluck_peer_mfu_ratio",
        "gauge",
        "Model FLOPs utilisation: share of the card's peak that training uses.",
        lambda s: one(s.mfu),
    ),
    PeerMetric(
        "potluck_peer_energy_joules",
        "counter",
        "Energy of the cards that train and of the processor, by all programs.",
        lambda s: one(s.energy_joules),
    ),
    PeerMetric(
        "potluck_peer_joules_per_token",
        "gauge",
        "Energy over the tokens that this process trained.",
        lambda s: one(s.joules_per_token),
    ),
    PeerMetric(
        "potluck_peer_grid_grams_per_kwh",
        "gauge",
        "Grams of CO2 of a kilowatt-hour here.",
        lambda s: one(s.grid_g_per_kwh),
    ),
    PeerMetric(
        "potluck_peer_card_expected_bytes",
        "gauge",
        "Memory of the card that its plan is expected to take.",
        lambda s: one(s.card_expected_bytes),
    ),
    PeerMetric(
        "potluck_peer_card_used_bytes",
        "gauge",
        "The most memory of the card that training took.",
        lambda s: one(s.card_used_bytes),
    ),
    PeerMetric(
        "potluck_card_tokens_per_second",
        "gauge",
        "Training speed of each of several cards.",
        lambda s: _by_card(s, lambda card: card.tokens_per_s),
        CARD_LABELS,
    ),
    PeerMetric(
        "potluck_card_tokens_ratio",
        "gauge",
        "Share of the tokens that each of several cards trained.",
        lambda s: _by_card(s, lambda card: card.share),
        CARD_LABELS,
    ),
    PeerMetric(
        "potluck_card_expected_bytes",
        "gauge",
        "Memory that the plan of each of several cards is expected to take.",
        lambda s: _by_card(s, lambda card: card.expected_bytes),
        CARD_LABELS,
    ),
    PeerMetric(
        "potluck_card_used_bytes",
        "gauge",
        "The most memory that training took of each of several cards.",
        lambda s: _by_card(s, lambda card: card.used_bytes),
        CARD_LABELS,
    ),
    PeerMetric(
        "potluck_card_celsius",
        "gauge",
        "Temperature of each of several cards.",
        lambda s: _by_card(s, lambda card: card.celsius),
        CARD_LABELS,
    ),
    PeerMetric(
        "potluck_card_left_out",
        "gauge",
        "1 for a card of several that does not train.",
        lambda s: _by_card(s, lambda card: bool(card.left_out)),
        CARD_LABELS,
    ),
    PeerMetric("potluck_peer_loss_nats", "gauge", "Training loss, nats per byte.", lambda s: one(s.loss)),
    PeerMetric(
        "potluck_peer_sent_bytes",
        "counter",
        "Payload sent to peers, by lane, and to the host.",
        lambda s: _by_lane(s.control_bytes_up, s.bytes_up, s.host_bytes_up),
        ("lane",),
    ),
    PeerMetric(
        "potluck_peer_received_bytes",
        "counter",
        "Payload received from peers, by lane, and from the host.",
        lambda s: _by_lane(s.control_bytes_down, s.bytes_down, s.host_bytes_down),
        ("lane",),
    ),
    PeerMetric(
        "potluck_peer_control_sent_bytes",
        "counter",
        "Payload sent on the control lane.",
        lambda s: tuple(((count.channel,), float(count.bytes_up)) for count in s.control),
        ("channel",),
    ),
    PeerMetric(
        "potluck_peer_control_received_bytes",
        "counter",
        "Payload received on the control lane.",
        lambda s: tuple(((count.channel,), float(count.bytes_down)) for count in s.control),
        ("channel",),
    ),
    PeerMetric(
        "potluck_peer_bulk_sent_bytes",
        "counter",
        "Payload sent on the bulk lane.",
        lambda s: tuple((_kind(count), float(count.bytes_up)) for count in s.bulk),
        KIND_LABELS,
    ),
    PeerMetric(
        "potluck_peer_bulk_received_bytes",
        "counter",
        "Payload received on the bulk lane.",
        lambda s: tuple((_kind(count), float(count.bytes_down)) for count in s.bulk),
        KIND_LABELS,
    ),
    PeerMetric(
        "potluck_peer_round_sent_bytes",
        "gauge",
        "Payload sent between the last two commits.",
        lambda s: one(s.last_round.bytes_up if s.last_round is not None else None),
    ),
    PeerMetric(
        "potluck_peer_round_received_bytes",
        "gauge",
        "Payload received between the last two commits.",
        lambda s: one(s.last_round.bytes_down if s.last_round is not None else None),
    ),
    PeerMetric(
        "potluck_peer_round_lost_ratio",
        "gauge",
        "Share of the squared norm of the last round's mean that the codec of results dropped.",
        lambda s: one(s.last_round.lost if s.last_round is not None else None),
    ),
    PeerMetric(
        "potluck_peer_round_left_out_ratio",
        "gauge",
        "Share of this peer's work in the last round that disagreed with most others' and does not count.",
        lambda s: one(s.last_round.left_out if s.last_round is not None else None),
    ),
    PeerMetric(
        "potluck_peer_rounds_counted",
        "counter",
        "Committed rounds that count this process.",
        lambda s: one(s.rounds_counted),
    ),
    PeerMetric(
        "potluck_peer_audits",
        "counter",
        "Others' work that this process did again, with a verdict that the host took.",
        lambda s: one(s.audits),
    ),
    PeerMetric(
        "potluck_peer_worker_restarts",
        "counter",
        "Restarts of the training process.",
        lambda s: one(s.worker_restarts),
    ),
    PeerMetric(
        "potluck_peer_memory_bytes", "gauge", "Resident memory of all processes.", lambda s: one(s.memory_bytes)
    ),
    PeerMetric("potluck_peer_disk_bytes", "gauge", "Disk use of the run's folder.", lambda s: one(s.disk_bytes)),
    PeerMetric(
        "potluck_peer_disk_bound_bytes",
        "gauge",
        "Limit of the disk use of states and updates.",
        lambda s: one(s.disk_bound_bytes),
    ),
    PeerMetric(
        "potluck_peer_disk_free_bytes",
        "gauge",
        "Free bytes on the disk of the state folder.",
        lambda s: one(s.disk_free_bytes),
    ),
    PeerMetric(
        "potluck_peer_disk_all_bytes",
        "gauge",
        "Size of the disk of the state folder.",
        lambda s: one(s.disk_all_bytes),
    ),
    PeerMetric(
        "potluck_peer_download_bytes",
        "gauge",
        "Bytes received of the state in download.",
        lambda s: one(s.download_bytes_here),
    ),
    PeerMetric(
        "potluck_peer_download_all_bytes",
        "gauge",
        "Size of the state in download.",
        lambda s: one(s.download_bytes_all),
    ),
    PeerMetric(
        "potluck_peer_download_donors", "gauge", "Donors of the state in download.", lambda s: one(s.download_donors)
    ),
    PeerMetric(
        "potluck_peer_suspected_members",
        "gauge",
        "Suspected members of the running exchange.",
        lambda s: one(len(s.suspected)),
    ),
    PeerMetric(
        "potluck_peer_state_sound", "gauge", "1 while the state is the attested one.", lambda s: one(s.is_sound)
    ),
    PeerMetric(
        "potluck_peer_unheard",
        "gauge",
        "1 while no other peer is heard though others are at work, or may be.",
        lambda s: one(s.is_unheard),
    ),
    PeerMetric(
        "potluck_peer_chunks_audited",
        "counter",
        "Chunks of others' sums that were computed again here.",
        lambda s: one(s.chunks_audited),
    ),
    PeerMetric(
        "potluck_peer_audited_bytes",
        "counter",
        "Bytes that were fetched for that.",
        lambda s: one(s.audited_bytes),
    ),
    PeerMetric(
        "potluck_peer_chunks_not_shown",
        "counter",
        "Chunks that nobody showed, so that their sum could not be computed again.",
        lambda s: one(s.chunks_not_shown),
    ),
    PeerMetric(
        "potluck_peer_writes_refused",
        "counter",
        "Writes that the disk refused.",
        lambda s: one(s.writes_refused),
    ),
    PeerMetric(
        "potluck_peer_generations_damaged",
        "counter",
        "Damaged states found on the disk.",
        lambda s: one(s.generations_damaged),
    ),
    PeerMetric(
        "potluck_peer_credential_left_seconds",
        "gauge",
        "Seconds until the credential ends, negative once it has.",
        lambda s: one(s.credential_left_s),
    ),
    PeerMetric(
        "potluck_peer_host_heard_ago_seconds",
        "gauge",
        "Seconds since the host was last heard.",
        lambda s: one(s.host_heard_ago_s),
    ),
    PeerMetric(
        "potluck_peer_host_away",
        "gauge",
        "1 while voters are judged as of the host's last answer.",
        lambda s: one(s.is_host_away),
    ),
    PeerMetric("potluck_peer_bans", "gauge", "Known bans.", lambda s: one(s.bans)),
    PeerMetric("potluck_peer_ways_in", "gauge", "Addresses dialled to reconnect.", lambda s: one(s.ways_in)),
    PeerMetric("potluck_peer_session", "gauge", "Number of this process life.", lambda s: one(s.session)),
    PeerMetric(
        "potluck_peer_caught_up",
        "gauge",
        "1 for the way in which missed rounds were last fetched.",
        lambda s: tuple(((way,), float(way == s.caught_up)) for way in WAYS_TO_CATCH_UP),
        ("way",),
    ),
    PeerMetric(
        "potluck_peer_gpu_memory_bytes", "gauge", "Memory in use on the first card.", lambda s: one(s.gpu_memory_bytes)
    ),
    PeerMetric(
        "potluck_peer_gpu_busy_ratio", "gauge", "Share of time in which the card computes.", lambda s: one(s.gpu_busy)
    ),
    PeerMetric("potluck_peer_gpu_celsius", "gauge", "Temperature of the card.", lambda s: one(s.gpu_celsius)),
    PeerMetric("potluck_peer_cpu_celsius", "gauge", "Temperature of the processor.", lambda s: one(s.cpu_celsius)),
    PeerMetric(
        "potluck_peer_allowed_ratio",
        "gauge",
        "Share of full speed that the owner's controls allow.",
        lambda s: one(s.allowed_share),
    ),
    PeerMetric("potluck_peer_start_time_seconds", "gauge", "Unix time of the start.", lambda s: one(s.started_unix_s)),
    PeerMetric(
        "potluck_peer_state",
        "gauge",
        "1 for the present state.",
        lambda s: tuple(((state,), float(state == s.state)) for state in STATES),
        ("state",),
    ),
)


def metrics_text(read_status: Callable[[], PeerStatus]) -> bytes:
    """The Prometheus text of the current status."""
    return metrics_body(PEER_METRICS, read_status)
