"""Processes that sleep, clocks that are set, and a directory that is away: nobody mistakes its own absence for that of the others."""

from __future__ import annotations

from dataclasses import replace

from averaging.rounds.traffic.discovery import RECORD_LIFE_S
from tests.simulation.profiles import SKEW
from tests.simulation.scenario import CALM, PATIENCE_S, Scene, expect, scenario

QUIET = replace(CALM, round_s=10.0, heartbeat_s=2.0, longest_interval_s=15.0)
LONG_S = 1.5 * PATIENCE_S
JUMP_S = 600.0


# --- stopped and continued ----------------------------------------------------------------------------------------------------


@scenario(5, QUIET)
async def one_frozen(scene: Scene) -> None:
    """Longer than the patience, with a full inbox on waking: it commits nothing alone, and is back at once."""
    await scene.everybody_votes()
    frozen = scene.chooser.choice(scene.nodes)
    if scene.chooser.random() < 0.5:
        leads = scene.when(lambda seen: seen.stage in ("promising", "collecting", "settling"))
        await scene.happened(leads, "somebody leads")
        frozen = scene.opener()
    before = scene.world.rounds()
    frozen.freeze()
    await scene.sleep(LONG_S)
    expect(scene.world.rounds() >= before + 3, "the others go on")
    frozen.thaw()
    await scene.back(frozen)
    expect(not scene.world.observed.num_lone, "nobody commits alone")


@scenario(5, QUIET, num_seeds=6)
async def all_but_one_frozen(scene: Scene) -> None:
    """The one that is awake goes on alone after its patience; those who wake up do not, and as most of the voters they go on without
    what it did alone.
    """
    await scene.everybody_votes()
    awake = scene.chooser.choice(scene.nodes)
    frozen = scene.without(awake)
    for node in frozen:
        node.freeze()
        await scene.sleep(scene.chooser.choice((0.0, 0.1)))
    await scene.sleep(LONG_S + PATIENCE_S)
    expect(scene.lone_rosters() == [frozenset([awake])], "the one that is awake commits alone, once")
    lone = awake.head
    for node in frozen:
        node.thaw()
    await scene.agreement()
    expect(scene.lone_rosters() == [frozenset([awake])], "who wakes up does not commit alone")
    expect(
        lone is not None and not scene.is_followed(lone), "what one did alone is not followed by a quorum that is back"
    )


@scenario(4, QUIET)
async def all_frozen(scene: Scene) -> None:
    """The whole swarm sleeps, one after another wakes up: nobody counts its sleep as silence of the others."""
    await scene.everybody_votes()
    for node in scene.nodes:
        node.freeze()
        await scene.sleep(scene.chooser.choice((0.0, 0.3)))
    await scene.sleep(LONG_S)
    for node in scene.chooser.sample(scene.nodes, len(scene.nodes)):
        node.thaw()
        await scene.sleep(scene.chooser.choice((0.0, 0.3, 5.0)))
    await scene.rounds(2, within_s=60.0)
    expect(not scene.world.observed.num_lone, "nobody commits alone")


# --- wall clocks --------------------------------------------------------------------------------------------------------------


@scenario(5, replace(QUIET, longest_interval_s=2 * PATIENCE_S))
async def clocks_set_by_ten_minutes(scene: Scene) -> None:
    """One clock goes forwards, another one back. Nobody hears who lives in the past, and who lives in the future hears nobody: the
    others go on without them, and when the clocks are right again, with them. The patience is as long as the longest interval: to
    those who hear it, who lives in the future is there, and a round may wait two deadlines for it, each of 22 s.
    """
    await scene.everybody_votes()
    ahead, behind = scene.chooser.sample(scene.nodes, 2)
    others = scene.without(ahead, behind)
    before = max(node.index for node in others)
    ahead.jump_clock(JUMP_S)
    behind.jump_clock(-JUMP_S)
    await scene.sleep(1.5 * PATIENCE_S)
    expect(max(node.index for node in others) > before, "the others go on")
    expect(not scene.world.observed.num_lone, "nobody commits alone")
    ahead.jump_clock(-JUMP_S)
    behind.jump_clock(JUMP_S)
    await scene.back(ahead, behind)


@scenario(3, QUIET)
async def all_clocks_set(scene: Scene) -> None:
    """All clocks jump together, as after a wrong time server: rounds go on, for deadlines are on the other clock."""
    await scene.everybody_votes()
    for jump_s in (JUMP_S, -2 * JUMP_S, JUMP_S):
        for node in scene.nodes:
            node.jump_clock(jump_s)
        await scene.rounds(2, within_s=60.0)
    expect(not scene.world.observed.num_lone, "nobody commits alone")


# --- the directory ------------------------------------------------------------------------------------------------------------


@scenario(5, replace(QUIET, weights={SKEW: 1}, round_s=40.0, longest_interval_s=60.0, list_every_s=20.0), num_late=1)
async def directory_away(scene: Scene) -> None:
    """Nobody answers for the directory for longer than any record lives, and clocks are wrong by up to a minute: who knows the others
    goes on, also through a restart; who does not gets in when the directory is back.
    """
    *members, stranger = scene.nodes
    await scene.everybody_votes()
    scene.world.swarm.is_directory_up = False
    before = scene.world.rounds()
    await scene.sleep(RECORD_LIFE_S)
    restarting = scene.chooser.choice(members)
    restarting.crash()
    await scene.sleep(5.0)
    scene.boot(restarting)
    await scene.agreement(members)
    await scene.sleep(RECORD_LIFE_S - 0.5 * PATIENCE_S)
    scene.boot(stranger)
    await scene.sleep(0.5 * PATIENCE_S)
    expect(scene.world.rounds() >= before + 3, "rounds go on without the directory")
    expect(stranger.index == 0, "nobody can know the stranger yet")
    scene.world.swarm.is_directory_up = True
    await scene.back(stranger)
    expect(not scene.world.observed.num_lone, "nobody commits alone")
