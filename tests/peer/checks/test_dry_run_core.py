from __future__ import annotations

from dataclasses import replace

import pytest

from peer.checks.dry_run_core import OfferedResources, peer_estimates
from protocol.estimates.dry_run import estimate_lines
from protocol.estimates.estimates import weights_bytes
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.tables import in_bytes

RUN = parse_run_config(default_run_toml())
OFFER = OfferedResources(cache_bytes=2_000_000_000, no_listen=False, daily_quota_gb=0.0)


def test_what_a_run_takes_is_told_with_units() -> None:
    assert estimate_lines(peer_estimates(RUN, 20_000_000, OFFER))[:6] == [
        "  model         771,328 parameters",
        "  memory        about 830.8 MB",
        "  disk          at most 114.2 MB and a log of the rounds, and 20.0 MB of data",
        "                writes about 1.2 MB a round, 1.7 GB a day at a round every 60 s",
        "  at the start  fetches a state of 6.2 MB, then data as it is needed",
        "  a round       up 1.5 MB, down 1.5 MB, with 64 peers (int8)",
    ]


@pytest.mark.parametrize(
    ("offer", "reported"),
    [
        (OfferedResources(1_500_000, False, 0.0), "and 1.5 MB of data"),
        (OfferedResources(2_000_000_000, True, 0.0), "up 783.4 kB, down 783.4 kB"),
        (
            OfferedResources(2_000_000_000, False, 1.5),
            "your quota    ends all that at 1.5 GB a day, up and down together",
        ),
    ],
    ids=["small cache", "no inbound connections", "quota"],
)
def test_what_the_owner_sets_changes_the_estimates(offer: OfferedResources, reported: str) -> None:
    assert reported in "\n".join(estimate_lines(peer_estimates(RUN, 20_000_000, offer)))
    assert reported not in "\n".join(estimate_lines(peer_estimates(RUN, 20_000_000, OFFER)))


@pytest.mark.parametrize("section", ["", "[adapter]\nrank = 4\n"])
def test_weights_that_a_run_begins_with_are_told_beside_the_text_that_is_kept(section: str) -> None:
    toml = default_run_toml().replace("[run]\n", '[run]\nstart_from = "base"\n', 1) + "\n" + section
    run = parse_run_config(toml)
    weights = weights_bytes(run)
    assert weights == (2 * run.base_elements if section else 4 * run.num_elements)
    lines = "\n".join(estimate_lines(peer_estimates(run, weights + 20_000_000, replace(OFFER, cache_bytes=1_500_000))))
    assert f"and {in_bytes(weights + 1_500_000)} of data" in lines


def test_without_a_known_run_each_number_that_nobody_knows_says_so() -> None:
    lines = estimate_lines(peer_estimates(None, 0, OfferedResources(2_000_000_000, False, 1.0)))
    assert lines == [
        "  model       unknown without the host",
        "  memory      unknown without the host; 805.3 MB beside the model",
        "  disk        unknown without the host; beside it at most 2.0 GB of data",
        "  traffic     unknown without the host",
        "  your quota  ends all that at 1 GB a day, up and down together",
    ]


def test_of_a_run_of_stages_a_limit_of_memory_says_for_which_there_is_room_or_that_there_is_none() -> None:
    run = parse_run_config(default_run_toml("pipeline"))
    assert run.pipeline is not None
    assert run.stages is not None
    memory = run.pipeline.memory(run.model, run.inner)
    smallest = min(memory.of(run.stages, stage) for stage in range(3))

    def reported(max_memory_bytes: int) -> str:
        offer = OfferedResources(2_000_000_000, False, 0.0, max_memory_bytes)
        return "\n".join(line for line in estimate_lines(peer_estimates(run, 0, offer)) if "room for" in line)

    assert reported(0) == ""
    assert reported(4_000_000_000).endswith("stage-0, stage-1, stage-2")
    assert reported(smallest).endswith(" stage-1")
    assert "no stage, so a join is refused: 1.00 GB of memory" in reported(1_000_000_000)
