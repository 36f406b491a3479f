"""`potluck demo`: a host and three or four peers as real processes on loopback. Looks only at their HTTP JSON and files.

The shell of peer/demo/script_core.py: look, ask the core, obey, draw; then check the checkpoint, plot, sample, sum up.
"""

from __future__ import annotations

import socket
import tempfile
import time
import tomllib
import urllib.error
import urllib.request
from contextlib import ExitStack
from dataclasses import dataclass, field
from http.client import HTTPException
from pathlib import Path
from typing import Final, TypeVar

import tomli_w
from pydantic import BaseModel, ValidationError

from peer.demo.observation import CheckpointFile, HostStatus, Observation, PeerReport
from peer.demo.options import DemoOptions
from peer.demo.processes import ProcessGroup, Running, open_processes, run_potluck, wait_for_invite
from peer.demo.screen import open_screen
from peer.demo.script_core import (
    CASTS,
    SLOWDOWN,
    START_SHARE,
    VICTIM,
    WHOLE_MODEL,
    Action,
    Cast,
    DemoState,
    round_counting_victim,
    step,
)
from peer.demo.summary import DemoSummary, Facts, newest_checkpoint, summarise
from peer.owner.controls_core import OwnerPause
from peer.owner.pause_file import remove_pause, write_pause
from peer.status.status import FINAL_STATUS_FILE
from protocol.errors import MachineError, PotluckError, StorageError

Model = TypeVar("Model", bound=BaseModel)

CHECKPOINT_MANIFEST: Final = "manifest.json"
FEWEST_ROUNDS: Final = 10
"""Of the default run's tokens; fewer tokens are as many rounds, so that who is killed half-way has rounds to come back to."""

EXPERT_DOMAINS: Final = ("python", "english")
"""What the experts' documents are of; which expert gets which is the router's to find out."""

LANE_STEPS: Final = 20
"""Inner steps of a lane in a round, as many as a peer of the default run takes."""

EXPERT_PREFIX: Final = "expert-"
LOOK_INTERVAL_S: Final = 0.5
HTTP_TIMEOUT_S: Final = 2.0
LAST_CHECKPOINT_LIMIT_S: Final = 60.0
VERIFY_LIMIT_S: Final = 60.0


@dataclass
class _Swarm:
    """The running processes and what has been seen of them."""

    processes: ProcessGroup
    directory: Path
    host: Running
    host_url: str
    invite: str
    cast: Cast = WHOLE_MODEL
    peers: dict[int, Running] = field(default_factory=dict)
    peer_urls: dict[int, str] = field(default_factory=dict)
    seen: Observation = field(default_factory=lambda: Observation(host=None, reports={}, peer_ids={}, exits={}))
    lost_bytes_up: int = 0
    lost_bytes_down: int = 0
    restarted_unix_s: float | None = None

    def peer_dir(self, number: int) -> Path:
        return self.directory / f"peer-{number}"

    def start_peer(self, number: int) -> None:
        port = _free_port()
        self.peer_urls[number] = f"http://127.0.0.1:{port}/status.json"
        arguments = ["join", self.invite, "--state-dir", str(self.peer_dir(number)), "--http-port", str(port)]
        arguments += ["--listen-host", "127.0.0.1", "--device", "cpu", "--num-threads", "1"]
        expert = self.cast.expert_of(number)
        if expert is not None:
            arguments += ["--expert", str(expert)]
        if number == self.cast.slow_peer:
            arguments += ["--slowdown", str(SLOWDOWN)]
        self.peers[number] = self.processes.start(f"peer-{number}", arguments)

    def look(self) -> Observation:
        """Ask everybody once and remember what was answered."""
        host = fetch(self.host_url, HostStatus) or self.seen.host
        reports = {n: fetch(url, PeerReport) or self.seen.reports.get(n) for n, url in self.peer_urls.items()}
        known = {n: report for n, report in reports.items() if report is not None}
        exits = {n: code for n, peer in self.peers.items() if (code := peer.exit_code()) is not None}
        self.seen = Observation(
            host=host,
            reports=known,
            peer_ids={**self.seen.peer_ids, **{n: report.peer for n, report in known.items()}},
            exits=exits,
            rounds={**self.seen.rounds, **{row.index: row for row in (host.rounds if host else ())}},
            heldout={**self.seen.heldout, **{point.index: point for point in (host.heldout if host else ())}},
        )
        return self.seen

    def kill_victim(self) -> None:
        self.peers[VICTIM].kill_group()

    def restart_victim(self) -> None:
        # until here what the killed process told last is in the reports, and counted with them
        last = self.seen.reports.pop(VICTIM, None)
        if last is not None:
            self.lost_bytes_up += last.bytes_up
            self.lost_bytes_down += last.bytes_down
        self.start_peer(VICTIM)
        self.restarted_unix_s = self.peers[VICTIM].started_unix_s

    def pause_others(self) -> None:
        for number in self.peers.keys() - {VICTIM}:
            write_pause(self.peer_dir(number), OwnerPause())

    def resume_others(self) -> None:
        for number in self.peers.keys() - {VICTIM}:
            remove_pause(self.peer_dir(number))


def run_demo(options: DemoOptions) -> int:
    """Run the whole demo; 0 when every promise held, 1 otherwise.

    Raises:
        ConfigError, StorageError: as `DemoOptions.check`, or something could not be written in the end.
        MachineError: the host did not come up.
    """
    options.check()
    started_s = time.monotonic()
    with ExitStack() as stack:
        if options.directory is None:
            directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="potluck-demo-")))
        else:
            directory = options.directory.absolute()
            _make(directory)
        processes = stack.enter_context(open_processes(directory / "logs"))
        try:
            swarm = _start_swarm(processes, directory, options)
        except MachineError as error:
            if options.directory is not None:
                raise
            # The log that it names goes with the temporary folder.
            raise MachineError(error.found, error.expected, "see why with --dir DIR, which keeps the logs") from error
        state, gave_up = _watch(swarm, DemoState(started_s=started_s, limit_s=options.limit_s, cast=swarm.cast))
        summary = _conclude(swarm, state, gave_up, options, started_s)
        if options.json_file is not None:  # before the sample, which takes its time on a busy machine
            _write(options.json_file, summary.model_dump_json(indent=2) + "\n")
        _show_outcome(summary, directory if options.directory else None)
    return 0 if summary.ok else 1


def _make(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StorageError(f"{directory} cannot be made ({error.strerror})", "a writable place", "see --dir") from error


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf8")
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable place", "see --json") from error


def _start_swarm(processes: ProcessGroup, directory: Path, options: DemoOptions) -> _Swarm:
    cast, run_file = CASTS[options.shards], directory / "run.toml"
    run_file.write_text(demo_run_toml(options.total_tokens, cast), encoding="utf8")
    port = _free_port()
    arguments = ["host", str(run_file), "--state-dir", str(directory / "host"), "--listen-host", "127.0.0.1"]
    host = processes.start("host", [*arguments, "--http-port", str(port)])
    packed = "the Python standard library" + (" and docstrings, for two experts" if cast.num_experts else "")
    print(f"Opening the run: packing {packed}, starting the host...", flush=True)
    invite = wait_for_invite(host, START_SHARE * options.limit_s)
    swarm = _Swarm(processes, directory, host, f"http://127.0.0.1:{port}/api/status", invite, cast)
    for number in range(1, cast.num_peers + 1):
        swarm.start_peer(number)
    return swarm


def demo_run_toml(total_tokens: int, cast: Cast = WHOLE_MODEL) -> str:
    """The default run, of this many tokens, with all peers from the first round and a checkpoint each fourth. With experts each
    feed-forward is half of everybody's and half an expert's: a token passes as much as in the default model.

    Fewer tokens make its rounds smaller, down to one local step of each peer. It trains with AdamW, whose steps are cheaper on a
    processor: it shows rounds.
    """
    from protocol.run.manifest import default_run_toml

    run = tomllib.loads(default_run_toml())
    a_step_each = cast.num_peers * run["inner"]["batch_tokens"]
    least = max(a_step_each, total_tokens // FEWEST_ROUNDS)
    del run["inner"]["optimizer"]
    run["round"]["target_tokens"] = min(run["round"]["target_tokens"], least)
    run["run"] |= {"name": "demo", "total_tokens": total_tokens, "min_members": cast.num_peers}
    if cast.num_stages:
        _in_lanes(run, total_tokens, cast)
    if cast.num_experts:
        shared_dim = run["model"]["ffn_dim"] // 2
        run["run"]["shards"] = "expert"
        run["model"]["ffn_dim"] = shared_dim
        run["experts"] = {"num_experts": cast.num_experts, "ffn_dim": shared_dim}
        run["data"] |= {"source": "domains", "domains": ", ".join(EXPERT_DOMAINS)}
    run["checkpoint"] = {**run.get("checkpoint", {}), "every_rounds": 4}
    return tomli_w.dumps(run)


def _in_lanes(run: dict[str, dict[str, object]], total_tokens: int, cast: Cast) -> None:
    """The same model in stages, and rounds of as many tokens, of as many lanes as there are peers for."""
    num_lanes, batch_tokens = cast.num_peers // cast.num_stages, int(str(run["inner"]["batch_tokens"]))
    of_a_step = num_lanes * batch_tokens
    inner_steps = max(1, min(LANE_STEPS, total_tokens // FEWEST_ROUNDS // of_a_step))
    run["run"]["shards"] = "pipeline"
    run["model"]["is_tied"] = False
    run["round"] |= {"mode": "blocking", "target_tokens": inner_steps * of_a_step}
    run["pipeline"] = {"stages": cast.num_stages, "inner_steps": inner_steps}


def _watch(swarm: _Swarm, state: DemoState) -> tuple[DemoState, str]:
    """Look and obey until the core says that it is over; the reason when it gave up, else an empty string."""
    with open_screen() as screen:
        while True:
            seen = swarm.look()
            state, actions, reason = step(state, seen, time.monotonic())
            screen.show(seen, state, reason)
            for action in actions:
                if action is Action.KILL_VICTIM:
                    swarm.kill_victim()
                elif action is Action.RESTART_VICTIM:
                    swarm.restart_victim()
                elif action is Action.PAUSE_OTHERS:
                    swarm.pause_others()
                elif action is Action.RESUME_OTHERS:
                    swarm.resume_others()
                elif action is Action.FINISH:
                    _wait_for_last_checkpoint(swarm)
                    return state, ""
                elif action is Action.GIVE_UP:
                    return state, reason
            time.sleep(LOOK_INTERVAL_S)


def _wait_for_last_checkpoint(swarm: _Swarm) -> None:
    """The host writes the final checkpoint after the last round; look until it is listed or the host is gone."""
    deadline_s = time.monotonic() + LAST_CHECKPOINT_LIMIT_S
    while time.monotonic() < deadline_s and swarm.host.exit_code() is None:
        seen = swarm.look()
        checkpoint = newest_checkpoint(seen.host)
        if checkpoint and seen.host and checkpoint.index >= max(seen.rounds, default=0):
            return
        time.sleep(LOOK_INTERVAL_S)


def _conclude(swarm: _Swarm, state: DemoState, gave_up: str, options: DemoOptions, started_s: float) -> DemoSummary:
    """Plot, verify, sample and judge."""
    from peer.demo.plot import plot_losses

    seen = swarm.seen
    about = "three peers, one model, Python's own source text"
    if swarm.cast.num_experts:
        about = "four peers, two experts, source text and English"
    elif swarm.cast.num_stages:
        about = "six peers in two lanes of three stages, Python's own source text"
    plot_losses(seen, options.plot_file, title=f"Potluck demo: {about}")
    final = {n: report for n in swarm.peers if (report := read_final_status(swarm.peer_dir(n))) is not None}
    facts = Facts(
        checkpoint_verified=_verify_newest(seen),
        checkpoint_units=_newest_units(seen),
        rounds_while_down=state.index_at_restart - state.index_at_kill,
        rejoin_s=_rejoin_s(swarm, state, final.get(VICTIM)),
        others_paused_s=_others_paused_s(state),
        lost_bytes_up=swarm.lost_bytes_up,
        lost_bytes_down=swarm.lost_bytes_down,
        plot=str(options.plot_file),
        seconds=round(time.monotonic() - started_s, 1),
    )
    return summarise(seen, final, facts, gave_up, swarm.cast)


def _rejoin_s(swarm: _Swarm, state: DemoState, victim: PeerReport | None) -> float | None:
    """From the new process's start to the first certificate that counts it, by its own clock, else by the host's."""
    started_unix_s = swarm.restarted_unix_s
    counted = None if state.cast.num_stages else round_counting_victim(swarm.seen, state.index_at_restart)
    own_unix_s = victim.first_counted_unix_s if victim else None
    if started_unix_s is None or (counted is None and (own_unix_s is None or not state.cast.num_stages)):
        return None
    return round((own_unix_s or (counted.unix_s if counted else 0.0)) - started_unix_s, 1)


def _others_paused_s(state: DemoState) -> float:
    if state.paused_s is None:
        return 0.0
    return round((time.monotonic() if state.resumed_s is None else state.resumed_s) - state.paused_s, 1)


def _verify_newest(seen: Observation) -> bool:
    checkpoint = newest_checkpoint(seen.host)
    if checkpoint is None:
        return False
    try:
        run_potluck(["checkpoint", "verify", checkpoint.path], VERIFY_LIMIT_S)
    except PotluckError as error:
        print(f"potluck: {error.one_line()}")
        return False
    return True


def _newest_units(seen: Observation) -> dict[str, str]:
    """The state root of each unit of the newest checkpoint; nothing of a run of one unit, or where it cannot be read."""
    checkpoint = newest_checkpoint(seen.host)
    try:
        data = (Path(checkpoint.path) / CHECKPOINT_MANIFEST).read_bytes() if checkpoint else b"{}"
        units = CheckpointFile.model_validate_json(data).units
    except (OSError, ValidationError):
        return {}
    return {unit.unit: unit.state_root for unit in units or ()}


def _show_outcome(summary: DemoSummary, kept: Path | None) -> None:
    from peer.demo.screen import print_summary

    sample = ""
    if summary.checkpoint and summary.ok:
        from peer.models.checkpoint_sample import sample_from_checkpoint

        path, experts = (
            Path(summary.checkpoint),
            range(sum(unit.startswith(EXPERT_PREFIX) for unit in summary.unit_roots)),
        )
        samples = [f"expert {expert}: {sample_from_checkpoint(path, expert=expert)}" for expert in experts]
        sample = "\n\n".join(samples) or sample_from_checkpoint(path)
    print_summary(summary, sample, kept)


def fetch(url: str, model: type[Model]) -> Model | None:
    """The JSON at `url` as a typed value, None when nobody answers (yet) or the answer is not what it should be."""
    try:
        with urllib.request.urlopen(url, timeout=HTTP_TIMEOUT_S) as response:
            return model.model_validate_json(response.read())
    except (urllib.error.URLError, HTTPException, OSError, ValidationError):
        return None


def read_final_status(state_dir: Path) -> PeerReport | None:
    """The report that a peer leaves behind when it exits, None when it left none."""
    try:
        return PeerReport.model_validate_json((state_dir / FINAL_STATUS_FILE).read_bytes())
    except (OSError, ValidationError):
        return None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
