"""`potluck demo`: a host and some peers as real processes on loopback; one peer is killed half-way and comes back.

The demo uses only public sources: the JSON that they serve, and the files that they leave.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import tempfile
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError
from rich.console import Console

from averaging.host.http_client import get_json, read_status_address
from averaging.system.output_file import is_printed, write_output
from averaging.system.temporary_folder import temporary_folder
from peer.demo.processes import ProcessGroup, Running, open_processes, wait_for_invite
from peer.demo.screen import Screen, open_screen, plot_losses, print_summary
from peer.demo.summary import CASTS, VICTIM, Cast, DemoSummary, HostStatus, Seen, broken_promises, summarise
from peer.owner.controls_core import OwnerPause
from peer.owner.pause_file import remove_pause, write_pause
from peer.status.status import PeerStatus, last_status
from protocol.errors import ConfigError, MachineError, PotluckError, StorageError

Model = TypeVar("Model", bound=BaseModel)

MAX_TOKENS: Final = 1 << 53
"""The limit of a run.toml."""

USUAL_TOKENS: Final = 1_228_800
"""The demo's default. With fewer the loss need not get below the pair model's."""

MAX_LIMIT_S: Final = 7 * 86400.0

FEWEST_ROUNDS: Final = 10
"""With fewer tokens the rounds are smaller instead. A peer that is killed half-way needs rounds to come back to."""

LANE_STEPS: Final = 20
"""Inner steps of a lane in a round, as many as a peer of the default run takes."""

SLOWDOWN: Final = 3.0
START_SHARE: Final = 0.5
"""Share of the time limit for the first round to commit."""

DOWN_PATIENCE_S: Final = 60.0
"""A round without the victim commits within a third of this on a machine that has nothing else to do. The victim's return waits for so
long at most.
"""

PAUSE_SHARE: Final = 0.7
"""If the victim is not back at this share of the tokens, the others wait for it. Otherwise the run would end before it is
counted.
"""

LOOK_INTERVAL_S: Final = 0.5
LAST_CHECKPOINT_LIMIT_S: Final = 60.0
VERIFY_LIMIT_S: Final = 60.0
CHECKPOINT_MANIFEST: Final = "manifest.json"
_REMEDY: Final = "see: potluck demo --help"


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """The demo's options.

    Attributes:
        directory: keeps all files; None for a temporary folder that is removed at the end.
        json_file: file of the machine-readable summary, None for none.
        plot_file: file of the loss curve (PNG).
        total_tokens: the run ends at this many tokens.
        limit_s: the demo gives up after this time.
        shards: the kind of shards that peers hold, one of CASTS.
        one_round: train the fewest tokens, in one round, and kill nobody. `total_tokens` is then not used, and nothing is plotted.
    """

    directory: Path | None
    json_file: Path | None
    plot_file: Path
    total_tokens: int
    limit_s: float
    shards: str = "data"
    one_round: bool = False

    @property
    def cast(self) -> Cast:
        """The peers of this demo. `shards` must be known."""
        cast = replace(CASTS[self.shards], is_loss_judged=self.total_tokens >= USUAL_TOKENS)
        return cast.for_one_round() if self.one_round else cast

    @property
    def results(self) -> tuple[Path, ...]:
        """The files that the demo writes for the user, or "-"."""
        files = (None if self.one_round else self.plot_file, self.json_file)
        return tuple(file for file in files if file is not None)

    def check(self) -> None:
        """Reject bad options now instead of minutes later. Writes nothing.

        Raises:
            ConfigError: a number or a folder that cannot work.
            StorageError: a file that could not be written at the end.
        """
        if not 1 <= self.total_tokens <= MAX_TOKENS:
            raise ConfigError(f"tokens is {self.total_tokens}", f"1 to {MAX_TOKENS}", _REMEDY)
        if not 0 < self.limit_s <= MAX_LIMIT_S:  # rejects NaN, too
            raise ConfigError(f"limit-s is {self.limit_s:g}", f"seconds, more than 0, at most {MAX_LIMIT_S:g}", _REMEDY)
        if self.shards not in CASTS:
            raise ConfigError(f"shards is {self.shards!r}", " or ".join(CASTS), _REMEDY)
        try:
            if self.directory is not None and self.directory.exists() and any(self.directory.iterdir()):
                raise ConfigError(f"{self.directory} is not empty", "a new or empty folder", "give another with --dir")
        except OSError as error:
            found = f"{self.directory} cannot be used ({error.strerror})"
            raise ConfigError(found, "a new or empty folder", _REMEDY) from error
        if len(self.results) > len(set(self.results)):
            found = f"--plot and --json are both {self.json_file}"
            raise ConfigError(found, "two places", "give another with --plot")
        plot_file = None if self.one_round else self.plot_file
        for flag, path in (("--plot", plot_file), ("--json", self.json_file)):
            if path is not None and not is_printed(path) and not _can_be_written(path):
                raise StorageError(f"{path} cannot be written", "a file in a folder", f"give another with {flag}")


def _can_be_written(path: Path) -> bool:
    try:
        is_possible = path.parent.is_dir() and not path.is_dir()
        return is_possible and os.access(path if path.exists() else path.parent, os.W_OK)
    except OSError:  # no file can have this name
        return False


class _GaveUp(Exception):
    """The demo cannot go on; the message says why."""


class _RunEnded(Exception):
    """Every peer has left: the run is complete."""


@dataclass
class Swarm:
    """The running processes and everything seen of them."""

    processes: ProcessGroup
    directory: Path
    cast: Cast
    host: Running
    invite: str
    screen: Screen
    started_s: float
    limit_s: float
    peers: dict[int, Running] = field(default_factory=dict)
    seen: Seen = field(default_factory=Seen)
    others_paused_s: float = 0.0
    index_at_kill: int = 0
    index_at_restart: int | None = None
    has_gone_on: bool = False

    def folder(self, number: int) -> Path:
        """The state folder of a peer."""
        return self.directory / f"peer-{number}"

    def start_peer(self, number: int) -> None:
        """Start a peer, or restart it on its folder."""
        arguments = ["join", self.invite, "--state-dir", str(self.folder(number)), "--listen-host", "127.0.0.1"]
        arguments += ["--device", "cpu", "--num-threads", "1"]
        if self.cast.experts:
            arguments += ["--expert", str(self.cast.experts[number - 1])]
        if number == self.cast.slow_peer:
            arguments += ["--slowdown", str(SLOWDOWN)]
        self.peers[number] = self.processes.start(f"peer-{number}", arguments)

    def observe(self) -> None:
        """Query all processes once and store their answers."""
        host = read_json(self.directory / "host", "/api/status", HostStatus)
        if host is not None:
            self.seen.add_host(host)
        for number in self.peers:
            status = read_json(self.folder(number), "/status.json", PeerStatus)
            if status is not None:
                self.seen.peers[number], self.seen.peer_ids[number] = status, status.peer
        codes = {number: peer.exit_code() for number, peer in self.peers.items()}
        self.seen.exits = {number: code for number, code in codes.items() if code is not None}

    def wait(self, stage: str, until: Callable[[], bool], reason: str = "", within_s: float = math.inf) -> bool:
        """Query until the condition holds; returns whether it did in time.

        Raises:
            _GaveUp: a peer failed, or the demo's limit is over.
            _RunEnded: every peer has left.
        """
        end_s = time.monotonic() + within_s
        while True:
            self.observe()
            for number, code in sorted(self.seen.exits.items()):
                if code != 0 and (number, stage) != (VICTIM, "down"):
                    raise _GaveUp(f"peer {number} left with exit code {code}")
            if time.monotonic() > self.started_s + self.limit_s:
                raise _GaveUp(f"not finished within {self.limit_s:.0f} s; --limit-s gives a slow machine more")
            self.screen.show(self.seen, stage, reason or (self.seen.host.reason if self.seen.host else "") or stage)
            if len(self.seen.exits) == self.cast.num_peers:
                raise _RunEnded
            if until():
                return True
            if time.monotonic() > end_s:
                return False
            time.sleep(LOOK_INTERVAL_S)

    def kill_victim(self) -> None:
        """Kill it without warning."""
        self.peers[VICTIM].kill_group()
        self.index_at_kill = self.seen.index

    def restart_victim(self) -> None:
        """Restart it on its folder. The byte counts of the killed process are kept."""
        last = self.seen.peers.pop(VICTIM, None)
        self.seen.lost_bytes = (last.bytes_up, last.bytes_down) if last else (0, 0)
        self.index_at_restart = max(self.seen.rounds, default=0)
        self.start_peer(VICTIM)

    @contextmanager
    def others_paused(self) -> Iterator[None]:
        """Pause all peers but the victim, like `potluck pause`."""
        begun_s, others = time.monotonic(), self.peers.keys() - {VICTIM}
        for number in others:
            write_pause(self.folder(number), OwnerPause())
        try:
            yield
        finally:
            for number in others:
                remove_pause(self.folder(number))
            self.others_paused_s = round(time.monotonic() - begun_s, 1)

    def goes_on(self) -> bool:
        """Whether a round has committed without the victim. In a pipeline the host lists only the members of the first stage."""
        if self.cast.num_stages:
            return max(self.seen.rounds, default=0) > self.index_at_kill
        return bool(self.seen.rounds_after(self.index_at_kill, with_victim=False))

    def is_victim_counted(self) -> bool:
        """Whether a round has counted the victim's new process; in a pipeline according to its own status."""
        if self.cast.num_stages:
            return VICTIM in self.seen.peers and self.seen.peers[VICTIM].rounds_counted > 0
        return bool(self.seen.rounds_after(self.index_at_restart or 0, with_victim=True))

    def is_victim_training(self) -> bool:
        """Whether the victim's training process is running."""
        return VICTIM in self.seen.peers and self.seen.peers[VICTIM].worker_state == "training"


def play(swarm: Swarm) -> None:
    """The whole sequence, until every peer has left.

    Raises:
        _GaveUp, _RunEnded: as `Swarm.wait`; the latter always.
    """
    seen = swarm.seen
    first_s = START_SHARE * swarm.limit_s
    if not swarm.wait("gathering", lambda: seen.index > 0, within_s=swarm.started_s + first_s - time.monotonic()):
        raise _GaveUp(f"no round has committed within {first_s:.0f} s; --limit-s gives a slow machine more")
    if swarm.cast.one_round:
        swarm.wait("ending", lambda: False)
    swarm.wait("training", lambda: seen.share >= 0.5)
    swarm.kill_victim()
    killed = f"half-way: peer {VICTIM} is killed without warning; the others go on"
    swarm.has_gone_on = swarm.wait("down", swarm.goes_on, killed, DOWN_PATIENCE_S)
    swarm.restart_victim()
    # In lanes the victim's replica only counts while others train, so they are not paused.
    latest = math.inf if swarm.cast.num_stages else PAUSE_SHARE
    back = f"peer {VICTIM} comes back"
    swarm.wait("rejoining", lambda: swarm.is_victim_counted() or seen.share >= latest, back)
    if not swarm.is_victim_counted():
        waits = f"starting takes long: the others wait until peer {VICTIM} trains"
        with swarm.others_paused():
            swarm.wait("rejoining", lambda: swarm.is_victim_counted() or swarm.is_victim_training(), waits)
        swarm.wait("rejoining", swarm.is_victim_counted, back)
    swarm.wait("rejoined", lambda: False)


def run_demo(options: DemoOptions) -> int:
    """Run the whole demo; 0 if all promises were kept, 1 otherwise.

    Raises:
        ConfigError, StorageError: as `DemoOptions.check`, or a file could not be written at the end.
        MachineError: the host did not start.
    """
    options.check()
    started_s, gave_up = time.monotonic(), ""
    with ExitStack() as stack:
        directory = options.directory.absolute() if options.directory else None
        if directory is None:
            above = temporary_folder("set TMPDIR to one, or name a folder with --dir")
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="potluck-demo-", dir=above)))
        run_toml = demo_run_toml(options.total_tokens, options.shards, one_round=options.one_round)
        _write(directory / "run.toml", run_toml)
        processes = stack.enter_context(open_processes(directory / "logs"))
        console = Console(highlight=False, stderr=any(map(is_printed, options.results)))
        with open_screen(options.cast, console) as screen:
            swarm = _start(processes, directory, options, screen, started_s)
            try:
                play(swarm)
            except _GaveUp as error:
                gave_up = str(error)
            except _RunEnded:
                _wait_for_last_checkpoint(swarm)
        summary = _conclude(swarm, gave_up, options.plot_file, started_s)
        if options.json_file is not None:  # before the sample, which is slow on a busy machine
            write_output(options.json_file, summary.model_dump_json(indent=2) + "\n", "see --json")
        sample, kept = _sample(summary, swarm.cast), directory if options.directory else None
        print_summary(summary, sample, kept, console, options.cast)
    return 0 if summary.ok else 1


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable place", "see --dir") from error
    write_output(path, text, "see --dir")


def _start(processes: ProcessGroup, directory: Path, options: DemoOptions, screen: Screen, started_s: float) -> Swarm:
    arguments = ["host", str(directory / "run.toml"), "--state-dir", str(directory / "host")]
    host = processes.start("host", [*arguments, "--listen-host", "127.0.0.1"])
    screen.show(Seen(), "opening", "packing the text, starting the host")
    try:
        invite = wait_for_invite(host, START_SHARE * options.limit_s)
    except MachineError as error:
        if options.directory is not None:
            raise
        # The log that it names is removed with the temporary folder.
        raise MachineError(error.found, error.expected, "see why with --dir DIR, which keeps the logs") from error
    swarm = Swarm(processes, directory, options.cast, host, invite, screen, started_s, options.limit_s)
    for number in range(1, swarm.cast.num_peers + 1):
        swarm.start_peer(number)
    return swarm


def demo_run_toml(total_tokens: int, shards: str = "data", *, one_round: bool = False) -> str:
    """The default run with this many tokens, all peers from the first round on and a checkpoint after every fourth.

    Fewer tokens make its rounds smaller, down to one local step of each peer. It trains with AdamW, whose steps are cheaper on a
    CPU. With experts, half of each feed-forward belongs to the trunk and half to an expert, so a token costs as much as in the
    default model. `one_round` takes the tokens of one local step of each peer instead, and ends with them.
    """
    from protocol.run.manifest import default_run_toml

    run = tomllib.loads(default_run_toml())
    cast = CASTS[shards].for_one_round() if one_round else CASTS[shards]
    batch_tokens = run["inner"]["batch_tokens"]
    if one_round:
        total_tokens = cast.num_peers // max(1, cast.num_stages) * batch_tokens
    least = max(cast.num_peers * batch_tokens, total_tokens // FEWEST_ROUNDS)
    del run["inner"]["optimizer"]
    run["round"]["target_tokens"] = min(run["round"]["target_tokens"], least)
    run["run"] |= {"name": "demo", "total_tokens": total_tokens, "min_members": cast.num_peers, "shards": shards}
    if cast.num_stages:
        of_a_step = cast.num_peers // cast.num_stages * batch_tokens
        inner_steps = max(1, min(LANE_STEPS, total_tokens // FEWEST_ROUNDS // of_a_step))
        run["model"]["is_tied"] = False
        run["round"] |= {"mode": "blocking", "target_tokens": inner_steps * of_a_step}
        run["pipeline"] = {"stages": cast.num_stages, "inner_steps": inner_steps}
    if cast.experts:
        run["model"]["ffn_dim"] //= 2
        run["experts"] = {"num_experts": len(set(cast.experts)), "ffn_dim": run["model"]["ffn_dim"]}
        run["data"] |= {"source": "domains", "domains": "python, english"}
    run["checkpoint"] = {**run.get("checkpoint", {}), "every_rounds": 4}
    return tomli_w.dumps(run)


def _wait_for_last_checkpoint(swarm: Swarm) -> None:
    """The host writes one more checkpoint after the last round."""
    end_s = time.monotonic() + LAST_CHECKPOINT_LIMIT_S
    while time.monotonic() < end_s and swarm.host.exit_code() is None:
        swarm.observe()
        if swarm.seen.checkpoint and swarm.seen.checkpoint.index >= max(swarm.seen.rounds, default=0):
            return
        time.sleep(LOOK_INTERVAL_S)


def _conclude(swarm: Swarm, gave_up: str, plot_file: Path, started_s: float) -> DemoSummary:
    """Plot, verify and judge. A demo that gave up fails for that reason alone, because every other failure follows from it."""
    seen, cast = swarm.seen, swarm.cast
    if not cast.one_round:
        plot_losses(seen, plot_file, title=f"Potluck demo: {cast.title}")
    final = {number: left for number in swarm.peers if (left := last_status(swarm.folder(number))) is not None}
    summary = summarise(seen, final, cast).model_copy(
        update={
            "rounds_before_kill": sum(index <= swarm.index_at_kill for index in seen.rounds),
            "rejoin_s": _rejoin_s(swarm, final.get(VICTIM)),
            "others_paused_s": swarm.others_paused_s,
            "plot": "" if cast.one_round else str(plot_file),
            "seconds": round(time.monotonic() - started_s, 1),
        }
    )
    if gave_up:
        return summary.model_copy(update={"failures": (gave_up,)})
    is_verified = _is_verified(swarm, summary.checkpoint)
    went_on = swarm.has_gone_on or (not cast.num_stages and swarm.goes_on())
    stored_roots = _stored_roots(summary.checkpoint)
    broken = tuple(broken_promises(summary, cast, stored_roots, is_verified=is_verified, went_on=went_on))
    return summary.model_copy(update={"ok": not broken, "failures": broken})


def _rejoin_s(swarm: Swarm, victim: PeerStatus | None) -> float | None:
    """Seconds from the new process's start to the first certificate that counts it, by its own clock or else the host's."""
    if swarm.index_at_restart is None:
        return None
    counted = swarm.seen.rounds_after(swarm.index_at_restart, with_victim=True)
    own_unix_s = victim.first_counted_unix_s if victim else None
    if own_unix_s is None if swarm.cast.num_stages else not counted:
        return None
    return round((own_unix_s or counted[0].unix_s) - swarm.peers[VICTIM].started_unix_s, 1)


def _is_verified(swarm: Swarm, checkpoint: str) -> bool:
    if not checkpoint:
        return False
    with suppress(subprocess.TimeoutExpired):
        verifying = swarm.processes.start("verify", ["checkpoint", "verify", checkpoint])
        return verifying.process.wait(VERIFY_LIMIT_S) == 0
    return False


def _stored_roots(checkpoint: str) -> dict[str, str]:
    """The state root of each unit of a checkpoint; empty for a run of one unit, or if it cannot be read."""
    try:
        units = json.loads((Path(checkpoint) / CHECKPOINT_MANIFEST).read_bytes()).get("units") or ()
        return {str(unit["unit"]): str(unit["state_root"]) for unit in units}
    except (OSError, ValueError, KeyError):
        return {}


def _sample(summary: DemoSummary, cast: Cast) -> str:
    """Text generated by the model; empty for a demo that failed or trained one round only."""
    if not summary.ok or cast.one_round:
        return ""
    from peer.models.checkpoint_sample import sample_from_checkpoint

    path, experts = Path(summary.checkpoint), sorted(set(cast.experts))
    samples = [f"expert {expert}: {sample_from_checkpoint(path, expert=expert)}" for expert in experts]
    return "\n\n".join(samples) or sample_from_checkpoint(path)


def read_json(folder: Path, path: str, model: type[Model]) -> Model | None:
    """The JSON that the daemon of this state folder serves at `path`; None if it does not answer (yet) or the answer is invalid."""
    try:
        return model.model_validate(get_json(read_status_address(folder) + path))
    except (PotluckError, ValidationError):
        return None
