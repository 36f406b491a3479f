from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import trio

import peer.demo
from averaging.network.http import bind_http, serve_http
from peer.demo import FEWEST_ROUNDS, demo_run_toml, fetch, read_final_status
from peer.demo_core import EXPERTS, STAGES
from peer.demo_observation import PeerReport
from peer.demo_options import DemoOptions
from peer.status import PeerStatus, write_final_status
from peer.status_http import peer_app
from protocol.errors import MachineError
from protocol.manifest import load_run_config

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

    monkeypatch.setattr(peer.demo, "_start_swarm", fails)
    directory = tmp_path / "kept" if keeps else None
    with pytest.raises(MachineError, match=r"read host\.log" if keeps else "--dir DIR, which keeps the logs"):
        peer.demo.run_demo(DemoOptions(directory, None, tmp_path / "curve.png", 1_228_800, 900.0))


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
