"""Holders of an expert that stand at different lengths of a branch which was made beside a trunk that is left."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from averaging.storage.memory_storage import MemoryDisk
from protocol.ids import CommitId, UnitName
from tests.simulation.keeping import SimulatedKeeper
from tests.simulation.node import Node
from tests.simulation.scenario import Scene, expect, scenario
from tests.simulation.scenarios_units import APART, all_move, commits, is_one


@dataclass
class _Spoiled:
    """A branch of expert 0 that was made beside a trunk which is left: two holders stand on it at different lengths, the third on the
    run's own line.
    """

    behind: Node
    ahead: Node
    own: Node
    made: set[CommitId]
    """Its commits."""


async def _spoil(scene: Scene, host: SimulatedKeeper | None = None) -> _Spoiled:
    """Cut two of three holders off for longer than the patience, and kill one of the two: the other makes two rounds more alone. With
    a host the third one goes, once the host has its line, before the cut heals: nobody who is there has heard of that.
    """
    expert = UnitName("expert-0")
    await all_move(scene)
    behind, ahead, own = (node for node in scene.nodes if expert in node.units)
    with scene.cut([behind, ahead], scene.without(behind, ahead)):
        before, stood = own.index_of(expert), behind.index_of(expert)
        await scene.until(lambda: behind.index_of(expert) > stood, "a round of the side", 240.0)
        behind.crash()
        stood = behind.index_of(expert)
        await scene.until(lambda: ahead.index_of(expert) >= stood + 2, "two rounds more", 400.0)
        await scene.until(lambda: own.index_of(expert) > before + 1, "the run's own line", 400.0)
        made = commits(scene, expert, ahead) - commits(scene, expert, own)
        expect(len(made) > 2, "the expert has a side branch")
        expect(bool(commits(scene, expert, own) - commits(scene, expert, ahead)), "the run has a line of its own")
        if host is not None:
            await _until_kept(scene, host, expert, own)
            own.crash()
    return _Spoiled(behind, ahead, own, made)


async def _until_kept(scene: Scene, host: SimulatedKeeper, unit: UnitName, node: Node) -> None:
    """Until what the host would give on is of this node's lineage, and newer than the start."""
    for _ in range(40):
        kept = await host.keeper.newest(unit)
        if kept is not None and kept.index and kept.head in commits(scene, unit, node):
            return
        await scene.sleep(5.0)
    expect(False, f"the host keeps {unit} as {node.name} has it")


@scenario(9, APART)
async def holders_at_two_lengths_of_a_spoiled_side(scene: Scene) -> None:
    """Both come over to the run's own line of the expert, whatever work their side has, and nobody stays at a length of the side."""
    expert, trunk = UnitName("expert-0"), scene.world.layout.spine
    side = await _spoil(scene)
    followed = side.own.head_of(trunk)
    scene.boot(side.behind)
    await scene.until(partial(is_one, scene), "agreement", 400.0)
    expect(followed in commits(scene, trunk, side.ahead), "seven trunks outweigh two")
    expect(not side.made & commits(scene, expert, side.ahead), "nothing of the side is in the expert")
    await all_move(scene)


@scenario(9, APART)
async def holders_of_a_spoiled_side_while_the_runs_own_line_is_away(scene: Scene) -> None:
    """They agree on the longer one, go on with it beside the followed trunk, and the host gives on what they have; when the holder of
    the run's own line is back all follow that, the host, too.
    """
    expert = UnitName("expert-0")
    host = SimulatedKeeper(scene.world, MemoryDisk(), follows_spine=True)
    side = await _spoil(scene, host)
    both, stood = (side.behind, side.ahead), side.ahead.index_of(expert)
    scene.boot(side.behind)

    def is_one_and_longer() -> bool:
        return len({node.head_of(expert) for node in both}) == 1 and side.ahead.index_of(expert) > stood

    await scene.until(is_one_and_longer, "one more round of the two together", 400.0)
    expect(side.made <= commits(scene, expert, side.behind), "the longer one stands where nobody shows another")
    await scene.until(lambda: host.kept[expert] > stood, "the host to follow them", 400.0)
    await _until_kept(scene, host, expert, side.ahead)
    scene.boot(side.own)
    await scene.until(partial(is_one, scene), "agreement", 600.0)
    expect(not side.made & commits(scene, expert, side.ahead), "nothing of the side is in the expert")
    await all_move(scene)
    await _until_kept(scene, host, expert, side.own)


@scenario(9, APART)
async def holders_of_a_spoiled_side_who_know_the_runs_own_line_and_cannot_have_it(scene: Scene) -> None:
    """The one that has it dies as soon as the longer of the two has heard of it. They agree, go on, and come over once it is back."""
    expert = UnitName("expert-0")
    side = await _spoil(scene)
    reported = side.own.head_of(expert)

    def has_heard() -> bool:
        return reported in side.ahead.services[expert].state.tree.nodes

    await scene.until(has_heard, "word of the run's own line", 240.0)
    side.own.crash()
    expect(side.ahead.head_of(expert) in side.made, "the longer one still stands on its side")
    scene.boot(side.behind)
    both, stood = (side.behind, side.ahead), side.ahead.index_of(expert)

    def is_one_and_longer() -> bool:
        return len({node.head_of(expert) for node in both}) == 1 and side.ahead.index_of(expert) > stood

    await scene.until(is_one_and_longer, "one more round of the two together", 400.0)
    scene.boot(side.own)
    await scene.until(partial(is_one, scene), "agreement", 600.0)
    expect(not side.made & commits(scene, expert, side.ahead), "nothing of the side is in the expert")
    await all_move(scene)
