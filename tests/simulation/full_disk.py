"""A disk without room: for a time it takes no more bytes, refusing as ENOSPC does; then somebody makes room.

Meanwhile no vote is announced that is not on the disk, nothing falls with the refusal, and the peer's status says so. That
the peer goes on afterwards, and that nothing it acked is lost, is asked of every story at its end.
"""

from __future__ import annotations

import random
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

from averaging.state.log_entries import LOG_NAME
from averaging.storage.memory_storage import UNBOUNDED_BYTES
from peer.status.health import DiskSight
from protocol.errors import RemoteProtocolError
from protocol.rounds.messages.messages import Ack, Promise
from protocol.rounds.messages.wire import decode_message
from tests.simulation.disk import BoundedDisk
from tests.simulation.invariants import Violation

if TYPE_CHECKING:
    from tests.simulation.node import Node
    from tests.simulation.swarm import World

LEFT_BYTES: Final = (0, 300, 1500, 6000)
"""One of these fits when it begins: of 48 values nothing, the results of a round, its ack with them, and a few rounds."""

REPORTED_WITHIN_S: Final = 1.0
"""A task that a refusal ends takes its own along before it is told."""

KILLED: Final = 0.4
"""Share of the peers that are killed without room: what they told must be there at the next start."""

_VOTES: Final = {Ack: (b"A", b"L"), Promise: (b"P", b"F")}
"""How entries of a log begin that such a message rests on."""


async def full_disk(world: World, chooser: random.Random, lasts_s: float) -> None:
    """The disk of one peer is full for a time; some are killed meanwhile, and start once there is room."""
    nodes = [node for node in world.live_nodes() if not node.process.is_frozen and not node.disk.is_full]
    if not nodes:
        return
    node = chooser.choice(nodes)
    left_bytes, is_killed = chooser.choice(LEFT_BYTES), chooser.random() < KILLED
    world.happened("full disk", f"{node.name} {left_bytes} bytes left")
    node.disk.fail_with_disk_full_after(left_bytes)
    try:
        await world.swarm.timers.sleep(lasts_s)
        await _check_reported(world, node)
        if is_killed:
            node.crash()
            await world.swarm.timers.sleep(REPORTED_WITHIN_S)
    finally:
        node.disk.capacity_bytes = UNBOUNDED_BYTES
        world.trace.add(f"{node.name} has room")
    if not node.is_up and not node.has_left:
        world.happened("restart", node.name)
        world.boot(node)


async def _check_reported(world: World, node: Node) -> None:
    """Raises Violation where this disk refused entries of a log and the peer's owner is not told so."""
    session, num_refused = node.session, node.disk.num_refused
    await world.swarm.timers.sleep(REPORTED_WITHIN_S)
    if not num_refused or not node.is_up or node.process.is_frozen or node.session != session:
        return
    reported = reported_of(node)
    if "the disk refuses: no space left" not in reported and "is full" not in reported:
        raise Violation(f"the disk of {node.name} refused {num_refused} entries, its status says {reported!r}")
    world.happened("refusal told", f"{node.name} {reported}")


def reported_of(node: Node) -> str:
    """The trouble in its status, as the status page makes it."""
    refused = [service.chain.tools.generations.refused for service in node.services.values()]
    return node.trouble.sentence(refused, node.clock.monotonic_s(), DiskSight(Path("state")))


def check_reported_vote(who: str, disk: BoundedDisk, payload: bytes, spine: str) -> None:
    """Raises Violation where this is an ack or a promise that is not on the disk of who signs it. Asked while the disk is full."""
    try:
        message = decode_message(payload)
    except RemoteProtocolError:
        return  # a header of the bulk lane
    if not isinstance(message, Ack | Promise):
        return
    folder = "" if message.unit == spine else f"{message.unit}/"
    ballot = message.ballot.attempt.to_bytes(4, "little"), message.ballot.peer.encode()
    tags = _VOTES[type(message)]
    if not any(_says(entry, tags, message.base, ballot) for entry in disk.logs.get(folder + LOG_NAME, ())):
        raise Violation(f"{who} told its {type(message).__name__}, which its full disk has not")


def _says(entry: bytes, tags: Iterable[bytes], base: bytes, ballot: tuple[bytes, bytes]) -> bool:
    attempt, peer = ballot
    is_on_base = entry[:1] in tags and entry[1:33] == base
    return is_on_base and entry[33:37] == attempt and entry[39:].startswith(peer)
