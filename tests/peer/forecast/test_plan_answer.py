from __future__ import annotations

import json
from pathlib import Path

import pytest

from peer.forecast.forecast_core import Conditions
from peer.forecast.plan_answer import Ends, Wish, plan_answer
from peer.forecast.shapes_core import Numbers, numbers_of
from protocol.errors import ConfigError
from protocol.run.manifest import default_run_toml, load_run_config

CONDITIONS = Conditions(price_kwh=0.3, g_per_kwh=344.0)


def test_a_run_file_is_planned_with_its_own_tokens(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(default_run_toml())
    answer = plan_answer(Wish(file), "3x2000tok/s:65w", CONDITIONS)
    text = "\n".join(answer.lines())
    for words in (
        "20,000,000 tokens",
        "3x2000tok/s:65w",
        "lost to them",
        "kg of CO2",
        "0.3 a kWh",
        "no loss is foretold: the law is for tokens from a vocabulary of about 32,000",
        "assumed:",
    ):
        assert words in text
    assert json.loads(json.dumps(answer.json()))["plan"]["tokens"] == 20_000_000


def test_the_grid_of_the_run_counts_where_none_is_given(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(default_run_toml().replace("seed = 1\n", 'seed = 1\ngrid = "fr"\n'))
    assert "at 44 g a kWh" in "\n".join(plan_answer(Wish(file), "3x2000tok/s:65w", Conditions()).lines())


def test_the_picture_beside_a_run_file_is_of_models_with_the_runs_own_numbers(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(default_run_toml())
    run = load_run_config(file)
    numbers = numbers_of(run, Numbers())
    assert (numbers.vocab_size, numbers.context_tokens) == (run.model.vocab_size, run.model.context_tokens)
    assert (numbers.batch_tokens, numbers.codec) == (run.inner.batch_tokens, run.round.codec)
    points = plan_answer(Wish(file), "3x2000tok/s:65w", CONDITIONS).points
    assert points == plan_answer(Wish(file, numbers=numbers), "3x2000tok/s:65w", CONDITIONS).points


def test_more_peers_than_the_run_takes_are_named_with_the_remedy(tmp_path: Path) -> None:
    file = tmp_path / "run.toml"
    file.write_text(default_run_toml())
    most = load_run_config(file).run.most_peers
    text = "\n".join(plan_answer(Wish(file), f"{most + 1}x2000tok/s:65w", CONDITIONS).lines())
    assert f"{most + 1} peers, and the run takes {most}: set max_peers in run.toml" in text


def test_a_model_is_given_by_its_size_or_by_its_numbers() -> None:
    by_size = plan_answer(Wish(values=350_000_000), "2xrtx4090", CONDITIONS)
    assert by_size.found.tokens == 20 * by_size.found.num_values
    by_shape = plan_answer(Wish(dim=1024, layers=20, ends=Ends(tokens=10**9)), "2xrtx4090", CONDITIONS)
    assert by_shape.found.tokens == 10**9


def test_without_a_model_the_best_one_is_named_with_others() -> None:
    answer = plan_answer(Wish(ends=Ends(days=14.0)), "2xrtx4090", CONDITIONS)
    assert answer.lines()[0] == "best models"
    assert len(answer.best) > 5
    assert len(answer.json()["best"]) == 5  # type: ignore[arg-type]
    assert answer.found is answer.best[0].found


def test_energy_that_is_not_known_is_left_out_and_null_in_json() -> None:
    answer = plan_answer(Wish(values=50_000_000), "2x1tflops", CONDITIONS)
    assert not any(line.strip().startswith("energy") for line in answer.lines())
    found = answer.json()["plan"]
    assert isinstance(found, dict)
    assert (found["kwh"], found["carbon_kg"], found["joules_per_token"]) == (None, None, None)


@pytest.mark.parametrize(
    ("wish", "peers"),
    [
        (Wish(), "2xh100"),
        (Wish(values=10**9, dim=64, layers=2), "2xh100"),
        (Wish(dim=64), "2xh100"),
        (Wish(values=10**9, ends=Ends(days=1.0, loss=2.0)), "2xh100"),
        (Wish(values=10**9, ends=Ends(loss=-1.0)), "2xh100"),
        (Wish(values=10**9), ""),
        (Wish(values=10**9), "0xh100"),
        (Wish(values=10**11), "2xrtx3060"),
        (Wish(ends=Ends(days=3.0)), "2x100tok/s"),
        (Wish(Path("/no/such/run.toml")), "2xh100"),
    ],
)
def test_a_question_that_cannot_be_meant_is_one_line(wish: Wish, peers: str) -> None:
    with pytest.raises(ConfigError) as caught:
        plan_answer(wish, peers, CONDITIONS)
    assert "\n" not in str(caught.value)
