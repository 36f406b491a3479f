from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest
import trio
from pydantic import BaseModel

import peer.demo.plot
import peer.demo.run
import peer.models.checkpoint_sample
from averaging.host.http import bind_http, serve_http
from peer.demo.observation import HostStatus, PeerReport
from peer.demo.options import DemoOptions
from peer.demo.run import CHECKPOINT_MANIFEST, FEWEST_ROUNDS, demo_run_toml, fetch, read_final_status, run_demo
from peer.demo.script_core import EXPERTS, STAGES, VICTIM
from peer.demo.summary import DemoSummary
from peer.owner.pause_file import PAUSE_FILE
from peer.status.status import FINAL_STATUS_FILE, PeerStatus, write_final_status
from peer.status.status_http import peer_app
from protocol.errors import MachineError
from protocol.run.manifest import load_run_config
from tests.peer.demo_world import FOUR, ROOT, UNIT_ROOTS, holder, host_status, round_row

STATUS = PeerStatus(peer="12D3KooW", name="calm otter", state="training", state_root="ab" * 32)


def test_demo_run_is_the_default_run_with_three_peers_from_the_start(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(demo_run_toml(200_000), encoding="utf8")
    config = load_run_config(path)
    assert (config.run.total_tokens, config.run.min_members) == (200_000, 3)
    assert tomllib.loads(path.read_text())["run"]["name"] == "demo"


def test_demo_of_experts_costs_a_token_what_the_default_model_costs(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(demo_run_toml(200_000, EXPERTS), encoding="utf8")
    config = load_run_config(path)
    assert (config.run.shards, config.run.min_members, config.data.domain_names) == ("expert", 4, ("python", "english"))
    assert config.experts is not None
    whole = tomllib.loads(demo_run_toml(200_000))["model"]["ffn_dim"]
    assert config.model.ffn_dim + config.experts.top_k * config.experts.ffn_dim == whole


def test_demo_of_stages_has_two_lanes_of_the_default_model_and_rounds_of_both(tmp_path: Path) -> None:
    path = tmp_path / "run.toml"
    path.write_text(demo_run_toml(1_228_800, STAGES), encoding="utf8")
    config = load_run_config(path)
    assert config.stages is not None
    assert (config.run.shards, config.run.min_members, config.stages.num_stages) == ("pipeline", 6, 3)
    assert config.pipeline is not None
    assert config.round.target_tokens == 2 * config.pipeline.inner_steps * config.inner.batch_tokens
    assert config.run.total_tokens // config.round.target_tokens >= FEWEST_ROUNDS
    assert tomllib.loads(demo_run_toml(1, STAGES))["pipeline"]["inner_steps"] == 1


@pytest.mark.parametrize("keeps", [True, False])
def test_host_that_does_not_come_up_is_told_with_a_log_that_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    def fails(*_: object) -> None:
        raise MachineError("no invite yet", "an invite", "read host.log")

    monkeypatch.setattr(peer.demo.run, "_start_swarm", fails)
    directory = tmp_path / "kept" if keeps else None
    with pytest.raises(MachineError, match=r"read host\.log" if keeps else "--dir DIR, which keeps the logs"):
        peer.demo.run.run_demo(DemoOptions(directory, None, tmp_path / "curve.png", 1_228_800, 900.0))


def test_few_tokens_are_as_many_rounds_but_none_has_less_than_a_step_of_each_peer() -> None:
    rounds = {
        tokens: tomllib.loads(demo_run_toml(tokens))["round"]["target_tokens"] for tokens in (1_228_800, 200_000, 1)
    }
    assert rounds == {1_228_800: 122_880, 200_000: 20_000, 1: 3 * 2048}
    assert tomllib.loads(demo_run_toml(1 << 40))["round"]["target_tokens"] == 122_880


async def test_fetch_reads_a_served_status_as_a_typed_value() -> None:
    listener = bind_http("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/status.json"
    async with trio.open_nursery() as nursery:
        await nursery.start(serve_http, listener, peer_app(lambda: STATUS))
        with trio.fail_after(10):
            report = await trio.to_thread.run_sync(fetch, url, PeerReport)
        nursery.cancel_scope.cancel()
    assert report is not None
    assert report.state_root == STATUS.state_root


def test_fetch_gives_none_when_nobody_listens() -> None:
    with bind_http("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]
    assert fetch(f"http://127.0.0.1:{port}/status.json", PeerReport) is None


def test_final_status_is_read_back_and_absent_before_it_is_written(tmp_path: Path) -> None:
    assert read_final_status(tmp_path) is None
    write_final_status(tmp_path, STATUS)
    report = read_final_status(tmp_path)
    assert report is not None
    assert report.name == "calm otter"


class _Process:
    """A started process that ends when it is killed, or the run is over."""

    def __init__(self, story: _Story, arguments: Sequence[str]) -> None:
        self._story, self.arguments, self.started_unix_s, self._code = story, arguments, 1006.0, 0

    def option(self, name: str) -> str:
        return self.arguments[list(self.arguments).index(name) + 1]

    def exit_code(self) -> int | None:
        return self._code or (0 if self._story.is_over else None)

    def kill_group(self) -> None:
        self._code = -9


class _Story:
    """The processes of a demo of experts, and what they tell: half-way peer 2 is killed, then a round without it, then one with it;
    where it starts `slowly`, two without it.
    """

    def __init__(self, folder: Path, *, slowly: bool = False) -> None:
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        units = [{"unit": unit, "state_root": root} for unit, root in {"trunk": ROOT, **UNIT_ROOTS}.items()]
        (checkpoint / CHECKPOINT_MANIFEST).write_text(json.dumps({"units": units}))
        everybody, others = tuple(FOUR.values()), tuple(name for name in FOUR.values() if name != FOUR[VICTIM])
        without = (6, 7) if slowly else (6,)
        rounds = [round_row(index, others if index in without else everybody) for index in range(1, 11)]
        curve = (5.6, 3.0, 2.4, 2.2, 2.1, 2.0)
        statuses = [
            host_status(tuple(rounds[:index]), curve) for index in (0, 1, 5, 6, 7, *([7, 8] if slowly else []), 10)
        ]
        rows = [row.model_copy(update={"path": str(checkpoint)}) for row in statuses[-1].checkpoints]
        statuses[-1] = statuses[-1].model_copy(update={"checkpoints": tuple(rows)})
        self._statuses, self.is_over = statuses, False
        self.started: dict[str, list[_Process]] = {}
        self.paused: list[set[int]] = []
        """The peers that are paused, each time that the host is looked at."""

    def start(self, name: str, arguments: Sequence[str]) -> _Process:
        """As ProcessGroup."""
        self.started.setdefault(name, []).append(_Process(self, arguments))
        if name != "host":
            identity = Path(self.started[name][-1].option("--state-dir")) / "identity"
            identity.parent.mkdir(exist_ok=True)
            identity.touch()
        return self.started[name][-1]

    def fetch(self, url: str, model: type[BaseModel]) -> BaseModel | None:
        """What is served there."""
        if model is HostStatus:
            folders = {number: self.started[f"peer-{number}"][-1].option("--state-dir") for number in FOUR}
            self.paused.append({number for number, folder in folders.items() if (Path(folder) / PAUSE_FILE).exists()})
            found = self._statuses.pop(0) if len(self._statuses) > 1 else self._statuses[0]
            if len(self._statuses) == 1 and found is self._statuses[0]:
                self._leave()
            return found
        number = next(n for n in FOUR if f":{self.started[f'peer-{n}'][-1].option('--http-port')}/" in url)
        worker_state = "training" if len(self._statuses) == 2 else "starting"  # as it is counted next
        return holder(number).model_copy(update={"bytes_up": 10, "bytes_down": 20, "worker_state": worker_state})

    def _leave(self) -> None:
        for number in FOUR:
            folder = Path(self.started[f"peer-{number}"][-1].option("--state-dir"))
            folder.mkdir(exist_ok=True)
            report = holder(number).model_copy(update={"bytes_up": 100, "bytes_down": 200})
            (folder / FINAL_STATUS_FILE).write_text(report.model_dump_json())
        self.is_over = True


def test_demo_of_experts_starts_two_holders_of_each_kills_one_and_judges_each_experts_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the demo but what its processes do, which tests of real processes have with experts of their own."""
    story, ran = _Story(tmp_path), list[Sequence[str]]()
    told, kept = tmp_path / "told.json", tmp_path / "demo"
    assert _run(story, ran, DemoOptions(kept, told, tmp_path / "plot.png", 200_000, 60.0, "expert"), monkeypatch) == 0
    assert load_run_config(kept / "run.toml").run.shards == "expert"
    assert [story.started[f"peer-{n}"][-1].option("--expert") for n in FOUR] == ["0", "1", "0", "1"]
    assert {name: len(processes) for name, processes in story.started.items() if len(processes) > 1} == {"peer-2": 2}
    summary = DemoSummary.model_validate_json(told.read_bytes())
    assert (summary.ok, summary.failures) == (True, ())
    assert summary.unit_roots == {unit: (root,) for unit, root in UNIT_ROOTS.items()}
    assert (summary.rejoin_s, summary.rounds_committed) == (1.0, 10)
    assert (summary.bytes_up, summary.bytes_down) == (4 * 100 + 10, 4 * 200 + 20), "the killed process's, once"
    assert [arguments[:2] for arguments in ran] == [["checkpoint", "verify"]]
    assert set(map(frozenset, story.paused)) == {frozenset()}, "who was killed was back in time"


def test_demo_pauses_the_others_where_who_was_killed_starts_so_slowly_that_the_run_would_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story, told = _Story(tmp_path, slowly=True), tmp_path / "told.json"
    options = DemoOptions(tmp_path / "demo", told, tmp_path / "plot.png", 200_000, 60.0, "expert")
    assert _run(story, [], options, monkeypatch) == 0
    assert [paused for paused in story.paused if paused] == [{1, 3, 4}]
    assert story.paused[-1] == set(), "and lets them go on"
    assert DemoSummary.model_validate_json(told.read_bytes()).rejoin_s == 2.0


def _run(story: _Story, ran: list[Sequence[str]], options: DemoOptions, monkeypatch: pytest.MonkeyPatch) -> int:
    for name, stand_in in (
        ("open_processes", lambda _: nullcontext(story)),
        ("wait_for_invite", lambda *_: "invite"),
        ("fetch", story.fetch),
        ("run_potluck", lambda arguments, _: ran.append(arguments)),
        ("LOOK_INTERVAL_S", 0.0),
    ):
        monkeypatch.setattr(peer.demo.run, name, stand_in)
    monkeypatch.setattr(peer.demo.plot, "plot_losses", lambda *_, **__: None)
    monkeypatch.setattr(peer.models.checkpoint_sample, "sample_from_checkpoint", lambda _, expert: f"text {expert}")
    return run_demo(options)
