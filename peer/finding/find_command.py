"""`potluck find`: the open runs of a list or a directory, with the line that joins each."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Final

import typer

from protocol.tables import examples

if TYPE_CHECKING:
    from protocol.host.run_card import SignedCard

SHOWN: Final = 64
"""Runs that are shown."""

WARNING: Final = (
    "hosts wrote this themselves, and nobody checked it; potluck join LINE --dry-run says what a run would take"
)


def add_find_command(app: typer.Typer, panel: str) -> None:
    """Add `potluck find` to the command line."""
    finding = (
        "potluck find http://runs.example.org:8080",
        "potluck find /ip4/192.0.2.1/tcp/4700/p2p/12D3KooW... --json",
    )
    app.command("find", rich_help_panel=panel, epilog=examples(*finding))(find)


def find(
    where: Annotated[
        str,
        typer.Argument(
            metavar="URL|ADDRESS",
            help="A list, by its web address; or a directory, by addresses of its nodes with commas between them.",
        ),
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List open runs: their names, sizes, progress, and the line to join each. No account, no invite.

    A host with --keep-list has a list. `potluck directory` runs a node of a
    directory.
    """
    cards, num_out = found_cards(where)
    if as_json:
        typer.echo(json.dumps([{**asdict(each.card), "host": each.host} for each in cards]))
        return
    typer.echo("\n".join(card_lines(cards, num_out)))


def found_cards(where: str) -> tuple[list[SignedCard], int]:
    """The cards at a list or in a directory, and how many more were left out. Blocks.

    Raises:
        UsageError: neither a web address nor addresses of nodes.
        UnreachableError, RemoteProtocolError, MachineError: nobody answers, or what answers is none.
    """
    from averaging.open_runs.card_directory import unfit_directory
    from averaging.open_runs.card_lists import get_cards, unfit_list_url
    from protocol.errors import UsageError
    from protocol.host.run_card import good_cards
    from protocol.identity.invite import OPEN_PREFIX, PREFIX
    from protocol.identity.verifier import Ed25519Verifier

    if where.startswith((PREFIX, OPEN_PREFIX)):
        raise UsageError(
            "an invite in place of an address", "that of a list or of a directory", "take the invite: potluck join LINE"
        )
    is_directory = where.startswith("/")
    if expected := unfit_directory(where) if is_directory else unfit_list_url(where):
        kind = "directory" if is_directory else "list"
        other = "" if is_directory else ", or addresses of a directory, which begin with /"
        raise UsageError(f"an address that is no {kind} of runs", f"{expected}{other}", "see: potluck find --help")
    raw, num_out = _in_directory(where) if is_directory else (get_cards(where), 0)
    cards = good_cards(raw, verifier=Ed25519Verifier(), now_unix_s=time.time())
    return cards[:SHOWN], num_out + len(raw) - len(cards[:SHOWN])


def _in_directory(where: str) -> tuple[list[bytes], int]:
    from functools import partial

    from averaging.open_runs.card_directory import directory_addresses
    from averaging.open_runs.card_network import cards_in_directory
    from averaging.trio_errors import run_single_error

    return run_single_error(partial(cards_in_directory, directory_addresses(where), time.time))


def card_lines(cards: Sequence[SignedCard], num_out: int = 0) -> list[str]:
    """The runs for people, three lines each, and how many cards are not among them."""
    from protocol.identity.names import peer_name
    from protocol.tables import several

    left_out = f"{several(num_out, 'card')} left out: false, too old, replaced by a newer one, or too many"
    if not cards:
        return ["no open run is listed there now", *([left_out] if num_out else [])]
    lines = []
    for each in cards:
        card = each.card
        share = min(100, 100 * card.trained_tokens // max(1, card.total_tokens))
        lines.append(f"{card.name}: {card.model}, {several(card.num_peers, 'peer')}, {share}% trained")
        lines.append(f"  {card.about or 'no words about it'} (host {peer_name(each.host)})")
        lines.append(f"  potluck join {card.line}")
    return [*lines, *([left_out] if num_out else []), "", WARNING]
