from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from peer.cards.all_cards import MachineCards
from peer.cards.layout_of import layout_of, stage_world_without, world_without
from peer.cards.own_cards import OwnCards, own_cards
from peer.settings.config import PeerConfig
from peer.training.plan.cards_core import Card
from peer.training.plan.layout import Layout, Mesh, World
from peer.training.plan.owned_cards_core import OwnedCard
from protocol.errors import ConfigError, MachineError
from tests.peer.checks.test_known_runs import MANIFEST
from tests.protocol.run.test_pipeline_section import pipeline_run

RTX = Card("cuda", "NVIDIA GeForce RTX 3060", 12 << 30, (8, 6))
CARDS = MachineCards(tuple(OwnedCard(number, RTX, f"GPU-{number}") for number in range(2)))
RUN = MANIFEST.config
CUDA, CPU = torch.device("cuda"), torch.device("cpu")


@pytest.fixture(autouse=True)
def runtime_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def _never() -> NoReturn:
    raise AssertionError("read although nothing is to be chosen")


def _numbers(own: OwnCards) -> list[int]:
    return [card.number for card in own.cards]


def test_a_machine_with_one_card_or_none_is_not_asked() -> None:
    for device, seen in ((CPU, 0), (torch.device("mps"), 0), (CUDA, 1)):
        with own_cards(PeerConfig(), device, _never, partial(int, seen), str) as own:
            assert own == OwnCards()
            assert layout_of(own, PeerConfig(), RUN).layout == Layout()
    with own_cards(PeerConfig(reduce_only=True), CUDA, _never, lambda: 2) as own:
        assert own == OwnCards()


def test_an_only_card_is_shared_with_a_line_and_left_out_by_peers_that_see_others() -> None:
    def only() -> str:
        return "GPU-1"

    with own_cards(PeerConfig(), CUDA, _never, lambda: 1, only) as first:
        assert layout_of(first, PeerConfig(), RUN).layout == Layout()
        with own_cards(PeerConfig(), CUDA, _never, lambda: 1, only) as second:
            assert (
                "another peer of this user trains on the only card"
                in layout_of(second, PeerConfig(), RUN).layout.reason
            )
        with own_cards(PeerConfig(), CUDA, lambda: CARDS, lambda: 2) as other:
            assert _numbers(other) == [0]
            assert [out.reason for out in other.left_out] == ["another peer trains on it"]
        with pytest.raises(MachineError, match=r"card 1 .* another peer trains on it"):
            own_cards(PeerConfig(gpus="1"), CUDA, lambda: CARDS, lambda: 2).__enter__()


def test_an_only_card_trains_though_its_name_or_the_folder_of_locks_is_not_to_be_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    with own_cards(PeerConfig(), CUDA, _never, lambda: 1, str) as unnamed:
        assert unnamed == OwnCards()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "file"))
    with own_cards(PeerConfig(), CUDA, _never, lambda: 1, lambda: "GPU-1") as unlocked:
        assert unlocked == OwnCards()


def test_when_a_card_is_lost_the_others_go_on_and_the_cpu_only_if_no_card_is_left_and_none_was_chosen() -> None:
    own, auto, chosen = OwnCards(CARDS.cards), PeerConfig(), PeerConfig(device="cuda")
    three = OwnCards((*CARDS.cards, OwnedCard(2, RTX, "GPU-2")))
    both = world_without(three, auto, RUN, (), ("cuda:0", "cuda:2"))
    assert both is not None
    assert (both.devices, both.mesh.num_ranks) == (("cuda:0", "cuda:2"), 2)
    assert world_without(own, auto, RUN, (), ("cuda:1",)) == World(devices=("cuda:1",), mesh=Mesh())
    assert world_without(own, auto, RUN, (), ()) == World(devices=("cpu",))
    assert world_without(own, chosen, RUN, (), ()) is None, "it is tried again"
    assert world_without(OwnCards(), auto, RUN, (), ()) is None, "the training process finds its device by itself"


def test_the_second_peer_leaves_the_first_ones_cards_out_or_is_refused_by_name() -> None:
    def read() -> MachineCards:
        return CARDS

    with own_cards(PeerConfig(gpus="1"), CUDA, read, lambda: 2) as first:
        assert _numbers(first) == [1]
        with own_cards(PeerConfig(), CUDA, read, lambda: 2) as second:
            assert _numbers(second) == [0]
            assert [out.reason for out in second.left_out] == ["another peer trains on it"]
            with pytest.raises(MachineError, match=r"card 0 .* another peer trains on it"):
                own_cards(PeerConfig(gpus="0,1"), CUDA, read, lambda: 2).__enter__()
            with own_cards(PeerConfig(), CUDA, read, lambda: 2) as third:
                found = layout_of(third, PeerConfig(), RUN)
                assert found.layout.worlds[0].devices == ("cpu",)
                assert "every card of this machine is left out" in found.layout.reason
            with pytest.raises(MachineError, match="no card can train: card 0"):
                own_cards(PeerConfig(device="cuda"), CUDA, read, lambda: 2).__enter__()
    with own_cards(PeerConfig(), CUDA, read, lambda: 2) as later:
        assert _numbers(later) == [0, 1]


def test_a_card_that_other_programs_held_is_taken_at_a_later_look_and_the_peers_own_memory_is_no_reason_to_leave() -> (
    None
):
    first, second = CARDS.cards
    full = 1 << 30
    looks = [
        MachineCards((first, replace(second, free_bytes=full))),
        MachineCards((replace(first, free_bytes=full), second)),
        MachineCards((replace(first, free_bytes=full), replace(second, free_bytes=full))),
    ]
    with own_cards(PeerConfig(), CUDA, lambda: looks.pop(0), lambda: 2) as own:
        assert (_numbers(own), len(own.left_out)) == ([0], 1)
        for _ in range(2):
            assert own.again is not None
            own = own.again()
            assert (_numbers(own), own.left_out) == ([0, 1], ())
        with own_cards(PeerConfig(), CUDA, lambda: CARDS, lambda: 2) as other:
            assert _numbers(other) == [], "this peer holds both"


def test_numbers_on_the_cpu_are_processes_there() -> None:
    with own_cards(PeerConfig(device="cpu", gpus="0,1"), CPU, _never) as own:
        found = layout_of(own, PeerConfig(device="cpu", gpus="0,1"), RUN)
    assert [world.devices for world in found.layout.worlds] == [("cpu",), ("cpu",)]
    assert found.rival is None


def test_cards_that_cannot_be_meant_are_refused_in_a_line() -> None:
    with pytest.raises(ConfigError, match="a Mac has one card"):
        own_cards(PeerConfig(gpus="0"), torch.device("mps"), _never).__enter__()
    with pytest.raises(MachineError, match="card 0 is not there; expected one of: none"):
        own_cards(PeerConfig(gpus="0,1"), CPU, _never).__enter__()
    with pytest.raises(MachineError, match="card 7 is not there; expected one of: 0, 1") as caught:
        own_cards(PeerConfig(gpus="0,7"), CUDA, lambda: CARDS, lambda: 2).__enter__()
    assert caught.value.exit_code == 4


def test_a_stage_takes_the_cards_that_are_alike_to_the_largest_and_goes_on_with_those_that_are_left() -> None:
    large = OwnedCard(1, Card("cuda", "NVIDIA GeForce RTX 4090", 24 << 30, (8, 9)))
    run = pipeline_run(inner={"batch_tokens": 8 * 256}, model={"context_tokens": 256}, pipeline={"micro_batches": 4})
    found = layout_of(OwnCards((CARDS.cards[0], large)), PeerConfig(), run)
    assert [world.devices for world in found.layout.worlds] == [("cuda:1",)]
    assert [out.reason for out in found.left_out] == ["a stage takes cards of one kind"]
    alike = layout_of(OwnCards(CARDS.cards), PeerConfig(), run)
    assert alike.layout.worlds == (World(devices=("cuda:0", "cuda:1"), mesh=Mesh(copies=2)),)
    of_two = partial(stage_world_without, OwnCards(CARDS.cards), PeerConfig(), run, 0)
    assert of_two(("cuda:1",)) == World(devices=("cuda:1",))
    assert of_two(()) is None
    three = OwnCards((*CARDS.cards, OwnedCard(2, CARDS.cards[0].card, "GPU-2")))
    assert stage_world_without(three, PeerConfig(split="shard"), run, 0, ("cuda:0", "cuda:2")) == World(
        devices=("cuda:0", "cuda:2"), mesh=Mesh(shard=2)
    )
