"""`potluck find`: the open runs of a list, with the line that joins each."""

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
"""Runs that are shown of a list."""

WARNING: Final = (
    "hosts wrote this themselves, and nobody checked it; potluck join LINE --dry-run says what a run would take"
)


def add_find_command(app: typer.Typer, panel: str) -> None:
    """Add `potluck find` to the command line."""
    finding = ("potluck find http://runs.example.org:8080", "potluck find http://runs.example.org:8080 --json")
    app.command("find", rich_help_panel=panel, epilog=examples(*finding))(find)


def find(
    where: Annotated[
        str, typer.Argument(metavar="URL", help="The address of a list, as a host with --keep-list has it.")
    ],
    as_json: Annotated[bool, typer.Option("--json", help="Print the cards as JSON.")] = False,
) -> None:
    """List open runs: their names, sizes, progress, and the line to join each. No account, no invite."""
    from averaging.open_runs.card_lists import get_cards, unfit_list_url
    from protocol.errors import UsageError
    from protocol.host.run_card import good_cards
    from protocol.identity.verifier import Ed25519Verifier

    if expected := unfit_list_url(where):
        raise UsageError("an address that is no list of runs", expected, "see: potluck find --help")
    cards = good_cards(get_cards(where), verifier=Ed25519Verifier(), now_unix_s=time.time())[:SHOWN]
    if as_json:
        typer.echo(json.dumps([{**asdict(each.card), "host": each.host} for each in cards]))
        return
    typer.echo("\n".join(card_lines(cards)))


def card_lines(cards: Sequence[SignedCard]) -> list[str]:
    """The runs for people, three lines each."""
    from protocol.identity.names import peer_name
    from protocol.tables import several

    if not cards:
        return ["no open run is listed there now"]
    lines = []
    for each in cards:
        card = each.card
        share = min(100, 100 * card.trained_tokens // max(1, card.total_tokens))
        lines.append(f"{card.name}: {card.model}, {several(card.num_peers, 'peer')}, {share}% trained")
        lines.append(f"  {card.about or 'no words about it'} (host {peer_name(each.host)})")
        lines.append(f"  potluck join {card.line}")
    return [*lines, "", WARNING]
