"""`potluck where`: lists the places of a peer, also with settings that cannot work."""

from __future__ import annotations

from pathlib import Path

import pytest

from averaging.host.settings import ConfigError
from peer.installed.places import peer_places
from peer.membership.saved_membership import remember_last_run
from peer.settings.config import PeerConfig
from protocol.identity.identity_file import open_identity
from tests.coordinator.host_world import RUN_TOML
from tests.peer.holdings.test_own_model import keep_run, tiny_run


@pytest.fixture(autouse=True)
def own_config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "potluck" / "peer.toml"


def test_every_run_is_listed_with_its_size_and_the_last_one_is_marked(tmp_path: Path) -> None:
    state = tmp_path / "state"
    other = keep_run(state, tiny_run(RUN_TOML.replace('"tiny"', '"other"')))
    last = keep_run(state, tiny_run())
    remember_last_run(last)
    with open_identity(state / "identity"):
        pass
    by_path = {place.path: place for place in peer_places(state)}
    assert (by_path[last].what, by_path[last].note) == ("run tiny", "the last one")
    assert (by_path[other].what, by_path[other].note) == ("run other", "")
    assert (by_path[state].num_bytes or 0) > (by_path[last].num_bytes or 0) > 0
    assert (by_path[state / "identity"].num_bytes or 0) > 0
    assert by_path[state / "data"].num_bytes is None


def test_the_settings_file_is_named_whether_it_is_there_or_not_and_where_it_is_wrong(
    tmp_path: Path, own_config: Path
) -> None:
    def shown() -> tuple[int | None, str]:
        (place,) = [place for place in peer_places(None) if place.path == own_config]
        return place.num_bytes, place.note

    assert shown() == (None, "")
    own_config.parent.mkdir(parents=True)
    own_config.write_text(f'state_dir = "{tmp_path}/here"\n')
    assert tmp_path / "here" in [place.path for place in peer_places(None)]
    own_config.write_text("num_threads = -1\n")
    with pytest.raises(ConfigError):
        PeerConfig.load({})
    num_bytes, note = shown()
    assert num_bytes == own_config.stat().st_size
    assert "num_threads is -1" in note
