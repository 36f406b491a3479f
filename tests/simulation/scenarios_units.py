"""Several units: fragments, experts and stages on both sides of a cut, and the one step in which all heads move."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from averaging.rounds.head_vector import VECTOR_LOG, read_moves
from averaging.storage.memory_storage import MemoryDisk
from protocol.ids import CommitId, UnitName
from tests.averaging.rounds.round_world import raws_of
from tests.simulation.keeping import KEEPER, SimulatedKeeper
from tests.simulation.layouts import EXPERTS, FRAGMENTS, STAGES
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, PATIENCE_S, Scenario, Scene, add, expect, replaced, scenario

LONG_S = 1.6 * PATIENCE_S
QUIET = replace(CALM, round_s=12.0, heartbeat_s=1.0, longest_interval_s=20.0, converge_s=240.0)
APART = replace(QUIET, layout=EXPERTS)


def commits(scene: Scene, unit: UnitName, node: Node) -> set[CommitId]:
    """The lineage of a unit at a node."""
    head = node.services[unit].chain.head.commit
    return scene.world.observed_of[unit].lineage_ids(head)


def _index(scene: Scene, unit: UnitName) -> int:
    return max(node.index_of(unit) for node in scene.world.holders(unit))


async def all_move(scene: Scene, rounds: int = 1) -> None:
    """Until every unit has made so many more rounds."""
    goals = {unit: _index(scene, unit) + rounds for unit in scene.world.layout.units}
    await scene.until(lambda: all(_index(scene, u) >= goal for u, goal in goals.items()), "rounds of all units", 240.0)


def is_one(scene: Scene) -> bool:
    """Whether all holders of each unit stand on one head."""
    for unit in scene.world.layout.units:
        heads = {node.head_of(unit) for node in scene.world.holders(unit)}
        if None in heads or len(heads) != 1:
            return False
    return True


def _spine_of(scene: Scene, side: Sequence[Node]) -> CommitId:
    spine = scene.world.layout.spine
    holders = [node for node in side if spine in node.units]
    return max(holders, key=lambda node: node.index_of(spine)).services[spine].chain.head.commit


def _winner(scene: Scene, sides: Sequence[Sequence[Node]], heads: Sequence[CommitId]) -> Sequence[Node]:
    """The side whose spine is followed in the end."""
    spine = scene.world.layout.spine
    followed = commits(scene, spine, scene.world.holders(spine)[0])
    won = [side for side, head in zip(sides, heads, strict=True) if head in followed]
    expect(len(won) == 1, "the spine of one side is followed")
    return won[0]


# --- fragments ----------------------------------------------------------------------------------------------------------------


async def _fragments(scene: Scene, sizes: tuple[int, int]) -> None:
    """Four fragments, whose rounds come one after another; the cut comes in the middle of a pass, when the first two have made theirs
    and the last two have not. Every fragment goes on at each side; in the end all four are those of one side.
    """
    units = scene.world.layout.units
    nodes = list(scene.nodes)
    scene.chooser.shuffle(nodes)
    sides = (nodes[: sizes[0]], nodes[sizes[0] :])
    await all_move(scene)
    marks = await _middle_of_a_pass(scene)
    with scene.cut(*sides):
        await scene.sleep(LONG_S)
        heads = [_spine_of(scene, side) for side in sides]
        mine = {unit: [commits(scene, unit, side[0]) for side in sides] for unit in units}
        expect(all(one - other and other - one for one, other in mine.values()), "each side has all four on its own")
        for unit, (one, other) in mine.items():
            has_moved = unit in units[:2]
            common = max(_index_of(scene, unit, commit) for commit in one & other)
            where = "after" if has_moved else "before"
            expect(common == marks[unit] + has_moved, f"the sides of {unit} part {where} its round of that pass")
    await scene.until(partial(is_one, scene), "agreement", 300.0)
    winner = sides.index(list(_winner(scene, sides, heads)))
    for unit in units:
        final = commits(scene, unit, scene.nodes[0])
        expect(mine[unit][winner] <= final, f"{unit} is the one of the side whose spine is followed")
        expect(not (mine[unit][1 - winner] - mine[unit][winner]) & final, f"nothing of the other side's {unit}")
    expect(scene.world.faults["vector"] > 0, "heads have moved together")


def _index_of(scene: Scene, unit: UnitName, commit: CommitId) -> int:
    """Of a commit of this unit; 0 for the start."""
    known = scene.world.observed_of[unit].commits.get(commit)
    return known.index if known is not None else 0


async def _middle_of_a_pass(scene: Scene) -> dict[UnitName, int]:
    """Until everybody has one more commit of the first two fragments than at the beginning of a pass, and nobody one of the others;
    returns the indices at its beginning.
    """
    units = scene.world.layout.units
    marks: dict[UnitName, int] = {}

    def is_middle() -> bool:
        least = {unit: min(node.index_of(unit) for node in scene.nodes) for unit in units}
        most = {unit: _index(scene, unit) for unit in units}
        is_over = any(most[unit] != marks.get(unit) for unit in units[2:])
        if is_over or any(most[unit] > marks[unit] + 1 for unit in units[:2]):
            marks.clear()
            marks.update(most)
        return all(least[unit] == most[unit] == marks[unit] + (unit in units[:2]) for unit in units)

    await scene.until(is_middle, "the middle of a pass", 400.0)
    return marks


for _sizes in ((3, 2), (2, 2)):
    add(
        Scenario(
            f"fragments-cut-{_sizes[0]}-{_sizes[1]}",
            partial(_fragments, sizes=_sizes),
            sum(_sizes),
            replace(QUIET, layout=FRAGMENTS),
            loses_nothing=True,
        )
    )


# --- experts ------------------------------------------------------------------------------------------------------------------


@scenario(6, APART, loses_nothing=True)
async def expert_of_the_losing_side(scene: Scene) -> None:
    """Only the side that loses holds expert 2: nobody else moved it, so that its work stands, and goes on with the other spine."""
    lost = [node for node in scene.nodes if "expert-2" in node.units]
    won = [node for node in scene.nodes if node not in lost]
    expert = UnitName("expert-2")
    await all_move(scene)
    with scene.cut(won, lost):
        before = _index(scene, expert)
        await scene.sleep(LONG_S)
        expect(_index(scene, expert) > before, "the expert goes on beside its lone trunk")
        heads = [_spine_of(scene, side) for side in (won, lost)]
        made = commits(scene, expert, lost[0])
    await scene.until(partial(is_one, scene), "agreement", 300.0)
    expect(_winner(scene, (won, lost), heads) == won, "four trunks outweigh two")
    expect(made <= commits(scene, expert, lost[0]), "the expert keeps what it did alone")
    await all_move(scene)
    trunk = commits(scene, scene.world.layout.spine, won[0])
    record = lost[0].services[expert].chain.head.record
    expect(record is not None and record.spine in trunk, "it cites the followed trunk from then on")


@scenario(6, APART, loses_nothing=True)
async def only_holders_apart(scene: Scene) -> None:
    """The two holders of expert 0 cannot reach each other, everybody else can reach both. The trunk goes on with all; the expert parts
    after the patience, and becomes one again when they meet.
    """
    expert, trunk = UnitName("expert-0"), scene.world.layout.spine
    one, other = (node for node in scene.nodes if expert in node.units)
    await all_move(scene)
    with scene.cut([one], [other]):
        before = scene.world.rounds()
        await scene.sleep(LONG_S)
        expect(scene.world.rounds() >= before + 3, "the trunk goes on")
        expect(not scene.world.observed.num_lone, "nobody leaves the trunk")
        parted = [commits(scene, expert, node) for node in (one, other)]
        expect(bool(parted[0] - parted[1]) and bool(parted[1] - parted[0]), "the expert has two lineages")
    await scene.until(partial(is_one, scene), "agreement", 300.0)
    expect(len({node.head_of(trunk) for node in scene.nodes}) == 1, "one trunk")


@scenario(6, APART)
async def holders_behind_walls(scene: Scene) -> None:
    """Nobody can reach the two holders of expert 1: others who do not hold it reduce for them, and both count in full."""
    expert = UnitName("expert-1")
    holders = [node for node in scene.nodes if expert in node.units]
    for node in holders:
        node.crash()
        node.is_inbound_reachable = False
    await scene.sleep(3.0)
    scene.boot(*holders)
    await scene.until(partial(is_one, scene), "agreement")
    before = _index(scene, expert)
    await scene.until(lambda: _index(scene, expert) >= before + 4, "four rounds of the expert", 240.0)
    lineage = scene.world.observed_of[expert].lineage(holders[0].services[expert].chain.head.commit)
    last = [known.record for known in lineage[-2:]]
    peers = {node.peer for node in holders}
    expect(all({c.peer for c in record.contributors} == peers for record in last), "both count")
    expect(all(part.reducer not in peers for record in last for part in record.slices), "others reduce")
    expect(all(not part.omitted for record in last for part in record.slices), "nobody is left out")


async def _in_mid_round(scene: Scene, unit: UnitName) -> list[Node]:
    """The holders of a unit, while an attempt of theirs is exchanging."""
    holders = [node for node in scene.nodes if unit in node.units]

    def is_exchanging() -> bool:
        return any(node.services[unit].state.open.exchange is not None for node in holders if unit in node.services)

    await scene.until(is_exchanging, f"an exchange of {unit}", 120.0)
    return holders


@scenario(6, APART)
async def all_holders_of_an_expert_die(scene: Scene) -> None:
    """In the middle of its round. The trunk and the other experts commit on, the expert stands still; when its holders come back it
    goes on from the newest commit that any of them had.
    """
    expert = UnitName("expert-0")
    others = [unit for unit in scene.world.layout.units if unit != expert]
    await all_move(scene)
    holders = await _in_mid_round(scene, expert)
    newest = max(holders, key=lambda node: node.index_of(expert))
    made, index = commits(scene, expert, newest), newest.index_of(expert)
    for node in holders:
        node.crash()
    before = {unit: _index(scene, unit) for unit in others}
    await scene.until(lambda: all(_index(scene, u) >= n + 3 for u, n in before.items()), "rounds of the others", 400.0)
    expect(not scene.world.holders(expert), "nobody holds the expert")
    expect(_index_now(scene, expert) == index, "it stands where it stood")
    scene.boot(*holders)
    await scene.until(lambda: all(node.index_of(expert) > index for node in holders), "the expert's next round", 240.0)
    expect(made <= commits(scene, expert, holders[0]), "it goes on from the newest commit")
    await scene.until(partial(is_one, scene), "agreement", 300.0)


def _index_now(scene: Scene, unit: UnitName) -> int:
    """How many rounds a unit has had in all that was ever seen."""
    return max((known.index for known in scene.world.observed_of[unit].commits.values()), default=0)


@scenario(6, APART)
async def a_newcomer_at_a_frozen_expert(scene: Scene) -> None:
    """It has no state and nobody to take one from, and begins alone at the start. When the old holders are back their work, which is
    more, is what goes on, with what the newcomer did on top of it.
    """
    expert = UnitName("expert-0")
    await all_move(scene, rounds=4)
    holders = await _in_mid_round(scene, expert)
    made = commits(scene, expert, max(holders, key=lambda node: node.index_of(expert)))
    for node in holders:
        node.crash()
    await scene.rounds(2, within_s=400.0)
    newcomer = scene.world.add_node()
    expect(expert in newcomer.units, "it takes what the run lacks")
    scene.boot(newcomer)
    await scene.until(lambda: newcomer.index_of(expert) > 0, "a round of its own", 400.0)
    scene.boot(*holders)
    await scene.until(partial(is_one, scene), "agreement", 400.0)
    expect(made <= commits(scene, expert, newcomer), "the old holders' work stands")


@scenario(6, APART)
async def a_newcomer_goes_on_with_a_frozen_expert_from_what_the_host_keeps(scene: Scene) -> None:
    """The host has followed the expert round by round. With all its holders gone for good a newcomer goes on from the newest commit
    that the host could fetch, and nothing of what was committed up to there is lost.
    """
    expert = UnitName("expert-0")
    host = SimulatedKeeper(scene.world, MemoryDisk())
    await all_move(scene, rounds=4)
    holders = await _in_mid_round(scene, expert)
    newest = max(holders, key=lambda node: node.index_of(expert))
    lineage, index = commits(scene, expert, newest), newest.index_of(expert)
    for node in holders:
        node.crash()
    await scene.rounds(2, within_s=400.0)
    expect(index - 1 <= host.kept[expert] <= index, "the host has followed to the last round, or the one before")
    newcomer = scene.world.add_node()
    newcomer.kept_by = KEEPER
    scene.boot(newcomer)
    await scene.until(lambda: newcomer.index_of(expert) > host.kept[expert] > 0, "a round on top of those", 400.0)
    known = scene.world.observed_of[expert].commits
    followed = {commit for commit in lineage if commit in known and known[commit].index < index}
    expect(followed <= commits(scene, expert, newcomer), "the work of those who are gone stands")
    scene.boot(*holders)
    await scene.until(partial(is_one, scene), "agreement", 400.0)


# --- stages -------------------------------------------------------------------------------------------------------------------


@scenario(4, replace(QUIET, layout=STAGES), loses_nothing=True)
async def stages_cut_across(scene: Scene) -> None:
    """Two replicas of each of two stages, cut so that each side has one of each. Both stages end up with the same side's work, also
    for those who hold the second stage only and follow the first one by its records.
    """
    sides = (scene.nodes[:2], scene.nodes[2:])
    units = scene.world.layout.units
    await all_move(scene)
    with scene.cut(*sides):
        await scene.sleep(LONG_S)
        heads = [_spine_of(scene, side) for side in sides]
        mine = [commits(scene, units[1], side[1]) for side in sides]
        expect(bool(mine[0] - mine[1]) and bool(mine[1] - mine[0]), "the second stage has two lineages")
    await scene.until(partial(is_one, scene), "agreement", 300.0)
    winner = sides.index(list(_winner(scene, sides, heads)))
    expect(mine[winner] <= commits(scene, units[1], sides[winner][1]), "the second stage follows the first one's side")
    followed = scene.world.observed.lineage_ids(_spine_of(scene, scene.nodes))
    for node in scene.nodes:
        if node.follower is not None:
            expect(node.follower.view.head in followed, "who holds no first stage follows it")


async def _stage_is_lost(scene: Scene, stage: UnitName) -> None:
    """All replicas of a stage are gone for good. The host has followed it; a newcomer takes it, goes on from what the host keeps, and
    all of that stage's work up to there stands. When the old holders are back they follow.
    """
    host = SimulatedKeeper(scene.world, MemoryDisk())
    await all_move(scene, rounds=4)
    holders = await _in_mid_round(scene, stage)
    newest = max(holders, key=lambda node: node.index_of(stage))
    lineage, index = commits(scene, stage, newest), newest.index_of(stage)
    for node in holders:
        node.crash()
    await scene.sleep(30.0)
    expect(not scene.world.holders(stage), "nobody holds the stage")
    expect(index - 1 <= host.kept[stage] <= index, "the host has followed to the last round, or the one before")
    newcomer = scene.world.add_node()
    expect(stage in newcomer.units, "it takes what the run lacks")
    newcomer.kept_by = KEEPER
    scene.boot(newcomer)
    await scene.until(lambda: newcomer.index_of(stage) > host.kept[stage] > 0, "a round on top of those", 400.0)
    known = scene.world.observed_of[stage].commits
    followed = {commit for commit in lineage if commit in known and known[commit].index < index}
    expect(followed <= commits(scene, stage, newcomer), "the work of those who are gone stands")
    scene.boot(*holders)
    await scene.until(partial(is_one, scene), "agreement", 400.0)


for _stage, _num_peers in ((STAGES.units[0], 4), (STAGES.units[1], 5)):
    add(
        Scenario(
            f"all-replicas-of-{_stage}-are-gone",
            partial(_stage_is_lost, stage=_stage),
            _num_peers,
            replace(QUIET, layout=STAGES),
        )
    )


# --- the one step in which all heads move -----------------------------------------------------------------------------------


async def _dies_while_heads_move(scene: Scene, num_writes: int) -> None:
    """Power goes after so many writes from the record of all heads on. The record's content holds after the restart."""
    nodes = list(scene.nodes)
    lost, won = nodes[:2], nodes[2:]
    victim, disk = lost[0], lost[0].disk
    await all_move(scene)
    writes: list[str] = []
    begin, finish = disk.begin, disk.finish
    names: dict[int, str] = {}

    def watched_begin(name: str, record: bytes) -> int:
        write = begin(name, record)
        names[write] = name
        return write

    def watched_finish(write: int) -> None:
        finish(write)
        if victim.is_up and (writes or names.get(write) == VECTOR_LOG):
            writes.append(names.get(write, ""))
            if len(writes) == num_writes:
                scene.world.nursery.start_soon(_crash, victim)

    with replaced(disk, begin=watched_begin, finish=watched_finish):
        with scene.cut(lost, won):
            await scene.sleep(LONG_S)
        await scene.until(lambda: not victim.is_up, "the crash", 300.0)
    moves = read_moves(disk.logs[VECTOR_LOG][[r[:1] for r in disk.logs[VECTOR_LOG]].index(b"M")])
    await scene.sleep(2.0)
    before = victim.session
    scene.boot(victim)

    def has_started() -> bool:
        services = [victim.services.get(unit) for unit in victim.units]
        return all(service is not None and service.config.me.session > before for service in services)

    await scene.until(has_started, "the start")
    expect(len(moves) > 1, "several fragments were to move")
    for move in moves:
        certificates = raws_of(victim.services[move.unit].chain)
        expect(set(move.certificates) <= set(certificates), f"{move.unit} is where the record says, from the start on")
    await scene.until(partial(is_one, scene), "agreement", 300.0)


async def _crash(node: Node) -> None:
    node.crash()


for _num_writes in (1, 2, 3, 5, 8):
    add(
        Scenario(
            f"power-cut-after-{_num_writes}-writes-of-heads",
            partial(_dies_while_heads_move, num_writes=_num_writes),
            5,
            replace(QUIET, layout=FRAGMENTS),
            num_seeds=1 if _num_writes in (2, 5) else 0,
        )
    )
