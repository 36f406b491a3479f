from __future__ import annotations

import pytest

from peer.settings.config import PeerConfig
from peer.training.plan.gpus_core import MOST_CARDS, check_device, parse_gpus
from protocol.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("auto", ("auto",)),
        ("all", ("all",)),
        ("0", ("0",)),
        ("1, 0", ("1", "0")),
        ("GPU-1111aaaa,03", ("GPU-1111aaaa", "3")),
    ],
)
def test_cards_are_named_by_words_numbers_or_uuids(text: str, names: tuple[str, ...]) -> None:
    assert parse_gpus(text) == names
    assert PeerConfig.load({"gpus": text}).gpus == text


@pytest.mark.parametrize(
    "text", ["", "0,", "first", "-1", "0;1", "auto,0", "all,all", "0,1,0", "1,01", ",".join(map(str, range(65)))]
)
def test_names_that_mean_no_cards_or_one_twice_are_refused_in_a_line(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_gpus(text)
    assert caught.value.exit_code == 3
    assert caught.value.expected
    with pytest.raises(ConfigError):
        PeerConfig.load({"gpus": text})


def test_a_mac_has_one_card_and_processes_on_the_cpu_have_numbers() -> None:
    check_device(parse_gpus("auto"), "mps")
    check_device(parse_gpus("0,1"), "cpu")
    with pytest.raises(ConfigError, match="a Mac has one card"):
        check_device(parse_gpus("0"), "mps")
    for text in ("GPU-1111aaaa", str(MOST_CARDS)):
        with pytest.raises(ConfigError, match="one a process"):
            check_device(parse_gpus(text), "cpu")
