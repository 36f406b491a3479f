from __future__ import annotations

import re
from pathlib import Path

from protocol.run.manifest import load_run_config
from tests.docker.assets import DOCKER, services, stages
from tests.install.composed import PORTS, STATUS_PAGE
from tests.install.images import TARGETS, build_words
from tests.install.one_round import write_run_of_one_round
from tests.install.running import Sources


def test_every_target_is_built_and_every_service_has_one() -> None:
    named = re.findall(r"--target (\S+)", (DOCKER / "Dockerfile").read_text(encoding="utf8"))
    assert sorted(named) == sorted(TARGETS)
    assert set(TARGETS) <= stages().keys()


def test_folder_of_wheels_is_mounted_for_the_build_and_named_to_pip(tmp_path: Path) -> None:
    words = build_words("peer-cpu", tmp_path, Sources((Path("/wheels"), Path("/more"))))
    assert [words[at + 1] for at, word in enumerate(words) if word == "--volume"] == [
        "/wheels:/wheels:ro",
        "/more:/more:ro",
    ]
    assert "TORCH_INDEX=" in words
    assert "find-links =\n    /wheels\n    /more\n" in (tmp_path / "peer-cpu-pip.conf").read_text()


def test_without_a_folder_of_wheels_torch_comes_from_where_the_dockerfile_has_it(tmp_path: Path) -> None:
    assert not [word for word in build_words("peer-cpu", tmp_path, Sources()) if word.startswith("TORCH_INDEX")]
    assert "find-links" not in (tmp_path / "peer-cpu-pip.conf").read_text()


def test_peer_with_a_card_takes_the_torch_of_the_registry(tmp_path: Path) -> None:
    words = build_words("peer-gpu", tmp_path, Sources((Path("/wheels"),)))
    assert not [word for word in words if word == "--volume" or word.startswith("TORCH_INDEX")]
    assert "find-links" not in (tmp_path / "peer-gpu-pip.conf").read_text()


def test_run_of_one_round_is_a_run_whose_files_are_beside_it(tmp_path: Path) -> None:
    for source, ending in (("text", "*.txt"), ("parquet", "*.parquet")):
        config = load_run_config(write_run_of_one_round(tmp_path / source, source))
        assert config.run.total_tokens == config.round.target_tokens
        assert list((tmp_path / source / "corpus").glob(ending))


def test_ports_that_are_tried_are_those_that_the_host_of_compose_publishes() -> None:
    published = [port.rpartition(":")[0] for port in services()["host"]["ports"]]
    assert published == [*map(str, PORTS), STATUS_PAGE.removeprefix("http://").rstrip("/")]
