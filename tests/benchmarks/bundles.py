"""The gain when several units send to one peer in one call: calls and bytes of whole swarms in virtual time, with and without.

    python -m tests.benchmarks.bundles [--json FILE]

Production services on in-memory seams; the same seeds with at most one message in a call are the baseline. Counted is what goes on the
round channel, each call with its answer: messages of rounds and goodbyes, and whole heartbeats, which never wait for others. Bytes are
payload; what libp2p or TLS put around a call is not in them. A message waits as long in both, so that the swarms are alike.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import median
from typing import Final

import structlog
import trio

import averaging.rounds.outbox
from averaging.network.memory.memory_network import MemoryNetwork
from averaging.network.seams.interfaces import TookReply
from averaging.rounds.lineage.adoption import Mixing
from averaging.rounds.outbox import ROUND_CHANNEL
from protocol.errors import PotluckError
from protocol.ids import PeerId, UnitName
from protocol.rounds.messages.bundle import MAX_BUNDLED
from protocol.rounds.messages.messages import Member
from protocol.rounds.schedule.stagger import Stagger
from protocol.rounds.schedule.target import RoundTarget
from protocol.rounds.state import RoundConfig
from tests.benchmarks.results import Row, machine, print_rows, write_rows
from tests.simulation import virtual_time
from tests.simulation.layouts import FRAGMENTS, Layout
from tests.simulation.profiles import Profile
from tests.simulation.swarm import World

BENCH: Final = "bundles"
SEEDS: Final = (1, 2, 3)
NUM_PEERS: Final = 4
NUM_ROUNDS: Final = 10
"""Of the spine, counted from its second commit on."""

TOKENS_PER_S: Final = 50.0
_ROUNDS: Final = {"round_s": 60.0, "longest_interval_s": 120.0, "tokens_per_s": TOKENS_PER_S, "list_every_s": 60.0}
_EXPERTS: Final = tuple(UnitName(f"expert-{number}") for number in range(2))
TWO_EXPERTS: Final = Layout(
    "two experts", (UnitName("trunk"), *_EXPERTS), lambda number: (UnitName("trunk"), _EXPERTS[number % 2])
)


@dataclass
class Said:
    """Of all peers together: calls on the round channel, and bytes of requests and answers; commits of all units meanwhile."""

    calls: int = 0
    request_bytes: int = 0
    answer_bytes: int = 0
    commits: int = 0
    lasted_s: float = 0.0


@contextmanager
def _counted(said: Said) -> Iterator[None]:
    """While what goes on the round channel is counted."""
    real = MemoryNetwork.call_each

    async def call_each(
        network: MemoryNetwork,
        peers: Sequence[PeerId],
        channel: str,
        request: bytes,
        *,
        timeout_s: float,
        took: TookReply,
    ) -> None:
        async def counted(peer: PeerId, reply: bytes | PotluckError) -> None:
            if isinstance(reply, bytes):
                said.answer_bytes += len(reply)
            await took(peer, reply)

        if channel == ROUND_CHANNEL:
            said.calls += len(peers)
            said.request_bytes += len(peers) * len(request)
        await real(
            network, peers, channel, request, timeout_s=timeout_s, took=counted if channel == ROUND_CHANNEL else took
        )

    setattr(MemoryNetwork, "call_each", call_each)  # noqa: B010 - mypy takes no plain assignment
    try:
        yield
    finally:
        setattr(MemoryNetwork, "call_each", real)  # noqa: B010


@contextmanager
def _at_most(num_messages: int) -> Iterator[None]:
    """While so many messages go in one call at most."""
    setattr(averaging.rounds.outbox, "MAX_BUNDLED", num_messages)  # noqa: B010 - a constant
    try:
        yield
    finally:
        setattr(averaging.rounds.outbox, "MAX_BUNDLED", MAX_BUNDLED)  # noqa: B010


class _Paced(World):
    """Experts take their share of the trunk's target, as peer/session/build.py says it: every token is of one expert."""

    def round_config(self, me: Member, unit: UnitName) -> RoundConfig:
        config = super().round_config(me, unit)
        if unit not in _EXPERTS:
            return config
        target = RoundTarget(self.target_tokens // len(_EXPERTS))
        return replace(config, target=target, stagger=Stagger(0, len(_EXPERTS)))


# --- what is played -----------------------------------------------------------------------------------------------------------


def _commits(world: World) -> int:
    return sum(max(node.index_of(unit) for node in world.nodes) for unit in world.layout.units)


async def _rounds(world: World, said: Said) -> None:
    """A settled swarm, from the spine's second commit on."""
    await _until_round(world, 2)
    await _count(world, said, 2 + NUM_ROUNDS)


async def _restarted(world: World, said: Said) -> None:
    """Everybody is killed and comes back at once; up to the second commit of the spine after that."""
    await _until_round(world, 4)
    for node in world.nodes:
        node.crash()
    await trio.sleep(30.0)
    index = world.rounds()
    for node in world.nodes:
        world.boot(node)
    await _count(world, said, index + 2)


async def _leaving(world: World, said: Said) -> None:
    """One says goodbye."""
    await _until_round(world, 2)
    with _counted(said):
        begin_s, before = trio.current_time(), _commits(world)
        world.nodes[0].leave()
        await world.wait_for(lambda: not world.nodes[0].is_up, 30.0, "the end of who left")
        said.lasted_s, said.commits = trio.current_time() - begin_s, _commits(world) - before


async def _until_round(world: World, index: int) -> None:
    await world.wait_for(lambda: world.rounds() >= index, 3600.0, f"round {index}")


async def _count(world: World, said: Said, index: int) -> None:
    begin_s, before = trio.current_time(), _commits(world)
    with _counted(said):
        await _until_round(world, index)
    said.lasted_s, said.commits = trio.current_time() - begin_s, _commits(world) - before


@dataclass(frozen=True)
class Case:
    """A swarm, and what befalls it."""

    name: str
    profile: Profile
    plot: Callable[[World, Said], object]


_STREAMING: Final = Profile("streaming", layout=FRAGMENTS, mixing=Mixing(0.5, 500), **_ROUNDS)  # type: ignore[arg-type]
_OF_EXPERTS: Final = Profile("experts", layout=TWO_EXPERTS, **_ROUNDS)  # type: ignore[arg-type]
CASES: Final = (
    Case("a trunk and two experts", _OF_EXPERTS, _rounds),
    Case("a trunk and two experts, everybody restarted", _OF_EXPERTS, _restarted),
    Case("four fragments in turn", _STREAMING, _rounds),
    Case("four fragments, everybody restarted", _STREAMING, _restarted),
    Case("four fragments, a goodbye", _STREAMING, _leaving),
)


def _play(case: Case, seed: int, num_messages: int) -> Said:
    said = Said()

    async def tell() -> None:
        async with trio.open_nursery() as nursery:
            world = _Paced(seed, nursery, NUM_PEERS, NUM_PEERS, case.profile)
            nursery.start_soon(world.host.serve)
            for node in world.nodes:
                node.tokens_per_s = TOKENS_PER_S
                world.boot(node)
            await case.plot(world, said)  # type: ignore[misc]
            nursery.cancel_scope.cancel()

    with _at_most(num_messages):
        virtual_time.run(seed, tell)
    return said


# --- what comes of it ---------------------------------------------------------------------------------------------------------


def _rows(case: Case) -> list[Row]:
    bundled = [_play(case, seed, MAX_BUNDLED) for seed in SEEDS]
    apart = [_play(case, seed, 1) for seed in SEEDS]
    reported = {"case": case.name, "bundled": list(map(asdict, bundled)), "apart": list(map(asdict, apart))}
    print(json.dumps(reported), flush=True)
    per = "a commit" if all(said.commits for said in bundled) else "in all"
    return [_row(f"{case.name}: {what}, {per}", what, bundled, apart) for what in ("calls", "bytes")]


def _row(metric: str, what: str, bundled: Sequence[Said], apart: Sequence[Said]) -> Row:
    values, baselines = [_each(said, what) for said in bundled], [_each(said, what) for said in apart]
    value, baseline = median(values), median(baselines)
    return Row(
        BENCH,
        metric,
        round(value, 2),
        what,
        round(baseline, 2),
        round(value / baseline, 4),
        trials=len(SEEDS),
        spread={"best": round(min(values), 2), "worst": round(max(values), 2)},
        settings={"peers": NUM_PEERS, "seeds": SEEDS, "rounds": NUM_ROUNDS, "machine": machine()},
    )


def _each(said: Said, what: str) -> float:
    number = said.calls if what == "calls" else said.request_bytes + said.answer_bytes
    return number / max(1, said.commits)


def main(arguments: Sequence[str] | None = None) -> None:
    """All cases; one line of JSON each, then the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.bundles")
    parser.add_argument("--json", type=Path, help="write the rows there, one JSON object a line")
    args = parser.parse_args(arguments)
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(50))
    rows = [row for case in CASES for row in _rows(case)]
    if args.json is not None:
        write_rows(rows, args.json)
    print_rows(rows, "bundles: several units in one call, against one message a call")


if __name__ == "__main__":
    main()
