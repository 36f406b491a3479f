"""The run as JSON for the pages: the part of /api/status that is made from a picture of the run.

It reads no clock: `now_s` is monotonic seconds, `unix_s` seconds since 1970.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final

from coordinator.ledger.ledger import LossPoint
from coordinator.ledger.run_memory import RunPast
from coordinator.policy.standing_core import KEEPERS_TRUST
from coordinator.presence.presence import PeerEntry, live_peers
from coordinator.progress.heldout_core import expert_kind
from coordinator.progress.run_core import Phase, why_waiting
from coordinator.progress.run_view import (
    NO_PAST,
    MissingCommits,
    RunPicture,
    TimedRound,
    away_peers,
    counted_in,
    eta_s,
    lanes_and_stages,
    left_out_in,
    progress_points,
    tokens_per_s,
    unit_bytes,
)
from coordinator.progress.stage_commits import partial_lanes
from coordinator.progress.stage_view import lane_json, stage_json
from coordinator.progress.unit_holders import UnitHolders
from coordinator.run.checkpoint_list import checkpoint_json
from protocol.estimates.eta import speeds
from protocol.identity.chosen_name import NONE_CHOSEN
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.rounds.lineage.round_row import Counted, round_json
from protocol.tables import duration

FETCHING_S: Final = 10.0
"""How long missing commits count as being fetched after one of them arrived, in seconds: some reports."""

PEERS_A_PAGE: Final = 100
"""Peers that the status lists. Further ones come by pages (coordinator/status/row_pages.py)."""

MAX_AWAY: Final = PEERS_A_PAGE
"""Most contributors that are away and are listed in the status, those with the most tokens."""

ROUNDS_A_PAGE: Final = 60
"""Newest rounds that the status lists, as many as the page draws at once. Earlier ones come by pages."""

MAX_HOLDERS: Final = 20
"""Most holders of a unit that the status names. Their number is told besides."""

MAX_LANES: Final = 40
"""Most lanes that the status lists, the first ones. Their number is told besides."""

MAX_MISSING: Final = 20
"""Most missing commits that the status lists."""

MAX_TEAMS: Final = 100
"""Most teams that the status lists."""

Json = Mapping[str, object]

_OF_THE_HOST_ALONE: Final = frozenset({"restarted", "missing", "bans", "banned", "trouble", "push"})


def peer_json(
    peer: PeerId, entry: PeerEntry, counted: Counted, past: RunPast, now_s: float, *, is_banned: bool, left_out: float
) -> Json:
    """A row for a peer that this process of the host has heard. `left_out` is as of `left_out_in`."""
    report = entry.report
    silent_s = now_s - entry.seen_s
    is_silent = not entry.is_live(now_s) and report.state != "left"
    is_gone = is_silent or report.state == "left"
    return {
        "peer": peer,
        "name": peer_name(peer),
        "nickname": report.nickname,
        "team": report.team,
        "tokens_per_s": 0.0 if is_gone else report.tokens_per_s,
        "tokens_ready": report.tokens_ready,
        "loss": report.loss_nats,
        "last_seen_s": round(silent_s, 3),
        "here_s": None if is_gone or entry.since_s is None else round(now_s - entry.since_s, 3),
        "state": "silent" if is_silent else report.state,
        "reason": f"not heard of for {silent_s:.0f} s" if is_silent else report.reason,
        "head": report.head.hex(),
        "index": report.index,
        "bytes_up": report.bytes_up,
        "bytes_down": report.bytes_down,
        "state_root": report.state_root.hex(),
        "state_commit": report.state_commit.hex(),
        "version": report.version,
        "outbound_only": report.is_outbound_only,
        "tokens_counted": counted.tokens,
        "rounds_counted": counted.rounds,
        "is_banned": is_banned,
        "left_out": left_out,
        **past.trust.get(peer, KEEPERS_TRUST).row,
    }


def _teams(picture: RunPicture, past: RunPast, counted: Mapping[PeerId, Counted]) -> list[Json]:
    """The teams by counted tokens, the largest first, at most MAX_TEAMS. Teams are told apart by their text alone."""
    chosen = {**past.chosen, **{peer: entry.report.chosen for peer, entry in picture.peers.items()}}
    members = dict[str, list[PeerId]]()
    for peer, name in chosen.items():
        if name.team:
            members.setdefault(name.team, []).append(peer)
    sums = {team: sum(counted.get(peer, Counted()).tokens for peer in peers) for team, peers in members.items()}
    largest = sorted(members, key=lambda team: (-sums[team], team))[:MAX_TEAMS]
    return [{"team": team, "num_peers": len(members[team]), "tokens_counted": sums[team]} for team in largest]


def _curve(points: Sequence[LossPoint], kind: str) -> list[Json]:
    by_place: dict[tuple[int, int], LossPoint] = {}
    for point in points:
        if point.kind == kind:
            by_place.setdefault((point.tokens, point.index), point)
    return [{"index": p.index, "tokens": p.tokens, "nats": p.nats} for _, p in sorted(by_place.items())]


def _missing_json(missing: MissingCommits, now_s: float) -> Json:
    if not missing.peer:
        reason = "the ledger has this commit without those before it; no peer has sent them yet"
    elif now_s - missing.heard_s <= FETCHING_S:
        reason = "being fetched"
    else:
        reason = "the peer reported this commit, but nobody has sent the commits before it"
    return {
        "peer": missing.peer,
        "name": peer_name(missing.peer) if missing.peer else "the ledger",
        "head": missing.head.hex(),
        "index": missing.index,
        "from_index": missing.from_index,
        "missing_s": round(now_s - missing.since_s, 3),
        "reason": reason,
    }


def _unit_json(unit: UnitHolders) -> Json:
    return {
        "unit": unit.unit,
        "index": unit.index,
        "kept_index": unit.kept_index,
        "holders": list(unit.holders[:MAX_HOLDERS]),
        "num_holders": len(unit.holders),
        "frozen": unit.is_frozen,
        "why": unit.why_frozen,
    }


def _unit_bytes_json(peers: Mapping[PeerId, PeerEntry]) -> Json:
    return {unit: {"bytes_up": up, "bytes_down": down} for unit, (up, down) in unit_bytes(peers).items()}


def _sources_json(picture: RunPicture) -> list[Json]:
    """Each source of a mixture: the tokens that peers read of it since their processes started, and its share of all of them."""
    told = [entry.report.source_tokens for entry in picture.peers.values()]
    sums = [sum(each[place] for each in told if place < len(each)) for place in range(len(picture.source_names))]
    return [
        {"name": name, "tokens": tokens, "share": tokens / sum(sums) if any(sums) else None}
        for name, tokens in zip(picture.source_names, sums, strict=True)
    ]


def away_json(peer: PeerId, counted: Counted, past: RunPast, now_s: float, *, is_banned: bool) -> Json:
    """A row for a contributor that is away, with the same keys as those of the others."""
    heard_s, chosen = past.heard_s.get(peer), past.chosen.get(peer, NONE_CHOSEN)
    silent_s = None if heard_s is None else max(0.0, round(now_s - heard_s, 3))
    last = "not heard as far back as the host remembers" if silent_s is None else f"last heard {duration(silent_s)} ago"
    unknown = ("tokens_ready", "loss", "here_s", "index", "bytes_up", "bytes_down", "left_out")
    texts = ("head", "state_root", "state_commit", "version")
    return {
        "peer": peer,
        "name": peer_name(peer),
        "nickname": chosen.nickname,
        "team": chosen.team,
        "tokens_per_s": 0.0,
        "last_seen_s": silent_s,
        "state": "away",
        "reason": last,
        "outbound_only": None,
        "tokens_counted": counted.tokens,
        "rounds_counted": counted.rounds,
        "is_banned": is_banned,
        **past.trust.get(peer, KEEPERS_TRUST).row,
        **dict.fromkeys(unknown),
        **dict.fromkeys(texts, ""),
    }


def now_json(picture: RunPicture, now_s: float, past: RunPast = NO_PAST, apart: str = "") -> Json:
    """The part of /api/status that changes between rounds and is sent repeatedly. `apart`: that the peers cannot meet, if so."""
    state, counted = picture.state, counted_in(picture, past)
    pipeline, num_away = lanes_and_stages(picture, now_s), len(away_peers(picture, counted))
    left_out, banned = left_out_in(picture), picture.banned
    here = {peer: entry for peer, entry in picture.peers.items() if entry.is_live(now_s) and peer not in banned}
    states = [entry.report.state for entry in here.values()]
    waiting = why_waiting(states, len(picture.peers), num_away) if state.phase is Phase.TRAINING else ""
    left_s = None if waiting else eta_s(picture.rounds, state.total_tokens, picture.target_tokens)
    return {
        "run": picture.run_name,
        "run_id": picture.run_id_hex,
        "phase": state.phase.value,
        "reason": picture.reason,
        "waiting": waiting,
        "restarted": picture.restarted,
        "bans": picture.num_bans,
        "banned": {peer: peer_name(peer) for peer in sorted(picture.banned)},
        "forks": picture.num_forks,
        "apart": apart,
        "head": (state.head or b"").hex(),
        "index": state.index,
        "total_tokens": state.total_tokens,
        "target_total_tokens": picture.target_tokens,
        "eta_s": left_s,
        "num_points": len(picture.loss_points),
        "num_checkpoints": len(picture.checkpoints),
        "peers": [
            peer_json(
                peer,
                picture.peers[peer],
                counted.get(peer, Counted()),
                past,
                now_s,
                is_banned=peer in banned,
                left_out=left_out.get(peer, 0.0),
            )
            for peer in _first_peers(picture, here)
        ],
        "num_peers": len(picture.peers),
        "num_here": len(here),
        "num_away": num_away,
        "num_rounds": len(picture.rounds),
        "teams": _teams(picture, past, counted),
        "missing": [_missing_json(missing, now_s) for missing in picture.missing[:MAX_MISSING]],
        "units": [_unit_json(unit) for unit in picture.units],
        "unit_bytes": _unit_bytes_json(picture.peers),
        "sources": _sources_json(picture),
        "tokens_per_s": tokens_per_s(picture, now_s),
        "stages": [stage_json(stage) for stage in pipeline.stages],
        "lanes": [lane_json(lane) for lane in pipeline.lanes[:MAX_LANES]],
        "num_lanes": len(pipeline.lanes),
        "partial_lanes": [
            {"lane": part.lane, "round": part.round + 1, "lacking": list(part.lacking)}
            for part in partial_lanes(picture.stage_commits)
        ],
    }


def _first_peers(picture: RunPicture, here: Collection[PeerId]) -> list[PeerId]:
    """All peers by their ids, or those of the first page by their names, those that are here first."""
    if len(picture.peers) <= PEERS_A_PAGE:
        return sorted(picture.peers)
    return sorted(picture.peers, key=lambda peer: (peer not in here, peer_name(peer), peer))[:PEERS_A_PAGE]


def status_json(picture: RunPicture, now_s: float, past: RunPast = NO_PAST, apart: str = "") -> Json:
    """The body of /api/status."""
    counted = counted_in(picture, past)
    away, rounds = away_peers(picture, counted)[:MAX_AWAY], picture.rounds[-ROUNDS_A_PAGE:]
    return {
        **now_json(picture, now_s, past, apart),
        "away": [away_json(peer, counted[peer], past, now_s, is_banned=peer in picture.banned) for peer in away],
        "rounds": [round_json(t.row, t.total_tokens, t.seen_unix_s) for t in rounds],
        "speeds": [list(point) for point in speeds(progress_points(picture.rounds))],
        "names": names_in(rounds, [*away, *_mentioned(picture, now_s)]),
        "heldout": _curve(picture.loss_points, "heldout"),
        "heldout_experts": {
            unit.unit: _curve(picture.loss_points, expert_kind(expert)) for expert, unit in enumerate(picture.units)
        },
        "prose": _curve(picture.loss_points, "prose"),
        "train_loss": _curve(picture.loss_points, "train"),
        "checkpoints": [checkpoint_json(row, picture.checkpoint_folder) for row in picture.checkpoints],
        "yardsticks": {
            "zlib_bits_per_byte": picture.yardsticks.zlib_bits_per_byte,
            "pairs_nats_per_byte": picture.yardsticks.pairs_nats_per_byte,
        },
    }


def _mentioned(picture: RunPicture, now_s: float) -> Iterator[PeerId]:
    """The peers of the first page, and those that units and lanes name."""
    yield from _first_peers(picture, picture.peers.keys() & set(live_peers(picture.peers, now_s)))
    for unit in picture.units:
        yield from unit.holders[:MAX_HOLDERS]
    for lane in lanes_and_stages(picture, now_s).lanes[:MAX_LANES]:
        for members in lane.members:
            yield from members


def names_in(rounds: Iterable[TimedRound], others: Iterable[PeerId] = ()) -> dict[str, str]:
    """The names of all peers that these rounds mention, also of those that this process of the host has not heard, and of `others`."""
    members = {peer for timed in rounds for peer in (*timed.row.members, *(peer for peer, _ in timed.row.omitted))}
    return {peer: peer_name(peer) for peer in sorted(members.union(others))}


def public_json(status: Json) -> Json:
    """The part that anybody may see: without paths on the host's machine, bans, and the restart report."""
    checkpoints = status.get("checkpoints", ())
    shown: dict[str, object] = {key: value for key, value in status.items() if key not in _OF_THE_HOST_ALONE}
    if isinstance(checkpoints, list):
        shown["checkpoints"] = [{key: value for key, value in row.items() if key != "path"} for row in checkpoints]
    for rows in ("peers", "away"):
        if isinstance(peers := status.get(rows), list):
            shown[rows] = [{key: value for key, value in row.items() if key != "is_banned"} for row in peers]
    return shown
