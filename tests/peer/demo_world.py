"""What the demo may see, built for its tests: three peers named one, two, three and rounds of one hundred tokens."""

from __future__ import annotations

from peer.demo.observation import (
    Baselines,
    CheckpointRow,
    HeldoutPoint,
    HostStatus,
    Observation,
    PeerReport,
    RoundRow,
    TrainPoint,
    UnitRow,
)

IDS = {1: "one", 2: "two", 3: "three"}
FOUR = {**IDS, 4: "four"}
TARGET_TOKENS = 1000
ROOT = "ab" * 32
UNIT_ROOTS = {"expert-0": "e0" * 32, "expert-1": "e1" * 32}


def round_row(index: int, members: tuple[str, ...] = ("one", "two", "three")) -> RoundRow:
    share = 1 / len(members)
    return RoundRow(
        index=index,
        commit=f"{index:064x}",
        members=members,
        weights=dict.fromkeys(members, share),
        unix_s=1000.0 + index,
    )


def report(number: int, *, root: str = ROOT) -> PeerReport:
    return PeerReport(
        peer=IDS[number], name=f"peer {number}", state="training", state_root=root, bytes_up=100, bytes_down=200
    )


def holder(number: int, *, root: str = ROOT, unit_root: str = "") -> PeerReport:
    """One of four, with the expert that the demo gives it: of those with odd numbers expert 0."""
    expert = (number - 1) % 2
    part = UnitRow(unit=f"expert-{expert}", index=3, holders=2, state_root=unit_root or UNIT_ROOTS[f"expert-{expert}"])
    return PeerReport(peer=FOUR[number], name=f"peer {number}", state="training", state_root=root, units=(part,))


def host_status(rounds: tuple[RoundRow, ...], heldout: tuple[float, ...] = ()) -> HostStatus:
    index = max((row.index for row in rounds), default=0)
    return HostStatus(
        phase="training" if rounds else "gathering",
        index=index,
        total_tokens=100 * index,
        target_total_tokens=TARGET_TOKENS,
        rounds=rounds,
        heldout=tuple(HeldoutPoint(index=i, tokens=100 * i, nats=nats) for i, nats in enumerate(heldout)),
        train_loss=tuple(TrainPoint(tokens=100 * i, nats=nats) for i, nats in enumerate(heldout)),
        checkpoints=(CheckpointRow(index=index, commit=f"{index:064x}", root=ROOT, path="/tmp/checkpoint"),),
        yardsticks=Baselines(zlib_bits_per_byte=1.9, pairs_nats_per_byte=2.5),
    )


def observation(
    rounds: tuple[RoundRow, ...] = (), heldout: tuple[float, ...] = (), exits: dict[int, int] | None = None
) -> Observation:
    host = host_status(rounds, heldout)
    return Observation(
        host=host,
        reports={number: report(number) for number in IDS},
        peer_ids=dict(IDS),
        exits=exits or {},
        rounds={row.index: row for row in rounds},
        heldout={point.index: point for point in host.heldout},
    )
