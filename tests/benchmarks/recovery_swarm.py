"""The common code of the recovery benchmark's parts: the runs, a swarm that stands, and commits by the peers' logs."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from averaging.models.llama.config import LlamaConfig
from protocol.errors import MachineError
from protocol.run.data_section import DataSection
from protocol.run.host_sections import CheckpointSection
from protocol.run.manifest import RunConfig, RunSection
from protocol.run.round_section import RoundSection
from protocol.run.training_sections import InnerSection
from protocol.tensors.model_config import model_schema
from tests.benchmarks.fault_watch import COMMITTED, Watch
from tests.benchmarks.places import LOOPBACK, Place, Places
from tests.benchmarks.processes import Children
from tests.benchmarks.swarm import BenchPeer, Swarm, start_swarm, wait_until

BENCH: Final = "recovery"
NEVER_TOKENS: Final = 1 << 50
"""More tokens than the run will see: rounds follow the clock, and it does not end."""

TINY: Final = LlamaConfig(dim=16, num_layers=1, num_heads=2, num_kv_heads=1, ffn_dim=32, context_tokens=32)
LARGE: Final = LlamaConfig(dim=256, num_layers=8, num_heads=4, num_kv_heads=4, ffn_dim=675, context_tokens=32)
"""6.3 million values: 50 MB of parameters and momentum."""

WHOLE_LIMIT_S: Final = 90.0


@dataclass
class Budget:
    """How much one part measures, and until when; `left_s` counts from when the budget was made."""

    num_trials: int
    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        """Until no further trial is begun."""
        return self.began_s + self.limit_s - time.monotonic()


def run_config(model: LlamaConfig, num_peers: int, interval_s: float, every_rounds: int = 1 << 16) -> RunConfig:
    """A run whose rounds follow the clock, on the project's own sources; a checkpoint every `every_rounds`."""
    sources = Path(__file__).parents[2] / "protocol"
    num_elements = model_schema(model).num_elements
    return RunConfig(
        run=RunSection(name="recovery", total_tokens=NEVER_TOKENS, min_members=num_peers),
        model=model,
        data=DataSection(source="text", glob=f"{sources}/**/*.py", heldout_every=5),
        inner=InnerSection(learning_rate=0.001, batch_tokens=model.context_tokens),
        round=RoundSection(
            target_tokens=NEVER_TOKENS,
            longest_interval_s=interval_s,
            chunk_elements=16384 if num_elements > 1 << 20 else 256,
        ),
        checkpoint=CheckpointSection(every_rounds=every_rounds),
    )


@contextmanager
def open_swarm(
    children: Children, directory: Path, config: RunConfig, slowdown: float, *, upload_bytes_per_s: int = 0
) -> Iterator[Swarm]:
    """A host and `min_members` peers on loopback that train at 1 / slowdown of full speed. They are killed at the end."""
    directory.mkdir(parents=True, exist_ok=True)
    swarm = start_swarm(
        children,
        directory,
        Places(LOOPBACK, (Place(),) * config.run.min_members, "loopback"),
        config,
        peer_environment={"POTLUCK_PEER_UPLOAD_BYTES_PER_S": str(upload_bytes_per_s)},
        peer_flags=("--device", "cpu", "--num-threads", "1", "--slowdown", str(slowdown)),
    )
    try:
        yield swarm
    finally:
        swarm.close_logs()
        children.kill_all()


def is_whole(swarm: Swarm, least_index: int = 0) -> bool:
    """Whether all peers train, on one head with one root, at this round or later."""
    statuses = [peer.status() for peer in swarm.peers.values()]
    known = [status for status in statuses if status is not None]
    return (
        len(known) == len(statuses)
        and all(s.state == s.worker_state == "training" and s.index >= least_index for s in known)
        and len({(s.head, s.state_root) for s in known}) == 1
    )


def await_whole(swarm: Swarm, least_index: int = 0) -> None:
    """Until all train on one head.

    Raises:
        MachineError: they do not within a minute and a half.
    """
    if not wait_until(lambda: is_whole(swarm, least_index), WHOLE_LIMIT_S, 0.1):
        reported = [
            (peer.number, status.state, status.index) for peer in swarm.peers.values() if (status := peer.status())
        ]
        raise MachineError(f"no whole swarm after {WHOLE_LIMIT_S:.0f} s: {reported}", "peers that train on one head")


def look_for(watch: Watch, seconds: float) -> None:
    """Look at everybody a few times a second for so long."""
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        watch.look()
        time.sleep(0.2)


@dataclass(frozen=True, slots=True)
class Commit:
    """A commit by one peer's log."""

    index: int
    unix_s: float


def commits_of(peer: BenchPeer, since_s: float, until_s: float) -> Sequence[Commit]:
    """The commits that a peer's log has in this time (Unix seconds), oldest first."""
    peer.log.poll()
    found = []
    for line in peer.log.since(since_s):
        match = COMMITTED.search(line.text)
        if match is not None and line.unix_s < until_s:
            found.append(Commit(int(match.group(1)), line.unix_s))
    return found


def pace_s(commits: Sequence[Commit]) -> float | None:
    """Seconds a round; None for fewer than two commits."""
    if len(commits) < 2 or commits[-1].index == commits[0].index:
        return None
    return (commits[-1].unix_s - commits[0].unix_s) / (commits[-1].index - commits[0].index)
