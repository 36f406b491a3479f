from __future__ import annotations

import json
import math
import tomllib
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import trio
from pydantic import BaseModel

import peer.demo.run
import peer.models.checkpoint_sample
from averaging.host.http import bind_http, serve_http
from averaging.host.http_client import kept_status_address
from peer.demo.run import (
    CHECKPOINT_MANIFEST,
    FEWEST_ROUNDS,
    MAX_TOKENS,
    USUAL_TOKENS,
    DemoOptions,
    demo_run_toml,
    read_json,
    run_demo,
)
from peer.demo.summary import VICTIM, DemoSummary, HostStatus
from peer.owner.pause_file import PAUSE_FILE
from peer.status.status import PeerStatus, write_final_status
from peer.status.status_http import peer_app
from protocol.errors import ConfigError, MachineError, StorageError
from protocol.run.manifest import RunConfig, load_run_config
from tests.peer.demo_world import FOUR, ROOT, UNIT_ROOTS, holder, host_status, round_row


def _run_config(folder: Path, total_tokens: int, shards: str) -> RunConfig:
    path = folder / "run.toml"
    path.write_text(demo_run_toml(total_tokens, shards), encoding="utf8")
    return load_run_config(path)


def test_demo_run_is_the_default_run_with_three_peers_from_the_start(tmp_path: Path) -> None:
    config = _run_config(tmp_path, 200_000, "data")
    assert (config.run.name, config.run.total_tokens, config.run.min_members) == ("demo", 200_000, 3)


def test_demo_of_experts_costs_a_token_what_the_default_model_costs(tmp_path: Path) -> None:
    config = _run_config(tmp_path, 200_000, "expert")
    assert (config.run.shards, config.run.min_members, config.data.domain_names) == ("expert", 4, ("python", "english"))
    assert config.experts is not None
    whole = tomllib.loads(demo_run_toml(200_000))["model"]["ffn_dim"]
    assert config.model.ffn_dim + config.experts.top_k * config.experts.ffn_dim == whole


def test_demo_of_stages_has_two_lanes_of_the_default_model_and_rounds_of_both(tmp_path: Path) -> None:
    config = _run_config(tmp_path, 1_228_800, "pipeline")
    assert config.stages is not None
    assert (config.run.shards, config.run.min_members, config.stages.num_stages) == ("pipeline", 6, 3)
    assert config.pipeline is not None
    assert config.round.target_tokens == 2 * config.pipeline.inner_steps * config.inner.batch_tokens
    assert config.run.total_tokens // config.round.target_tokens >= FEWEST_ROUNDS
    assert tomllib.loads(demo_run_toml(1, "pipeline"))["pipeline"]["inner_steps"] == 1


def test_few_tokens_are_as_many_rounds_but_none_has_less_than_a_step_of_each_peer() -> None:
    rounds = {
        tokens: tomllib.loads(demo_run_toml(tokens))["round"]["target_tokens"] for tokens in (1_228_800, 200_000, 1)
    }
    assert rounds == {1_228_800: 122_880, 200_000: 20_000, 1: 3 * 2048}
    assert tomllib.loads(demo_run_toml(1 << 40))["round"]["target_tokens"] == 122_880


def _options(folder: Path) -> DemoOptions:
    return DemoOptions(None, None, folder / "plot.png", 1000, 900.0)


def test_only_a_demo_of_the_usual_tokens_promises_a_loss(tmp_path: Path) -> None:
    few, usual = _options(tmp_path), replace(_options(tmp_path), total_tokens=USUAL_TOKENS)
    assert (few.cast.is_loss_judged, usual.cast.is_loss_judged) == (False, True)


def test_results_on_standard_output_may_not_be_two(tmp_path: Path) -> None:
    both = replace(_options(tmp_path), json_file=Path("-"), plot_file=Path("-"))
    with pytest.raises(ConfigError, match="give another with --plot"):
        both.check()
    replace(both, one_round=True).check()
    replace(both, plot_file=tmp_path / "plot.png").check()


def test_usual_options_are_fine_and_nothing_is_written(tmp_path: Path) -> None:
    (tmp_path / "old.json").write_text("{}")
    kept = replace(_options(tmp_path), directory=tmp_path / "new" / "folder", json_file=tmp_path / "old.json")
    for shards in ("data", "expert", "pipeline"):
        replace(kept, shards=shards).check()
    assert [path.name for path in tmp_path.iterdir()] == ["old.json"]


@pytest.mark.parametrize("total_tokens", [0, -1, MAX_TOKENS + 1])
def test_tokens_that_no_run_can_have_are_refused(tmp_path: Path, total_tokens: int) -> None:
    with pytest.raises(ConfigError, match=f"tokens is {total_tokens}"):
        replace(_options(tmp_path), total_tokens=total_tokens).check()


@pytest.mark.parametrize("limit_s", [0.0, -1.0, math.nan, math.inf])
def test_limit_that_is_no_time_is_refused(tmp_path: Path, limit_s: float) -> None:
    with pytest.raises(ConfigError, match="limit-s is"):
        replace(_options(tmp_path), limit_s=limit_s).check()


def test_shards_that_no_demo_has_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="shards is 'layers'; expected data or expert or pipeline"):
        replace(_options(tmp_path), shards="layers").check()


def test_folder_of_an_earlier_demo_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text("")
    with pytest.raises(ConfigError, match=r"is not empty.*--dir"):
        replace(_options(tmp_path), directory=tmp_path).check()
    with pytest.raises(ConfigError, match="Not a directory"):
        replace(_options(tmp_path), directory=tmp_path / "run.toml").check()


@pytest.mark.parametrize("name", ["absent/file", "taken", "x" * 300, "file/under"])
def test_what_could_not_be_written_three_minutes_later_is_said_now(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="--plot"):
        replace(_options(tmp_path), plot_file=tmp_path / name).check()
    with pytest.raises(StorageError, match="--json"):
        replace(_options(tmp_path), json_file=tmp_path / name).check()


@pytest.mark.parametrize("keeps", [True, False])
def test_host_that_does_not_come_up_is_told_with_a_log_that_is_still_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keeps: bool
) -> None:
    def fails(*_: object) -> None:
        raise MachineError("no invite yet", "an invite", "read host.log")

    monkeypatch.setattr(peer.demo.run, "open_processes", lambda _: nullcontext(_Story(tmp_path, ())))
    monkeypatch.setattr(peer.demo.run, "wait_for_invite", fails)
    options = replace(_options(tmp_path), directory=tmp_path / "kept" if keeps else None)
    with pytest.raises(MachineError, match=r"read host\.log" if keeps else "--dir DIR, which keeps the logs"):
        run_demo(options)


async def test_what_a_daemon_of_a_folder_serves_is_read_as_a_typed_value(tmp_path: Path) -> None:
    status = PeerStatus(peer="12D3KooW", name="calm otter", state="training", state_root=ROOT)
    assert read_json(tmp_path, "/status.json", PeerStatus) is None
    listener = bind_http("127.0.0.1", 0)
    with kept_status_address(tmp_path, f"http://127.0.0.1:{listener.getsockname()[1]}"):
        async with trio.open_nursery() as nursery:
            await nursery.start(serve_http, listener, peer_app(lambda: status))
            with trio.fail_after(60):
                found = await trio.to_thread.run_sync(read_json, tmp_path, "/status.json", PeerStatus)
                other = await trio.to_thread.run_sync(read_json, tmp_path, "/status.json", HostStatus)
            nursery.cancel_scope.cancel()
        assert found is not None
        assert (found.state_root, other) == (ROOT, None)
        assert read_json(tmp_path, "/status.json", PeerStatus) is None, "nobody listens any more"


class _Process:
    """A started process that ends when it is killed, or the run is over."""

    def __init__(self, story: _Story, arguments: Sequence[str]) -> None:
        self._story, self.arguments, self.started_unix_s, self._code = story, list(arguments), 1006.0, 0
        self.process = SimpleNamespace(wait=lambda _limit_s: 0)

    def option(self, name: str) -> str:
        return self.arguments[self.arguments.index(name) + 1]

    def exit_code(self) -> int | None:
        return self._code or (self._story.exit_code if self._story.is_over else None)

    def kill_group(self) -> None:
        self._code = -9


class _Story:
    """The processes of a demo of experts, and what they say. The host says that so many rounds are committed, look by look; those of
    `without` lack peer 2. Peer 2 trains from the look before the last on.
    """

    def __init__(self, folder: Path, counts: Sequence[int], without: Sequence[int] = (6,), exit_code: int = 0) -> None:
        checkpoint = folder / "checkpoint"
        checkpoint.mkdir()
        units = [{"unit": unit, "state_root": root} for unit, root in {"trunk": ROOT, **UNIT_ROOTS}.items()]
        (checkpoint / CHECKPOINT_MANIFEST).write_text(json.dumps({"units": units}))
        others = tuple(name for name in FOUR.values() if name != FOUR[VICTIM])
        rounds = [round_row(index, others if index in without else tuple(FOUR.values())) for index in range(1, 11)]
        self._statuses = [host_status(tuple(rounds[:index]), (5.6, 3.0, 2.4, 2.2, 2.1, 2.0)) for index in counts]
        self._checkpoint, self.is_over, self.exit_code = checkpoint, False, exit_code
        self.started: dict[str, list[_Process]] = {}
        self.paused: list[set[int]] = []
        """The peers that are paused, each time that the host is looked at."""

    def start(self, name: str, arguments: Sequence[str]) -> _Process:
        """As ProcessGroup."""
        self.started.setdefault(name, []).append(_Process(self, arguments))
        if name.startswith("peer"):
            identity = Path(self.started[name][-1].option("--state-dir")) / "identity"
            identity.parent.mkdir(exist_ok=True)
            identity.touch()
        return self.started[name][-1]

    def folder(self, number: int) -> Path:
        return Path(self.started[f"peer-{number}"][-1].option("--state-dir"))

    def read(self, folder: Path, _path: str, model: type[BaseModel]) -> BaseModel | None:
        """The page that is served there."""
        if model is HostStatus:
            self.paused.append({number for number in FOUR if (self.folder(number) / PAUSE_FILE).exists()})
            if len(self._statuses) > 1:
                return self._statuses.pop(0)
            for number in FOUR:
                write_final_status(
                    self.folder(number), holder(number).model_copy(update={"bytes_up": 100, "bytes_down": 200})
                )
            self.is_over = True
            rows = [row.model_copy(update={"path": str(self._checkpoint)}) for row in self._statuses[0].checkpoints]
            return self._statuses[0].model_copy(update={"checkpoints": tuple(rows)})
        number = int(folder.name.removeprefix("peer-"))
        worker_state = "training" if len(self._statuses) == 2 else "starting"
        return holder(number).model_copy(update={"bytes_up": 10, "bytes_down": 20, "worker_state": worker_state})


def _run(
    story: _Story,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit_s: float = 60.0,
    *,
    one_round: bool = False,
) -> tuple[int, DemoSummary]:
    for name, stand_in in (
        ("open_processes", lambda _: nullcontext(story)),
        ("wait_for_invite", lambda *_: "invite"),
        ("read_json", story.read),
        ("LOOK_INTERVAL_S", 0.0),
        ("plot_losses", lambda *_, **__: None),
    ):
        monkeypatch.setattr(peer.demo.run, name, stand_in)
    monkeypatch.setattr(peer.models.checkpoint_sample, "sample_from_checkpoint", lambda _, expert: f"text {expert}")
    plot_file = folder / "plot.png"
    options = DemoOptions(
        folder / "demo", folder / "told.json", plot_file, 200_000, limit_s, "expert", one_round=one_round
    )
    code = run_demo(options)
    return code, DemoSummary.model_validate_json((folder / "told.json").read_bytes())


def test_demo_of_experts_starts_two_holders_of_each_kills_one_and_judges_each_experts_root(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All of the demo but what its processes do, which tests of real processes have with experts of their own."""
    story = _Story(tmp_path, (0, 1, 5, 6, 7, 10))
    code, summary = _run(story, tmp_path, monkeypatch)
    assert (code, summary.ok, summary.failures) == (0, True, ())
    assert load_run_config(tmp_path / "demo" / "run.toml").run.shards == "expert"
    assert [story.started[f"peer-{n}"][-1].option("--expert") for n in FOUR] == ["0", "1", "0", "1"]
    assert ["--slowdown" in story.started[f"peer-{n}"][-1].arguments for n in FOUR] == [False, False, True, False]
    assert {name: len(processes) for name, processes in story.started.items() if len(processes) > 1} == {"peer-2": 2}
    assert summary.unit_roots == {unit: (root,) for unit, root in UNIT_ROOTS.items()}
    assert (summary.rejoin_s, summary.rounds_committed) == (1.0, 10)
    assert (summary.bytes_up, summary.bytes_down) == (4 * 100 + 10, 4 * 200 + 20), "the killed process's, once"
    assert story.started["verify"][0].arguments[:2] == ["checkpoint", "verify"]
    assert set(map(frozenset, story.paused)) == {frozenset()}, "the killed peer was back in time"


def test_others_pause_when_the_killed_peer_starts_so_slowly_that_the_run_would_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    story = _Story(tmp_path, (0, 1, 5, 6, 7, 7, 8, 10), without=(6, 7))
    code, summary = _run(story, tmp_path, monkeypatch)
    assert (code, summary.rejoin_s) == (0, 2.0)
    assert {frozenset(paused) for paused in story.paused if paused} == {frozenset({1, 3, 4})}
    assert story.paused[-1] == set(), "and go on in the end"


@pytest.mark.parametrize(
    ("counts", "exit_code", "limit_s", "found"),
    [
        ((0, 1, 2), 4, 60.0, "peer 1 left with exit code 4"),
        ((0,) * 10_000, 0, 0.2, "no round has committed within 0 s; --limit-s gives a slow machine more"),
        ((0, *(1,) * 10_000), 0, 0.2, "not finished within 0 s; --limit-s gives a slow machine more"),
        ((0, 1, 5, 6, 6), 0, 60.0, "the killed peer was not counted again"),
    ],
    ids=["a peer fails", "no round", "too slow", "over before it is back"],
)
def test_demo_that_goes_wrong_says_why_and_ends_with_1(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    counts: Sequence[int],
    exit_code: int,
    limit_s: float,
    found: str,
) -> None:
    code, summary = _run(_Story(tmp_path, counts, exit_code=exit_code), tmp_path, monkeypatch, limit_s)
    assert (code, summary.ok) == (1, False)
    assert found in summary.failures


@pytest.mark.parametrize(("shards", "num_peers"), [("data", 2), ("expert", 4), ("pipeline", 6)])
def test_demo_of_one_round_ends_with_its_first(tmp_path: Path, shards: str, num_peers: int) -> None:
    path = tmp_path / "run.toml"
    path.write_text(demo_run_toml(1_228_800, shards, one_round=True), encoding="utf8")
    config = load_run_config(path)
    assert config.run.min_members == num_peers
    assert config.run.total_tokens <= config.round.target_tokens


def test_demo_of_one_round_kills_nobody_and_draws_no_curve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    story = _Story(tmp_path, (0, 1))
    (tmp_path / "plot.png").mkdir()
    code, summary = _run(story, tmp_path, monkeypatch, one_round=True)
    assert (code, summary.failures, summary.plot, summary.rejoin_s) == (0, (), "", None)
    assert {name: len(processes) for name, processes in story.started.items()} == {
        "host": 1, "peer-1": 1, "peer-2": 1, "peer-3": 1, "peer-4": 1, "verify": 1,
    }  # fmt: skip
    assert all("--slowdown" not in story.started[f"peer-{n}"][-1].arguments for n in FOUR)
