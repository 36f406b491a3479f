"""`python -m tests.benchmarks.cards_run --json FILE [--quick]`: a run whose peers have several cards, beside a run of single cards.

The first run has a peer of two cards that share one replica, a peer of two islands, and a peer of one card. The second one has four
peers of one card. Processes on the CPU stand for cards.

Equal tokens: both runs have one seed, one model and one text, and four replicas: an island is a replica as a single card is, and cards
that share one are one. A round falls due at the same tokens of all replicas together, and the run's learning rate follows the same
total. Held-out losses are compared at one number of committed tokens, between the two rounds around it.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from averaging.models.llama.config import LlamaConfig
from peer.demo.summary import LossPoint
from peer.status.status import PeerStatus
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import open_children
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.benchmarks.swarm import Swarm, start_swarm

BENCH: Final = "cards_run"
MODEL: Final = LlamaConfig(dim=64, num_layers=2, num_heads=4, num_kv_heads=2, ffn_dim=176, context_tokens=32)
SEQUENCES: Final = 8
MOST_LOSS: Final = 1.01
"""Times the loss of single cards."""

WITHIN_S: Final = 1200.0
LOOK_EVERY_S: Final = 0.2
LATE_LOSS_S: Final = 20.0
"""For the held-out loss of the last round."""


@dataclass(frozen=True, slots=True)
class Size:
    """Rounds to wait for, and the tokens at which one is due."""

    rounds: int
    target_tokens: int


FULL: Final = Size(10, 40_000)
QUICK: Final = Size(3, 20_000)

TWO_CARDS: Final = ("env", "POTLUCK_PEER_GPUS=0,1")
SHARDED: Final = (*TWO_CARDS, "POTLUCK_PEER_SPLIT=shard", "POTLUCK_PEER_SLOWDOWN=2")
"""Held back less: sums between two processes take time of their own, and replicas should train alike fast."""

ISLANDS: Final = (*TWO_CARDS, "POTLUCK_PEER_SPLIT=islands")
SEVERAL_CARDS: Final = {"two cards of one replica": SHARDED, "two islands": ISLANDS, "one card": ()}
SINGLE_CARDS: Final = {f"one card, peer {number}": () for number in range(1, 5)}


@dataclass
class Seen:
    """Everything that was seen of one run.

    Attributes:
        losses: held-out losses by round.
        roots: state roots by commit, of all peers.
        heads: the newest status of each peer, by its number.
        first: the newest round when all peers trained.
    """

    losses: dict[int, LossPoint] = field(default_factory=dict)
    roots: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    heads: dict[int, PeerStatus] = field(default_factory=dict)
    first: int = 0

    def look(self, swarm: Swarm) -> None:
        """Ask everybody once."""
        for number, peer in swarm.peers.items():
            status = peer.status()
            if status is not None and status.index and status.state_commit:
                self.heads[number] = status
                self.roots[status.state_commit].add(status.state_root)
        host = swarm.host_status()
        if host is not None:
            self.losses |= {point.index: point for point in host.heldout}

    def is_over(self, num_peers: int, rounds: int) -> bool:
        """Whether all peers have made so many rounds, and stand at one commit."""
        is_known = len(self.heads) == num_peers
        return is_known and self.rounds >= rounds and len({head.state_commit for head in self.heads.values()}) == 1

    @property
    def rounds(self) -> int:
        """Rounds since all trained, of the peer that made fewest."""
        return min((status.index for status in self.heads.values()), default=self.first) - self.first

    @property
    def roots_at_end(self) -> int:
        """Distinct roots of the peers' newest states, or of an earlier commit where two had different ones."""
        return max(len({status.state_root for status in self.heads.values()}), *map(len, self.roots.values()))

    def loss_at(self, tokens: int) -> float:
        """Held-out nats per byte at so many committed tokens, on the line between the rounds before and after.

        Raises:
            MachineError: no two rounds around it have a loss.
        """
        points = [self.losses[index] for index in sorted(self.losses)]
        for early, late in itertools.pairwise(points):
            if early.tokens <= tokens <= late.tokens and early.tokens < late.tokens:
                share = (tokens - early.tokens) / (late.tokens - early.tokens)
                return early.nats + share * (late.nats - early.nats)
        raise MachineError(
            f"no held-out loss at {tokens} tokens",
            "losses of two rounds around it",
            "let the machine do less meanwhile",
        )


def run_config(size: Size, num_peers: int) -> RunConfig:
    """A run that does not end before its rounds were seen."""
    sources = Path(__file__).parents[2]
    batch_tokens = SEQUENCES * MODEL.context_tokens
    return RunConfig(
        run=RunSection(name="cards", total_tokens=4 * size.rounds * size.target_tokens, min_members=num_peers),
        model=MODEL,
        data=DataSection(source="text", glob=f"{sources}/p*/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.003, batch_tokens=batch_tokens, warmup_tokens=16 * batch_tokens),
        round=RoundSection(target_tokens=size.target_tokens, longest_interval_s=120.0, chunk_elements=1024),
        checkpoint=CheckpointSection(every_rounds=1 << 16),
    )


def seen_run(prefixes: Sequence[tuple[str, ...]], size: Size) -> Seen:
    """One run on loopback with a peer for each prefix of a command.

    Raises:
        MachineError: it does not come to its rounds, or a peer ends.
    """
    places = tuple(Place(prefix=prefix) for prefix in prefixes)
    with tempfile.TemporaryDirectory() as folder, open_children(Path(folder) / "logs") as children:
        swarm = start_swarm(
            children,
            Path(folder),
            Places(LOOPBACK, places, "loopback"),
            run_config(size, len(places)),
            peer_environment={"POTLUCK_PEER_SLOWDOWN": "3", "TMPDIR": folder},  # killed peers leave folders
            peer_flags=("--device", "cpu", "--num-threads", "1"),
        )
        try:
            return _watched(swarm, size)
        finally:
            swarm.close_logs()
            children.kill_all()


def _watched(swarm: Swarm, size: Size) -> Seen:
    seen, deadline_s = Seen(), time.monotonic() + WITHIN_S
    seen.look(swarm)
    seen.first = max((status.index for status in seen.heads.values()), default=0)
    while not seen.is_over(len(swarm.peers), size.rounds):
        ended = [peer.number for peer in swarm.peers.values() if not peer.is_running]
        if ended or time.monotonic() > deadline_s:
            rounds = {number: status.index for number, status in seen.heads.items()}
            raise MachineError(
                f"rounds {rounds} of peers, ended peers {ended}",
                f"{size.rounds} rounds of all from {seen.first} on, within {WITHIN_S:.0f} s",
                "let the machine do less meanwhile",
            )
        seen.look(swarm)
        time.sleep(LOOK_EVERY_S)
    at_end = dict(seen.heads)
    deadline_s = time.monotonic() + LATE_LOSS_S
    while max(seen.losses, default=0) < seen.first + size.rounds and time.monotonic() < deadline_s:
        seen.look(swarm)
        time.sleep(LOOK_EVERY_S)
    seen.heads = at_end
    return seen


def rows_of(several: Seen, single: Seen, size: Size, settings: dict[str, object], *, is_judged: bool) -> list[Row]:
    """The rows of the two runs. Losses of a few rounds are not judged."""
    tokens = min(max(point.tokens for point in seen.losses.values()) for seen in (several, single))
    ours, theirs = several.loss_at(tokens), single.loss_at(tokens)
    rounds, ratio = several.rounds, ours / theirs
    shares = {
        name: {"tokens": several.heads[number].tokens_counted, "layout": several.heads[number].layout}
        for number, name in enumerate(SEVERAL_CARDS, 1)
    }
    restarts = sum(status.worker_restarts for seen in (several, single) for status in seen.heads.values())
    about = settings | {"target_tokens": size.target_tokens, "peers": shares, "worker_restarts": restarts}
    least = size.rounds
    return [
        Row(BENCH, "peers of several cards: rounds since all train", rounds, "", single.rounds, None, f">= {least}",
            rounds >= least, 1, {}, about),
        Row(BENCH, "peers of several cards: distinct roots at the end", several.roots_at_end, "", single.roots_at_end,
            None, "= 1", several.roots_at_end == 1, 1, {}, about),
        Row(BENCH, "peers of several cards: held-out loss beside four single cards at equal tokens", round(ours, 4),
            "nats/byte", round(theirs, 4), round(ratio, 4), f"ratio <= {MOST_LOSS}" if is_judged else "",
            ratio <= MOST_LOSS if is_judged else None, 1, {}, about),
        Row(BENCH, "peers of several cards: committed tokens at which losses are compared", tokens, "tokens",
            settings=about),
    ]  # fmt: skip


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and report. 1 if a target is missed."""
    parser = argparse.ArgumentParser(prog=f"python -m tests.benchmarks.{BENCH}", description=__doc__)
    parser.add_argument("--json", type=Path, required=True, metavar="FILE")
    parser.add_argument("--quick", action="store_true", help="fewer and shorter rounds, whose losses are not judged")
    options = parser.parse_args(arguments)
    size, settings = QUICK if options.quick else FULL, machine()
    several = seen_run(tuple(SEVERAL_CARDS.values()), size)
    single = seen_run(tuple(SINGLE_CARDS.values()), size)
    rows = rows_of(several, single, size, settings, is_judged=not options.quick)
    write_rows(rows, options.json)
    print_rows(rows, "a run of peers with several cards")
    return 0 if all(row.met is not False for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
