"""The host is away: while rounds go on, for longer than credentials live, while it can tell of a ban only some, and until it comes
back with an old copy of its ledger while the swarm has two lineages.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import trio

from peer.membership.credential_cache import HOST_AWAY_S, CredentialCache, recent_voters
from protocol.identity.credential import make_ca, make_request, make_tls_key, open_request
from protocol.ids import PeerId
from tests.simulation.host import Copy, Host
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, PATIENCE_S, Scene, expect, scenario
from tests.simulation.swarm import RUN_ID

QUIET = replace(CALM, round_s=20.0, heartbeat_s=2.0, longest_interval_s=25.0, weights={"clock skew": 1})
LONG_S = 1.5 * PATIENCE_S
LATE_S = QUIET.longest_interval_s + 3 * QUIET.heartbeat_s
"""A round that nothing disturbs has come by then."""


def _host_on(scene: Scene, disk: Copy) -> Host:
    """Another one, that starts with this."""
    host = Host(scene.world)
    host.restart(disk)
    return host


@scenario(4, QUIET)
async def host_restarts_and_is_restored(scene: Scene) -> None:
    """It is killed and comes back on its ledger, then its disk is lost and it comes back on an older copy: no round is late for that,
    and peers bring what the copy lacks.
    """
    await scene.everybody_votes()
    host = scene.world.host
    for node in scene.nodes:
        host.hear(node)
    old_copy = host.copy()
    await scene.rounds(1)
    for disk in (None, old_copy):
        with host.away():
            for _ in range(3):
                await scene.rounds(1, within_s=LATE_S)
            host.restart(disk)
    expect(len(host.rows) == len(old_copy.rows), "the copy lacks what came after it")
    await scene.rounds(1, within_s=LATE_S)
    await scene.agreement()
    host.check()
    expect(len(host.rows) == scene.nodes[0].index, "peers brought it, each commit once")


@scenario(5, QUIET)
async def host_returns_with_an_old_copy(scene: Scene) -> None:
    """While the host is away the swarm parts for longer than the patience. It comes back with a ledger from before, hears of both
    lineages in turn, of lower indices after higher ones, and then of the end of one: it follows what the swarm follows.
    """
    one, two = scene.nodes[:3], scene.nodes[3:]
    await scene.everybody_votes()
    host = scene.world.host
    for node in scene.nodes:
        host.hear(node)
    old_copy = host.copy()
    await scene.rounds(2)
    with scene.cut(one, two):
        with host.away():
            await scene.sleep(LONG_S)
        for node in one:
            host.hear(node)
        host.restart(old_copy)
        for node in (two[0], one[0], two[1], one[1]):
            host.hear(node)
        heads = {node.services[node.units[0]].chain.head.commit for node in (one[0], two[0])}
        expect(len(heads) == 2, "the swarm has two lineages")
        expect(all(host.log.knows(head) for head in heads), "the host knows both")
        expect(host.log.head.commit in heads, "and follows one of them")
    await scene.agreement()
    await scene.rounds(1)
    await scene.agreement()
    for node in scene.nodes:
        host.hear(node)
    expect(host.log.head.commit == scene.nodes[0].head, "the host follows what the swarm follows")
    late = _host_on(scene, old_copy)
    for node in scene.nodes:
        late.hear(node)
    expect(
        all(late.log.knows(head) for head in heads),
        "a host that comes back once all is healed hears of both lineages too",
    )
    again = _host_on(scene, host.copy())
    expect(again.log.head.commit == host.log.head.commit, "also after one more restart")


@scenario(5, QUIET)
async def host_returns_after_everybody_was_restarted(scene: Scene) -> None:
    """While the host is away the swarm parts for longer than the patience and comes together again. Then all of it is killed and
    started: who knew the side that was left knew it in memory, and those who had been on it have it on disk.
    """
    one, two = scene.nodes[:3], scene.nodes[3:]
    await scene.everybody_votes()
    host = _host_on(scene, scene.world.host.copy())
    with scene.cut(one, two):
        await scene.sleep(LONG_S)
        heads = {node.services[node.units[0]].chain.head.commit for node in (one[0], two[0])}
        expect(len(heads) == 2, "the swarm has two lineages")
    await scene.agreement()
    for _ in range(2):
        await scene.rounds(1)
        await scene.agreement()
        for node in scene.nodes:
            node.crash()
        await scene.sleep(1.0)
        scene.boot(*scene.nodes)
        await scene.agreement()
    for node in scene.nodes:
        host.hear(node)
    expect(all(host.log.knows(head) for head in heads), "a host that comes back then hears of both lineages")
    expect(host.log.head.commit == scene.nodes[0].head, "and follows what the swarm follows")


# --- credentials and bans -----------------------------------------------------------------------------------------------------

DAY_S: Final = 86_400.0
AWAY_IN_S: Final = 40.0
"""So long after the beginning the host counts as away, and a little later every credential ends."""

ENDS_IN_S: Final = 90.0
WRONG_BY_S: Final = 40.0
"""Clocks are wrong by so much: the fastest sees every credential end when the host has just gone."""


class _Authority:
    """The host's own, and what it gives to whom."""

    def __init__(self, scene: Scene) -> None:
        self._scene = scene
        self.begin_s = self.now_s()
        self._ca = make_ca(b"c" * 32, now_unix_s=self.begin_s - 2 * DAY_S)
        self._key = make_tls_key()

    def now_s(self) -> float:
        """Unix time by a clock that is right."""
        return self._scene.world.swarm.unix_offset_s + trio.current_time()

    def issue(self, node: Node, ends_unix_s: float) -> bytes:
        """A credential of a day that ends then."""
        verifier, begin_s = self._scene.world.verifier, ends_unix_s - DAY_S
        sealed = make_request(node.signer, RUN_ID, self._key, begin_s)
        request = open_request(sealed, verifier=verifier, run_id=RUN_ID, now_unix_s=begin_s)
        return self._ca.issue(request, RUN_ID, now_unix_s=begin_s, days=1, serial=1)

    def equip(self, node: Node) -> None:
        """For its next process: the host was heard, by the node's own clock, some time before the beginning."""
        own = self.issue(node, self.begin_s + ENDS_IN_S)
        heard_s = self.begin_s + AWAY_IN_S - HOST_AWAY_S + node.clock.unix_s() - self.now_s()
        roster = CredentialCache(
            RUN_ID, self._ca.certificate_der, PeerId("host"), own, self._scene.world.verifier, node.clock, heard_s
        )
        roster.rely_on(lambda: recent_voters(node.service.chain.links) if node.service is not None else ())
        node.roster = roster


@scenario(5, replace(QUIET, weights={}), num_seeds=3, num_late=1)
async def credentials_end_while_the_host_is_away(scene: Scene) -> None:
    """The host is away until every credential has ended, and clocks are wrong: who votes goes on, also through a restart; who came too
    late for a vote gets in when the host is back with new ones. (Seed 2: who was restarted missed a roster, and nobody took it back.)
    """
    *members, stranger = scene.nodes
    authority = _Authority(scene)
    for node, wrong_by_s in zip(scene.nodes, (WRONG_BY_S, -WRONG_BY_S, 0.0, 0.0, 0.0), strict=True):
        node.crash()
        node.jump_clock(wrong_by_s)
        authority.equip(node)
    scene.boot(*members)
    await scene.everybody_votes()
    await scene.sleep(authority.begin_s + ENDS_IN_S + 2 * WRONG_BY_S - authority.now_s())
    before = scene.world.rounds()
    restarting = scene.chooser.choice(members)
    restarting.crash()
    authority.equip(restarting)
    scene.boot(restarting, stranger)
    await scene.back(restarting)
    await scene.rounds(2, members)
    expect(scene.world.rounds() >= before + 2, "rounds go on without a credential that is good now")
    last = scene.world.observed.commits[scene.state(members[0]).link.commit]
    expect(set(last.record.roster) == {node.peer for node in members}, "with all of them")
    expect(stranger.index == 0, "nobody knows whether the stranger may take part")
    for node in scene.nodes:
        if node.roster is not None:
            node.roster.show(authority.issue(node, authority.now_s() + DAY_S))
            node.roster.host_was_heard()
    await scene.agreement()
    expect(not scene.world.observed.num_lone, "nobody commits alone")


@scenario(5, QUIET, is_even=True)
async def ban_on_one_side(scene: Scene) -> None:
    """The host reaches two of five when it bans one of the other three, and these make rounds with it until they hear of that. Its
    signatures of that time stand, also for the two who knew; then it is counted no more.
    """
    await scene.everybody_votes()
    nodes = scene.chooser.sample(scene.nodes, len(scene.nodes))
    two, three = nodes[:2], nodes[2:]
    banned, *others = three
    fork = scene.state(banned).link.index
    host = scene.world.host
    host.cut_off |= {node.peer for node in three}
    host.ban(banned.peer)
    with scene.cut(two, three):
        for node in two:
            host.hear(node)
        await scene.sleep(LONG_S)
        expect(scene.lone_rosters() == [frozenset(two)], "the two have a lineage of their own, once without a quorum")
        made = [known for known in scene.lineage(others[0]) if known.index > fork + 1]
        expect(
            any(banned.peer in known.counted for known in made), "the three count whom they do not know to be banned"
        )
        head = scene.state(others[0]).link.commit
    await scene.agreement([*two, *others])
    expect(scene.is_followed(head), "what was signed before the ban was heard of stands")
    for node in others:
        await scene.sleep(scene.chooser.choice((0.1, 3.0)))
        host.cut_off.discard(node.peer)
        host.hear(node)
    before = scene.world.rounds()
    await scene.rounds(3, [*two, *others])
    late = [known for known in scene.lineage(two[0]) if known.index > before + 1]
    expect(bool(late) and all(banned.peer not in known.counted for known in late), "it is counted no more")
    expect(all(banned.peer not in known.record.roster for known in late), "and votes no more")
    host.cut_off.clear()
    host.hear(banned)
    expect(not banned.is_up, "it ends when it hears of that")
