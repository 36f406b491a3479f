from __future__ import annotations

import pytest

from peer.forecast.crew_core import Link, num_peers, parse_crew, parse_link
from protocol.errors import ConfigError


def test_groups_have_counts_cards_power_and_links() -> None:
    cards, node, measured, alone = parse_crew("4xrtx3090, 1x8xh100@1000/200, 2x5.5tflops:90w, 12_000tok/s")
    assert (cards.count, cards.cards, cards.watts, cards.link) == (4, 1, 350.0, None)
    assert cards.card is not None
    assert cards.card.name == "rtx3090"
    assert (node.count, node.cards, node.watts, node.link) == (1, 8, 5600.0, Link(1000.0, 200.0))
    assert (measured.count, measured.flops_per_s, measured.watts) == (2, 5.5e12, 90.0)
    assert (alone.count, alone.tokens_per_s, alone.watts) == (1, 12_000.0, None)
    assert num_peers((cards, node, measured, alone)) == 8


def test_a_name_that_holds_an_x_is_no_count() -> None:
    (group,) = parse_crew("2xrx7900xtx")
    assert group.card is not None
    assert (group.count, group.card.name) == (2, "rx7900xtx")


def test_a_link_of_one_number_is_as_fast_both_ways() -> None:
    assert parse_link("50") == Link(50.0, 50.0)
    assert parse_link("100/20") == Link(100.0, 20.0)


def test_peers_that_are_left_out_are_told_so() -> None:
    with pytest.raises(ConfigError, match="no peers to plan for; expected peers such as"):
        parse_crew("")


@pytest.mark.parametrize(
    "wrong",
    [
        *("", " ", ",", "4xrtx3090,", "0xrtx3090", "1x0xh100", "4x", "x", "-1xh100", "4xrtx3090@", "4xrtx3090@0"),
        *("1xnantflops", "1x0tok/s", "1x.tok/s", "1xh100:0w", "1xh100:w", "99999999xh100", "1x65xh100", "1xh100@nan"),
        *(",".join(["h100"] * 65), "9" * 400 + "xh100", "1x1e999tflops", "1xh100@a/b"),
    ],
)
def test_peers_that_cannot_be_meant_are_one_line(wrong: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_crew(wrong)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("wrong", "line"),
    [
        ("0xrtx3090", "--peers '0xrtx3090': nobody trains; expected one peer or more; peers such as 4xrtx3090,1xh100"),
        (
            "-2xrtx3090",
            "--peers '-2xrtx3090': nobody trains; expected one peer or more; peers such as 4xrtx3090,1xh100",
        ),
        ("4x", "--peers '4x': no card is named; expected peers such as 4xrtx3090,1xh100"),
        ("2x-5tok/s", "--peers '2x-5tok/s': '-5' tokens/s; expected a number from 0.001 to 1e+12"),
        ("nantok/s", "--peers 'nantok/s': 'nan' tokens/s; expected a number from 0.001 to 1e+12"),
        ("1e308tok/s", "--peers '1e308tok/s': '1e308' tokens/s; expected a number from 0.001 to 1e+12"),
        ("1e-300tflops", "--peers '1e-300tflops': '1e-300' TFLOP/s; expected a number from 1e-06 to 1e+06"),
        ("h100:1e300w", "--peers 'h100:1e300w': '1e300' watts; expected a number from 0.001 to 1e+06"),
        ("h100@1e9", "link '1e9'; expected 0.001 to 1,000,000 Mbit/s, down and up, without a unit; such as 100/20"),
        (
            "h100@100MB/20MB",
            "link '100MB/20MB'; expected 0.001 to 1,000,000 Mbit/s, down and up, without a unit; such as 100/20",
        ),
        (
            "h100@1e-300/5",
            "link '1e-300/5'; expected 0.001 to 1,000,000 Mbit/s, down and up, without a unit; such as 100/20",
        ),
    ],
)
def test_a_number_out_of_its_range_is_told_the_range(wrong: str, line: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_crew(wrong)
    assert str(caught.value) == line
