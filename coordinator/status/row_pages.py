"""Peers and rounds of a run, page by page, for runs with more of them than the status lists. Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeVar

from coordinator.ledger.run_memory import RunPast
from coordinator.progress.run_view import RunPicture, away_peers, counted_in, left_out_in
from coordinator.status.run_json import PEERS_A_PAGE, ROUNDS_A_PAGE, Json, away_json, names_in, peer_json
from protocol.errors import RemoteProtocolError
from protocol.identity.chosen_name import NONE_CHOSEN
from protocol.identity.names import peer_name
from protocol.ids import PeerId
from protocol.received import require
from protocol.rounds.lineage.round_row import Counted, round_json

T = TypeVar("T")

MAX_SEARCH: Final = 64
"""Letters of a search."""

ORDERS: Final = ("name", "counted", "speed")
"""How peers may be sorted: by name, by tokens that count, by speed; the last two with the largest first."""


@dataclass(frozen=True, slots=True)
class PeerQuery:
    """The peers that are asked for.

    Attributes:
        page: counts from 0.
        order: one of ORDERS.
        search: a part of a name, nickname, team or peer id, in any case; empty for all.

    Raises:
        RemoteProtocolError: another order, or a search that is too long.
    """

    page: int = 0
    order: str = ORDERS[0]
    search: str = ""

    def __post_init__(self) -> None:
        require(self.order in ORDERS, f"order {self.order[:MAX_SEARCH]!r}", f"one of {', '.join(ORDERS)}")
        require(len(self.search) <= MAX_SEARCH, f"a search of {len(self.search)} letters", f"at most {MAX_SEARCH}")


def page_number(text: str) -> int:
    """The page that a query names.

    Raises:
        RemoteProtocolError: no whole number from 0 on.
    """
    if not (text.isascii() and text.isdecimal() and len(text) <= 9):
        raise RemoteProtocolError(f"page {text[:MAX_SEARCH]!r}", "a whole number from 0 on")
    return int(text)


def peer_page(picture: RunPicture, now_s: float, past: RunPast, query: PeerQuery) -> Json:
    """One page of the peers that this process of the host has heard and of contributors that are away. Those that are here come first
    in the order by name.

    Raises:
        RemoteProtocolError: there is no such page.
    """
    counted = counted_in(picture, past)
    away = away_peers(picture, counted)
    found = [peer for peer in (*picture.peers, *away) if _is_found(peer, picture, past, query.search.casefold())]
    ordered = sorted(found, key=_sort_key(picture, counted, now_s, query.order))
    shown, num_pages = _cut(ordered, PEERS_A_PAGE, query.page)
    left_out = left_out_in(picture)
    rows = [_row(peer, picture, counted.get(peer, Counted()), left_out.get(peer, 0.0), past, now_s) for peer in shown]
    return {"page": query.page, "num_pages": num_pages, "num_found": len(found), "peers": rows}


def round_page(picture: RunPicture, page: int) -> Json:
    """One page of the newest rounds, page 0 with the newest; in a page the oldest comes first.

    Raises:
        RemoteProtocolError: there is no such page.
    """
    newest_first, num_pages = _cut(list(reversed(picture.rounds)), ROUNDS_A_PAGE, page)
    rounds = list(reversed(newest_first))
    return {
        "page": page,
        "num_pages": num_pages,
        "rounds": [round_json(timed.row, timed.total_tokens, timed.seen_unix_s) for timed in rounds],
        "names": names_in(rounds),
    }


def _cut(rows: Sequence[T], a_page: int, page: int) -> tuple[Sequence[T], int]:
    """The rows of one page, and the number of pages, at least one."""
    num_pages = max(1, -(-len(rows) // a_page))
    require(page < num_pages, f"page {page}", f"0 to {num_pages - 1}")
    return rows[page * a_page : (page + 1) * a_page], num_pages


def _row(peer: PeerId, picture: RunPicture, counted: Counted, left_out: float, past: RunPast, now_s: float) -> Json:
    entry, is_banned = picture.peers.get(peer), peer in picture.banned
    if entry is None:
        return away_json(peer, counted, past, now_s, is_banned=is_banned)
    return peer_json(peer, entry, counted, past, now_s, is_banned=is_banned, left_out=left_out)


def _is_found(peer: PeerId, picture: RunPicture, past: RunPast, search: str) -> bool:
    if not search:
        return True
    entry = picture.peers.get(peer)
    chosen = entry.report.chosen if entry is not None else past.chosen.get(peer, NONE_CHOSEN)
    return any(search in text.casefold() for text in (peer_name(peer), chosen.nickname, chosen.team, peer))


def _sort_key(
    picture: RunPicture, counted: Mapping[PeerId, Counted], now_s: float, order: str
) -> Callable[[PeerId], tuple[float, str, str]]:
    def is_gone(peer: PeerId) -> bool:
        entry = picture.peers.get(peer)
        return entry is None or not entry.is_live(now_s)

    def key(peer: PeerId) -> tuple[float, str, str]:
        match order:
            case "counted":
                first = -float(counted.get(peer, Counted()).tokens)
            case "speed":
                first = 0.0 if is_gone(peer) else -picture.peers[peer].report.tokens_per_s
            case _:
                first = float(is_gone(peer))
        return first, peer_name(peer), peer

    return key
