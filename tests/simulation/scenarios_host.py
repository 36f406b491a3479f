"""The host is away, and comes back with an old copy of its ledger while the swarm has two lineages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from coordinator.chain_log import Accepted, ChainLog
from coordinator.ledger import CommitRow
from peer.reporting import left_behind
from protocol.rounds.chain import genesis_link
from tests.simulation.node import Node
from tests.simulation.scenario import CALM, PATIENCE_S, Scene, expect, scenario
from tests.simulation.swarm import RUN_ID

QUIET = replace(CALM, round_s=20.0, heartbeat_s=2.0, longest_interval_s=25.0, weights={"clock skew": 1})
MAX_REPORTS = 8


class _Host:
    """What the host knows of the run: the production log of commits, and the ledger that it was read from."""

    def __init__(self, scene: Scene, ledger: list[CommitRow]) -> None:
        genesis = genesis_link(scene.world.start_record, scene.world.layout.spine)
        self.log = ChainLog(genesis, RUN_ID, scene.world.verifier)
        self.ledger = list(ledger)
        self.log.replay(sorted(ledger, key=lambda row: row.index))

    def hear(self, node: Node) -> None:
        """A peer reports, from the commit on that is asked for, until nothing new comes."""
        want = self.log.head.index + 1
        for _ in range(MAX_REPORTS):
            chain = node.services[node.units[0]].chain
            certificates = chain.certificates
            accepted = self._take(node, certificates[max(0, want - 1) :])
            want = accepted.want_from_index
            if want > len(certificates):
                break
        self._take(node, left_behind(node.services[node.units[0]], set()).values())

    def _take(self, node: Node, certificates: Iterable[bytes]) -> Accepted:
        head = node.services[node.units[0]].chain.head
        accepted = self.log.verify(tuple(certificates), head.commit, head.index)
        self.log.add(accepted.new)
        for item in accepted.new:
            link = item.link
            self.ledger.append(CommitRow(link.commit, link.unit, item.parent, link.index, item.certificate, 0))
        return accepted


@scenario(5, QUIET, num_seeds=2)
async def host_returns_with_an_old_copy(scene: Scene) -> None:
    """While the host is away the swarm parts for longer than the patience. It comes back with a ledger from before, hears of both
    lineages in turn, of lower indices after higher ones, and then of the end of one: it follows what the swarm follows.
    """
    one, two = scene.nodes[:3], scene.nodes[3:]
    await scene.everybody_votes()
    host = _Host(scene, [])
    for node in scene.nodes:
        host.hear(node)
    old_copy = list(host.ledger)
    await scene.rounds(2)
    with scene.cut(one, two):
        await scene.sleep(1.5 * PATIENCE_S)
        for node in one:
            host.hear(node)
        host = _Host(scene, old_copy)
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
    late = _Host(scene, old_copy)
    for node in scene.nodes:
        late.hear(node)
    expect(
        all(late.log.knows(head) for head in heads),
        "a host that comes back once all is healed hears of both lineages too",
    )
    again = _Host(scene, host.ledger)
    expect(again.log.head.commit == host.log.head.commit, "also after one more restart")


@scenario(5, QUIET, num_seeds=2)
async def host_returns_after_everybody_was_restarted(scene: Scene) -> None:
    """While the host is away the swarm parts for longer than the patience and comes together again. Then all of it is killed and
    started: who knew the side that was left knew it in memory, and those who had been on it have it on disk.
    """
    one, two = scene.nodes[:3], scene.nodes[3:]
    await scene.everybody_votes()
    host = _Host(scene, [])
    for node in scene.nodes:
        host.hear(node)
    with scene.cut(one, two):
        await scene.sleep(1.5 * PATIENCE_S)
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
