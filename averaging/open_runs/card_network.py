"""Ways to take part in a public directory of open runs: as one of its nodes, or as a visitor that stores nothing for others."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from pathlib import Path

import trio

from averaging.network.libp2p.libp2p_network import Libp2pNetwork, NetworkOptions, open_libp2p_network
from averaging.network.libp2p.p2pd import P2pdOptions
from averaging.network.seams.asyncio_thread import AsyncioThread, open_asyncio_thread
from averaging.network.seams.clocks import SystemClock
from averaging.open_runs.card_directory import CardRule, read_cards
from averaging.system.leave_signals import watch_signals
from averaging.system.temporary_folder import temporary_folder
from protocol.errors import MachineError, TransportError, UnreachableError
from protocol.host import card_stamp
from protocol.host.run_card import good_cards
from protocol.identity.identity_file import HeldIdentity, open_identity
from protocol.identity.verifier import Ed25519Verifier
from protocol.ids import PeerId

Now = Callable[[], float]
"""Unix time in s."""


async def _nobody(_peer: PeerId) -> bool:
    """A node of a directory serves nothing but the directory."""
    return False


@asynccontextmanager
async def directory_node(
    thread: AsyncioThread,
    held: HeldIdentity,
    listen: Sequence[str],
    announce: Sequence[str],
    others: Sequence[str],
    unix_s: Now,
) -> AsyncIterator[Libp2pNetwork]:
    """A node of the directory.

    Args:
        held: its identity, which its address names.
        listen, announce: as of `P2pdOptions`.
        others: multiaddresses of further nodes of the same directory.

    Raises:
        MachineError: as `open_libp2p_network`.
    """
    options = NetworkOptions(
        P2pdOptions(held.path, tuple(listen), tuple(announce)),
        CardRule(Ed25519Verifier(), card_stamp.STAMP_BITS),
        initial_peers=tuple(others),
        admits=_nobody,
    )
    async with open_libp2p_network(thread, options, held.identity.peer_id, unix_s=unix_s) as network:
        yield network


@asynccontextmanager
async def visited_directory(addresses: Sequence[str], unix_s: Now, rule: CardRule) -> AsyncIterator[Libp2pNetwork]:
    """A visit to the directory that one of these nodes belongs to, under a key that is thrown away after it. The visitor's own key
    stays unknown to the directory.

    Raises:
        UnreachableError: none of the nodes answers.
        MachineError: the network does not start, or no folder takes the key.
    """
    with _thrown_away() as folder, open_identity(folder / "identity") as held:
        p2pd = P2pdOptions(held.path, (), accepts_inbound=False)
        options = NetworkOptions(p2pd, rule, admits=_nobody)
        async with (
            open_asyncio_thread() as thread,
            open_libp2p_network(thread, options, held.identity.peer_id, unix_s=unix_s) as network,
        ):
            await network.add_addresses(
                addresses
            )  # a visit that finds nobody ends; it does not go on alone, as a peer does
            await _check_there(network, addresses)
            yield network


@contextmanager
def _thrown_away() -> Iterator[Path]:
    """A folder for the key of one visit."""
    above = temporary_folder()
    try:
        folder = tempfile.TemporaryDirectory(prefix="potluck-visit-", dir=above, ignore_cleanup_errors=True)
    except OSError as error:
        raise MachineError(
            f"no folder can be made in {above} ({error.strerror})", "room for a key", "set TMPDIR to another"
        ) from error
    with folder:
        yield Path(folder.name)


async def _check_there(network: Libp2pNetwork, addresses: Sequence[str]) -> None:
    """Ping all nodes at once, since a lookup cannot tell a directory that is away from an empty one.

    Raises:
        UnreachableError: none answers.
    """
    answered: list[str] = []

    async def ping(address: str) -> None:
        try:
            await network.ping(PeerId(address.rpartition("/p2p/")[2]))
        except TransportError:
            return
        answered.append(address)

    async with trio.open_nursery() as nursery:
        for address in addresses:
            nursery.start_soon(ping, address)
    if not answered:
        raise UnreachableError(
            f"no node of a directory answers at {', '.join(addresses)}",
            "one that `potluck directory` runs",
            "check the address, or ask for that of another node",
        )


async def cards_in_directory(addresses: Sequence[str], unix_s: Now) -> tuple[list[bytes], int]:
    """Cards of a directory whose signatures and stamps hold, and how many were left out: refused, or beyond those that are read.

    Raises:
        UnreachableError, MachineError: as `visited_directory`.
    """
    rule = CardRule(Ed25519Verifier())
    async with visited_directory(addresses, unix_s, rule) as network:
        cards, num_more = await read_cards(network)
    stamped = await trio.to_thread.run_sync(partial(_stamped, cards, unix_s()))
    return stamped, num_more + rule.num_refused + len(cards) - len(stamped)


def _stamped(cards: Sequence[bytes], now_unix_s: float) -> list[bytes]:
    """Those with a good stamp: a node of a directory may be anybody's. Blocks for one try each."""
    signed = good_cards(cards, verifier=Ed25519Verifier(), now_unix_s=now_unix_s)
    recent = [each for each in signed if not card_stamp.why_no_day(each.card, now_unix_s)]
    return [each.raw for each in recent if card_stamp.is_stamped(each, card_stamp.STAMP_BITS)]


async def keep_node(
    held: HeldIdentity,
    listen: Sequence[str],
    announce: Sequence[str],
    others: Sequence[str],
    say: Callable[[str], None],
) -> None:
    """Be a node of a directory until the process is asked to leave. `say` gets lines for people.

    Raises:
        MachineError: the network does not start.
    """
    clock = SystemClock()
    async with trio.open_nursery() as nursery:

        def leave(reason: str) -> None:
            say(f"closed: {reason}")
            nursery.cancel_scope.cancel()

        await nursery.start(watch_signals, leave)
        say("starting the network: some seconds, or half a minute on a busy machine ...")
        async with (
            open_asyncio_thread() as thread,
            directory_node(thread, held, listen, announce, others, clock.unix_s) as network,
        ):
            for address in network.addresses():
                say(f"directory {address}")
            say(
                "hosts: potluck host run.toml --open --announce-dht ADDRESS; volunteers: potluck find ADDRESS; Ctrl-C ends it"
            )
            await trio.sleep_forever()
