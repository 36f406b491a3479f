"""The card of an open run: what strangers are told of it, signed by its host, for lists that anybody may keep.

A card is an envelope of domain "potluck card" whose sequence is the unix time at which it was made. Its payload is JSON in ASCII, at
most MAX_CARD_BYTES with its envelope. All of its text comes from strangers. It is shown without control characters, and cut. A false
card costs a volunteer electricity and bandwidth: what a peer runs is what it installed, whatever a card says.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Final

from protocol.errors import ConfigError, PotluckError, RefusedError, RemoteProtocolError
from protocol.identity.envelope import open_envelope, seal, taken_apart
from protocol.identity.identity import Signer, Verifier
from protocol.identity.invite import decode_invite
from protocol.ids import PeerId, RunId
from protocol.received import require
from protocol.tables import shortened

CARD_DOMAIN: Final = "potluck card"
MAX_CARD_BYTES: Final = 3072
CARD_LIFE_S: Final = 1800
"""A card that is not made again for so long is of a host that is away."""

MAX_NAME: Final = 64
MAX_ABOUT: Final = 160
MAX_LINE: Final = 2048
MAX_NUMBER: Final = 1 << 60


@dataclass(frozen=True, slots=True)
class RunCard:
    """One open run.

    Attributes:
        name, about: its name, and one sentence.
        model: the family and the size, as "llama, 12.3M values".
        line: what to paste after `potluck join`.
        total_tokens, trained_tokens: of the run, and how many are committed.
        num_peers: peers that are here.
        stamp, stamp_day: the host's work for a place in a directory (protocol/host/card_stamp.py), and its day; 0 without.
    """

    name: str
    about: str
    model: str
    line: str
    total_tokens: int
    trained_tokens: int
    num_peers: int
    stamp: int = 0
    stamp_day: int = 0

    def __post_init__(self) -> None:
        for text, most in ((self.name, MAX_NAME), (self.about, MAX_ABOUT), (self.model, MAX_NAME)):
            require(len(text) <= most, f"a card with {len(text)} letters in a text", f"at most {most}")
        require(len(self.line) <= MAX_LINE, f"a line of {len(self.line)} letters", f"at most {MAX_LINE}")
        for number in (self.total_tokens, self.trained_tokens, self.num_peers, self.stamp, self.stamp_day):
            require(0 <= number <= MAX_NUMBER, f"the number {number} on a card", f"0 to {MAX_NUMBER}")


@dataclass(frozen=True, slots=True)
class SignedCard:
    """A card whose signature was checked. `host` signed it, `made_unix_s` is when, and `raw` is its envelope."""

    card: RunCard
    host: PeerId
    run_id: RunId
    made_unix_s: int
    raw: bytes


def one_line(text: str, most: int) -> str:
    """A text that may stand on a card: no control, bidirectional or invisible letters, and cut to `most`."""
    return shortened("".join(c if c.isprintable() else " " for c in text[: 4 * most]).strip(), most)


def seal_card(host: Signer, run_id: RunId, card: RunCard, now_unix_s: float) -> bytes:
    """The card, signed by the run's host.

    Raises:
        ConfigError: it is too long.
    """
    payload = json.dumps(asdict(card), separators=(",", ":")).encode("ascii")
    made_unix_s = int(now_unix_s)
    raw = seal(host, CARD_DOMAIN, run_id, made_unix_s, 1000 * (made_unix_s + CARD_LIFE_S), payload)
    if len(raw) > MAX_CARD_BYTES:
        raise ConfigError(f"a card of {len(raw)} bytes", f"at most {MAX_CARD_BYTES}", "announce fewer addresses")
    return raw


def open_card(raw: bytes, *, verifier: Verifier, now_unix_s: float) -> SignedCard:
    """Check a card: its signature, its age, and that its line is that of an open run, the one that it was signed for.

    Raises:
        RemoteProtocolError, VersionError: it is none, or it is too old.
    """
    require(len(raw) <= MAX_CARD_BYTES, f"a card of {len(raw)} bytes", f"at most {MAX_CARD_BYTES}")
    _, payload, _ = taken_apart(raw)
    card = _read(payload)
    try:
        invite = decode_invite(card.line)
    except (ConfigError, RefusedError) as error:
        raise RemoteProtocolError("a card whose line cannot be read", "the line of an open run") from error
    require(invite.is_open and not invite.secret, "a card with an invite", "the line of an open run")
    now_unix_ms = int(now_unix_s * 1000)
    envelope = open_envelope(raw, verifier=verifier, domain=CARD_DOMAIN, run_id=invite.run_id, now_unix_ms=now_unix_ms)
    # a card dated ahead would stand for ever
    is_of_now = envelope.sequence <= now_unix_s + CARD_LIFE_S
    require(is_of_now, "a card from the future", "one of now; check both clocks")
    return SignedCard(card, envelope.sender, invite.run_id, envelope.sequence, raw)


def _read(payload: bytes) -> RunCard:
    try:
        values = json.loads(payload.decode("ascii"))
        numbers = [values[key] for key in ("total_tokens", "trained_tokens", "num_peers")]
        numbers += [values.get(key, 0) for key in ("stamp", "stamp_day")]  # older releases make none
        if not all(type(number) is int for number in numbers):
            raise TypeError("a number of another kind")
        return RunCard(
            name=one_line(str(values["name"]), MAX_NAME),
            about=one_line(str(values["about"]), MAX_ABOUT),
            model=one_line(str(values["model"]), MAX_NAME),
            line=str(values["line"]),
            total_tokens=numbers[0],
            trained_tokens=numbers[1],
            num_peers=numbers[2],
            stamp=numbers[3],
            stamp_day=numbers[4],
        )
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise RemoteProtocolError("a card that cannot be read", "the card of an open run") from error


def encode_cards(cards: Iterable[bytes]) -> dict[str, list[str]]:
    """Cards as the JSON of a list."""
    return {"cards": [base64.b64encode(raw).decode("ascii") for raw in cards]}


def decode_cards(values: object, most: int) -> list[bytes]:
    """The cards in the JSON of a list, unchecked, at most so many.

    Raises:
        RemoteProtocolError: no such JSON.
    """
    cards = values.get("cards") if isinstance(values, dict) else None
    if not isinstance(cards, list):
        raise RemoteProtocolError("something else than a list of runs", 'an object with "cards"')
    try:
        return [base64.b64decode(str(text)[: 2 * MAX_CARD_BYTES], validate=True) for text in cards[:most]]
    except (binascii.Error, ValueError) as error:
        raise RemoteProtocolError("a list of runs that is damaged", "cards in base64") from error


def good_cards(raw_cards: Iterable[bytes], *, verifier: Verifier, now_unix_s: float) -> list[SignedCard]:
    """The cards that hold, one for each host, the newest; those that most peers take part in first."""
    newest: dict[PeerId, SignedCard] = {}
    for raw in raw_cards:
        try:
            found = open_card(raw, verifier=verifier, now_unix_s=now_unix_s)
        except PotluckError:
            continue
        before = newest.get(found.host)
        if before is None or before.made_unix_s < found.made_unix_s:
            newest[found.host] = found
    return sorted(newest.values(), key=lambda each: (-each.card.num_peers, each.card.name, each.host))
