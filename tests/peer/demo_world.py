"""Statuses that the demo may see, built for its tests: peers named one, two, three (and four) and rounds of one hundred tokens."""

from __future__ import annotations

from peer.demo.summary import Baselines, CheckpointRow, HostStatus, LossPoint, RoundRow, Seen
from peer.status.status import PeerStatus, UnitPlace

IDS = {1: "one", 2: "two", 3: "three"}
FOUR = {**IDS, 4: "four"}
TARGET_TOKENS = 1000
ROOT = "ab" * 32
UNIT_ROOTS = {"expert-0": "e0" * 32, "expert-1": "e1" * 32}


def round_row(index: int, members: tuple[str, ...] = ("one", "two", "three")) -> RoundRow:
    weights = dict.fromkeys(members, 1 / len(members))
    return RoundRow(index=index, commit=f"{index:064x}", members=members, weights=weights, unix_s=1000.0 + index)


def report(number: int, *, root: str = ROOT) -> PeerStatus:
    return PeerStatus(
        peer=FOUR[number], name=f"peer {number}", state="training", state_root=root, bytes_up=100, bytes_down=200
    )


def holder(number: int, *, root: str = ROOT, unit_root: str = "") -> PeerStatus:
    """One of four, with the expert that the demo gives it: odd numbers hold expert 0."""
    unit = f"expert-{(number - 1) % 2}"
    part = UnitPlace(
        unit=unit, index=3, holders=2, tokens_ready=0, waiting="", state_root=unit_root or UNIT_ROOTS[unit]
    )
    return report(number, root=root).model_copy(update={"units": (part,)})


def host_status(rounds: tuple[RoundRow, ...], heldout: tuple[float, ...] = ()) -> HostStatus:
    index = max((row.index for row in rounds), default=0)
    curve = tuple(LossPoint(index=i, tokens=100 * i, nats=nats) for i, nats in enumerate(heldout))
    return HostStatus(
        phase="training" if rounds else "gathering",
        index=index,
        total_tokens=100 * index,
        target_total_tokens=TARGET_TOKENS,
        rounds=rounds,
        heldout=curve,
        train_loss=curve,
        checkpoints=(CheckpointRow(index=index, commit=f"{index:064x}", root=ROOT, path="/tmp/checkpoint"),),
        yardsticks=Baselines(zlib_bits_per_byte=1.9, pairs_nats_per_byte=2.5),
    )


def sight(rounds: tuple[RoundRow, ...] = (), heldout: tuple[float, ...] = ()) -> Seen:
    """Three peers, and these rounds and held-out losses."""
    seen = Seen(peers={number: report(number) for number in IDS}, peer_ids=dict(IDS))
    seen.add_host(host_status(rounds, heldout))
    return seen
