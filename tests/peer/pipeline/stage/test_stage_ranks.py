"""A stage on two cards does what it does on one: rows of a pass, sums of gradients, one card that steps, and cards that differ."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TypeVar

import pytest
import torch

from peer.pipeline.stage.lane_compute import ComputeContext, LaneWork, Targets
from peer.pipeline.stage.snapshot_room import rooms_bytes
from peer.pipeline.stage.stage_channel import StagePlan
from peer.pipeline.stage.stage_ranks import RanksApart, StageRanks, alone_on_stage
from peer.pipeline.stage.stage_worker import StageWorker
from peer.training.plan.card_plan import CardPlan
from peer.training.plan.layout import Mesh
from peer.training.ranks.process_group import join_process_group
from peer.training.ranks.rank_group import RankGone, RankGroup, meet
from peer.training.worker_channel import Area, mapping_bytes
from protocol.errors import LocalProtocolError
from protocol.tensors.stage_schema import stage_schema
from tests.peer.compute_world import START, TOOLS
from tests.peer.training.ranks.rank_processes import run_ranks
from tests.peer.whole_snapshot import decode_snapshot
from tests.peer.worker_world import PIPELINE, Asker, anchor, forward, one_step, opened, stage_plan, stage_worker

TWO = Mesh(copies=2)
IN_ROWS = Mesh(shard=2)
STEPS = 2
T = TypeVar("T")
Found = dict[str, torch.Tensor]

# --- two real processes ---


def _trained(first: Asker, last: Asker, folder: Path) -> Found:
    """Some steps of both stages, and one more after a snapshot, to which both go back and take it again."""
    askers = {0: first, 1: last}
    for stage, asker in askers.items():
        asker.vectors.write(Area.IN, anchor(stage_plan(folder, stage)))
        asker.ask("open", lane=7)
    num_measured = stage_plan(folder, 0).lanes.heldout_passes
    (*_, measured) = [forward(first, last, PIPELINE.micro_batches + number) for number in range(num_measured)]
    told = [one_step(first, last, step=step, together=step > 0) for step in range(STEPS)]
    found = {"told": torch.tensor([*told, (measured.heldout_nats or 0.0, 0.0)], dtype=torch.float64)}
    snapshots = {stage: asker.snapshot() for stage, asker in askers.items()}
    for stage, data in snapshots.items():
        found[f"snapshot {stage}"] = torch.frombuffer(bytearray(data), dtype=torch.uint8)
    for word in ("once", "again"):
        one_step(first, last, step=STEPS)
        for stage, asker in askers.items():
            asker.ask("theta")
            found[f"{word} {stage}"] = asker.vectors.read(Area.OUT)
        forward(first, last, 0, step=STEPS + 1)
        for stage, asker in askers.items():
            asker.restore(snapshots[stage])
    for stage, asker in askers.items():
        asker.vectors.write(Area.IN, anchor(stage_plan(folder, stage)) * 0.5)
        asker.ask("adopt")
    found["adopted"] = torch.tensor(one_step(first, last), dtype=torch.float64)
    for stage, asker in askers.items():
        asker.ask("theta")
        found[f"end {stage}"] = asker.vectors.read(Area.OUT)
        found[f"left {stage}"] = torch.frombuffer(bytearray(asker.snapshot()), dtype=torch.uint8)
    return found


def _moments_file(folder: Path, stage: int) -> Path:
    (folder / f"kept-{stage}").mkdir(exist_ok=True)
    return folder / f"kept-{stage}" / "moments.safetensors"


def _plans(folder: Path) -> list[StagePlan]:
    return [StagePlan.model_validate_json((folder / f"plan-{stage}.json").read_text()) for stage in range(2)]


def two_cards(mesh: Mesh, rank: int, folder: Path) -> Mapping[str, torch.Tensor]:
    """One rank: of the first stage, then of the last one, while the other stage has one card."""
    found = {}
    for of_two in range(2):
        plans = _plans(folder)
        meeting = folder / "meeting" if not of_two else folder / "meeting-again"
        meeting.mkdir(exist_ok=True)
        group = meet(mesh, rank, meeting)
        join_process_group(group, torch.device("cpu"), meeting)
        kept = {"moments_file": _moments_file(folder, of_two), "moments_within_tokens": 1}
        plans[of_two] = plans[of_two].model_copy(update={"mesh": mesh, "meeting": meeting, **kept})
        memory = folder / f"memory-{of_two}"
        if rank:
            found[f"{of_two} others"] = _followed(plans[of_two], group, memory)
            continue
        with (
            stage_worker(plans[0], group if not of_two else None, None if of_two else memory) as first,
            stage_worker(plans[1], group if of_two else None, memory if of_two else None) as last,
        ):
            found |= {f"{of_two} {name}": value for name, value in _trained(first, last, folder).items()}
    return found


def _followed(plan: StagePlan, group: RankGroup, memory: Path) -> torch.Tensor:
    """The parameters of a card beside the first one, at the end."""
    daemon, channel = socket.socketpair()
    schema = stage_schema(plan.stages, plan.stage)
    with daemon, channel, opened(memory) as file:
        file.truncate(mapping_bytes(schema.num_elements) + rooms_bytes(schema))
        worker = StageWorker(channel, plan, file.fileno(), group)
        worker.run()
        assert worker._work is not None
        return worker._work.theta()


@pytest.mark.parametrize("mesh", [TWO, IN_ROWS], ids=["each has all of it", "each has rows of it"])
def test_a_stage_on_two_cards_trains_as_on_one_and_its_snapshots_are_those_of_one(mesh: Mesh, short_path: Path) -> None:
    in_machine = CardPlan(offload="all")
    plans = [stage_plan(short_path, 0), stage_plan(short_path, 1, card_plan=in_machine)]
    for stage, plan in enumerate(plans):
        (short_path / f"plan-{stage}.json").write_text(plan.model_dump_json())
    with stage_worker(plans[0]) as first, stage_worker(plans[1]) as last:
        alone = _trained(first, last, short_path)
    by_first, by_second = run_ranks(mesh, two_cards, short_path)
    for of_two in range(2):
        found = {name[2:]: value for name, value in by_first.items() if name.startswith(f"{of_two} ")}
        assert torch.allclose(found["told"], alone["told"], rtol=1e-5, atol=0.0)
        assert torch.allclose(found["adopted"], alone["adopted"], rtol=1e-5, atol=0.0)
        others = by_second[f"{of_two} others"]
        if mesh.shard == 1:
            assert torch.equal(others, found[f"end {of_two}"]), "both cards have the same parameters"
        else:
            assert others.numel() < 0.6 * found[f"end {of_two}"].numel(), "no card holds the stage"
        for stage, plan in enumerate(plans):
            moved = alone[f"once {stage}"] - anchor(plan)
            error = (found[f"once {stage}"] - alone[f"once {stage}"]).norm() / moved.norm()
            assert float(error) <= 1e-4
            assert torch.equal(found[f"once {stage}"], found[f"again {stage}"]), "a snapshot is all of the state"
            schema = stage_schema(plan.stages, stage)
            own, others = (
                decode_snapshot(each[f"snapshot {stage}"].numpy().tobytes(), schema) for each in (found, alone)
            )
            assert [each.shape for each in own.moments] == [each.shape for each in others.moments]
        with stage_worker(plans[of_two]) as asker:
            asker.vectors.write(Area.IN, anchor(plans[of_two]))
            asker.ask("open", lane=7)
            data = found[f"snapshot {of_two}"].numpy().tobytes()
            asker.restore(data)
            assert asker.snapshot() == data, "one card goes on from it, bit for bit"
        schema, kept = stage_schema(plans[of_two].stages, of_two), _moments_file(short_path, of_two)
        resumed = plans[of_two].model_copy(update={"moments_file": kept, "moments_within_tokens": 1})
        with stage_worker(resumed) as asker:
            asker.vectors.write(Area.IN, anchor(resumed))
            asker.ask("open", lane=7)
            taken_up = decode_snapshot(asker.snapshot(), schema).moments
        left = decode_snapshot(found[f"left {of_two}"].numpy().tobytes(), schema).moments
        assert len(taken_up) == len(left) > 0, "one card takes up the moments that two have kept"
        assert all(
            torch.equal(own, other.to(torch.bfloat16).float()) for own, other in zip(taken_up, left, strict=True)
        )


# --- two threads, without torch's process group ---


@contextmanager
def _both() -> Iterator[tuple[StageRanks, StageRanks]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield StageRanks(RankGroup(TWO, 0, (ours,))), StageRanks(RankGroup(TWO, 1, (theirs,)))


def _on_both(act: Callable[[StageRanks], T]) -> list[T | Exception]:
    """The results or errors of both ranks."""
    with _both() as both, ThreadPoolExecutor(2) as threads:
        futures = [threads.submit(act, each) for each in both]
        return [future.result() if future.exception() is None else future.exception() for future in futures]  # type: ignore[misc]


def _fails() -> torch.Tensor:
    raise LocalProtocolError("nothing to compute from", "something")


def _fails_to_load() -> None:
    _fails()


def test_rows_are_computed_apart_and_come_together_in_their_order_on_the_first_card() -> None:
    rows = torch.arange(4 * 3 * 300_000, dtype=torch.float32).view(4, 3, 300_000)  # more than one message takes
    first, second = _on_both(lambda ranks: ranks.joined(partial(ranks.own, rows)))
    assert isinstance(first, torch.Tensor)
    assert torch.equal(first, rows)
    assert second is None


def test_a_pass_that_leaves_nothing_leaves_nothing_on_both() -> None:
    assert _on_both(lambda ranks: ranks.joined(lambda: None)) == [None, None]


def test_what_no_card_can_compute_fails_as_on_one_card_and_they_go_on_together() -> None:
    def act(ranks: StageRanks) -> torch.Tensor | None:
        with pytest.raises(LocalProtocolError, match="nothing to compute from"):
            ranks.joined(_fails)
        return ranks.joined(lambda: ranks.own(torch.ones(2, 1, 1)))

    first, _ = _on_both(act)
    assert isinstance(first, torch.Tensor)
    assert first.tolist() == [[[1.0]], [[1.0]]]


@pytest.mark.parametrize("failing", [0, 1])
def test_what_one_card_alone_cannot_compute_ends_all_of_them_with_its_reason(failing: int) -> None:
    found = _on_both(lambda ranks: ranks.joined(_fails if ranks.group.rank == failing else lambda: torch.ones(1, 1, 1)))
    assert isinstance(found[failing], RanksApart)
    assert "nothing to compute from" in str(found[failing])
    assert isinstance(found[1 - failing], RankGone)


def test_the_mean_loss_is_by_what_counts_on_each_card() -> None:
    losses = [[(2.0, 3.0), (4.0, 1.0)], [(1.0, 4.0)]]
    assert _on_both(lambda ranks: ranks.mean(losses[ranks.group.rank])) == [pytest.approx(14.0 / 8.0), None]
    assert _on_both(lambda ranks: ranks.mean([(1.0, 0.0)])) == [None, None]


def test_what_the_first_card_cannot_load_changes_no_card() -> None:
    def act(ranks: StageRanks) -> bool:
        return ranks.led(_fails_to_load, [])

    first, second = _on_both(act)
    assert isinstance(first, LocalProtocolError)
    assert second is False


def test_the_targets_of_all_cards_weigh_as_those_of_one_however_few_count_on_one_of_them() -> None:
    targets_BT = torch.tensor([[1, 2, 3], [4, -100, -100]])
    whole = Targets(targets_BT, 4.0, 0.25)
    found = []
    with _both() as both:
        for ranks in both:
            tools = ComputeContext(
                TOOLS.form, TOOLS.trainer_of, TOOLS.tokens_of, TOOLS.learning_rate_of, lambda *_: whole, ranks
            )
            work = LaneWork(tools, 0, 1)
            work.open()
            found.append(work._targets(targets_BT, START, 0))
    assert [each.targets_BT.tolist() for each in found] == [[[1, 2, 3]], [[4, -100, -100]]]
    assert [(each.weight, each.share) for each in found] == [(3.0, 0.1875), (1.0, 0.0625)]


def test_one_card_alone_shares_nothing() -> None:
    ranks, rows = alone_on_stage(), torch.ones(3, 2)
    assert ranks.own(rows).shape == (3, 2)
    assert ranks.joined(lambda: rows) is rows
    assert ranks.led(lambda: None, [rows])
