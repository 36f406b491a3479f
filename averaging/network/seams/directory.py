"""The rule for directory records: short, signed, and soon expired.

A record's subkey is the peer id of its owner. Its value is an envelope of domain "directory" signed by that peer, whose own expiry
bounds the record's. So nobody can write in another peer's name, squat a key with a distant expiry, or replay an old record later.
Inside is the peer's credential, because free identities could fill the directory, and its addresses:

    length of the credential u16, big-endian | credential | addresses, ASCII, one a line

Next come its addresses for direct bulk streams, if it takes any: "bulk 192.0.2.1 4242,2001:db8::1 4242". In a run of experts or of
stages the last line names those that the peer holds: "experts 0 3". A line "pace 1200" before it is ignored: other releases write
it. So a line "pace = anna oak" is skipped by them, and tells the name and the team that the owner chose, percent-encoded.
"""

from __future__ import annotations

import struct
import threading
from collections import OrderedDict
from collections.abc import Callable
from hashlib import sha1, sha256
from typing import Final, NamedTuple
from urllib.parse import quote, unquote

from averaging.network.seams.bulk_address import MAX_ADDRESSES as MAX_BULK_ADDRESSES
from averaging.network.seams.bulk_address import BulkAddress, decode_addresses
from protocol.errors import LocalProtocolError, PotluckError, RefusedError, RemoteProtocolError
from protocol.identity.chosen_name import NONE_CHOSEN, ChosenName, received_name
from protocol.identity.credential import check_credential
from protocol.identity.envelope import Envelope, open_envelope, seal, taken_apart
from protocol.identity.identity import Signer, Verifier
from protocol.ids import PeerId, RunId
from protocol.tensors.expert_schema import MAX_EXPERTS

DOMAIN: Final = "directory"
MAX_RECORD_BYTES: Final = 8192
MAX_RECORD_LIFE_S: Final = 3600.0
CLOCK_SLACK_S: Final = 5.0
"""Two honest clocks may differ by this much."""

MAX_REMEMBERED: Final = 16_384
"""Verified records of which the digests are kept. That is four times what one key of the directory can hold, since a record is renewed
while its last form still goes around.
"""

MAX_ADDRESSES: Final = 8
MAX_ADDRESS_LETTERS: Final = 256
_LENGTH: Final = struct.Struct(">H")
_EXPERTS: Final = "experts "
_BULK: Final = "bulk "
_SKIPPED: Final = "pace "
_CHOSEN: Final = f"{_SKIPPED}= "
"""Before the chosen name and team, percent-encoded. Every release skips a line that begins with `_SKIPPED`, and reads no other."""


class Record(NamedTuple):
    """A record that a peer asks us to store. `key` is the id of the key to store it under, as `directory_id` makes it."""

    subkey: str
    value: bytes
    expires_unix_s: float
    key: bytes = b""


def directory_id(key: str) -> bytes:
    """The id of a key in the directory, 20 bytes, as hivemind makes it: SHA-1 over the key's msgpack.

    Raises:
        LocalProtocolError: a key of more than 255 bytes.
    """
    text = key.encode()
    if len(text) > 255:
        raise LocalProtocolError(f"a key of {len(text)} bytes", "at most 255")
    head = bytes([0xA0 | len(text)]) if len(text) < 32 else bytes([0xD9, len(text)])
    return sha1(head + text, usedforsecurity=False).digest()


class PeerRecord(NamedTuple):
    """Contents of a peer's record: credential, multiaddresses (each ending in /p2p/<its own id>), experts, bulk addresses, and
    the name that its owner chose.
    """

    credential: bytes
    addresses: tuple[str, ...] = ()
    experts: tuple[int, ...] = ()
    bulk: tuple[BulkAddress, ...] = ()
    chosen: ChosenName = NONE_CHOSEN

    def encode(self) -> bytes:
        """The payload. Addresses beyond MAX_ADDRESSES and malformed ones are left out."""
        fine = [address for address in self.addresses if address.isascii() and len(address) <= MAX_ADDRESS_LETTERS]
        lines = fine[:MAX_ADDRESSES]
        if self.bulk:
            lines.append(_BULK + ",".join(map(str, self.bulk[:MAX_BULK_ADDRESSES])))
        if self.chosen:
            lines.append(f"{_CHOSEN}{quote(self.chosen.nickname)} {quote(self.chosen.team)}")
        if self.experts:
            lines.append(_EXPERTS + " ".join(map(str, self.experts)))
        return _LENGTH.pack(len(self.credential)) + self.credential + "\n".join(lines).encode()


def decode_peer_record(payload: bytes, owner: PeerId) -> PeerRecord:
    """Decode a record's payload.

    Raises:
        RemoteProtocolError: not a record, too many addresses, or another peer's.
    """
    try:
        (length,) = _LENGTH.unpack_from(payload)
        text = payload[_LENGTH.size + length :].decode("ascii")
    except (struct.error, UnicodeDecodeError) as error:
        raise RemoteProtocolError("a directory record that cannot be read", "a credential and addresses") from error
    credential = payload[_LENGTH.size : _LENGTH.size + length]
    lines = text.split("\n") if text else []
    experts = _experts(lines.pop()) if lines and lines[-1].startswith(_EXPERTS) else ()
    chosen = _chosen(lines.pop()) if lines and lines[-1].startswith(_SKIPPED) else NONE_CHOSEN
    bulk = _bulk(lines.pop()) if lines and lines[-1].startswith(_BULK) else ()
    addresses = tuple(lines)
    is_own = all(a.endswith(f"/p2p/{owner}") and len(a) <= MAX_ADDRESS_LETTERS for a in addresses)
    if len(credential) != length or len(addresses) > MAX_ADDRESSES or not is_own:
        raise RemoteProtocolError("a directory record of other contents", "a credential and the owner's addresses")
    return PeerRecord(credential, addresses, experts, bulk, chosen)


def _bulk(line: str) -> tuple[BulkAddress, ...]:
    addresses = decode_addresses(line.removeprefix(_BULK).replace(",", "\n").encode("ascii"))
    if not addresses:
        raise RemoteProtocolError("a directory record of other contents", "addresses for bulk")
    return addresses


def _chosen(line: str) -> ChosenName:
    """The names in a line; none for a line of an older release, or where they cannot be shown."""
    if not line.startswith(_CHOSEN):
        return NONE_CHOSEN
    nickname, _, team = line.removeprefix(_CHOSEN).partition(" ")
    return ChosenName(received_name(unquote(nickname)), received_name(unquote(team)))


def _experts(line: str) -> tuple[int, ...]:
    numbers = line.removeprefix(_EXPERTS).split(" ")
    if len(numbers) > MAX_EXPERTS or not all(number.isdecimal() and len(number) <= 4 for number in numbers):
        raise RemoteProtocolError("a directory record of other contents", "numbers of experts")
    return tuple(int(number) for number in numbers)


RecordRule = Callable[[Record, float], str]
"""(record, unix time now in s) -> why it may not be stored, "" if it may."""


def seal_record(signer: Signer, run_id: RunId, sequence: int, expires_unix_s: float, payload: bytes) -> bytes:
    """The value of our own record: publish it under our peer id as subkey, with the same expiry."""
    return seal(signer, DOMAIN, run_id, sequence, round(expires_unix_s * 1000), payload)


def open_record(value: bytes, *, verifier: Verifier, run_id: RunId) -> Envelope:
    """A looked-up value, checked.

    Raises:
        RemoteProtocolError, VersionError: as `open_envelope`.
    """
    return open_envelope(value, verifier=verifier, domain=DOMAIN, run_id=run_id, now_unix_ms=None)


def sized_record_rule(record: Record, now_unix_s: float) -> str:
    """The rule without signatures: size and expiry."""
    if len(record.value) > MAX_RECORD_BYTES:
        return f"{len(record.value)} bytes, at most {MAX_RECORD_BYTES}"
    if not now_unix_s - CLOCK_SLACK_S < record.expires_unix_s <= now_unix_s + MAX_RECORD_LIFE_S + CLOCK_SLACK_S:
        return f"expires in {record.expires_unix_s - now_unix_s:.0f} s, allowed are 0 to {MAX_RECORD_LIFE_S:.0f} s"
    return ""


PayloadRule = Callable[[PeerId, bytes, float], None]
"""(owner, payload, unix time now in s) -> nothing; raises PotluckError if it may not be stored."""


class _SeenRecords:
    """Digests of records whose signatures are good, the latest MAX_REMEMBERED, with sender and expiry. Any thread may ask."""

    def __init__(self, verifier: Verifier, run_id: RunId) -> None:
        self._verifier, self._run_id = verifier, run_id
        self._known = OrderedDict[bytes, tuple[PeerId, int]]()
        self._lock = threading.Lock()

    def checked(self, value: bytes) -> tuple[PeerId, int]:
        """(the sender of this record, when it expires, unix ms).

        Raises:
            RemoteProtocolError, VersionError: as `open_record`.
        """
        digest = sha256(value).digest()
        with self._lock:
            known = self._known.get(digest)
        if known is None:
            envelope = open_record(value, verifier=self._verifier, run_id=self._run_id)
            known = envelope.sender, envelope.expires_unix_ms
        with self._lock:
            self._known[digest] = known
            self._known.move_to_end(digest)
            if len(self._known) > MAX_REMEMBERED:
                self._known.popitem(last=False)
        return known


def signed_record_rule(verifier: Verifier, run_id: RunId, check_payload: PayloadRule | None = None) -> RecordRule:
    """The rule with size, expiry, the owner's signature in this run, and `check_payload` if given.

    Good signatures are remembered, because every lookup returns each member's record from several nodes.
    """
    seen = _SeenRecords(verifier, run_id)

    def judge(record: Record, now_unix_s: float) -> str:
        reason = sized_record_rule(record, now_unix_s)
        if reason:
            return reason
        try:
            sender, expires_unix_ms = seen.checked(record.value)
            if sender != record.subkey:
                return f"signed by {sender}, stored for {record.subkey}"
            if record.expires_unix_s > expires_unix_ms / 1000 + 0.001:
                return "kept longer than its owner allowed"
            if check_payload is not None:
                _, payload, _ = taken_apart(record.value)
                check_payload(sender, payload, now_unix_s)
        except PotluckError as error:
            return error.one_line()
        return ""

    return judge


JudgedAsOf = Callable[[PeerId, float], float]
"""(owner, unix time now in s) -> unix time at which its credential must be valid. May be called on any thread."""


def _as_of_now(_owner: PeerId, now_unix_s: float) -> float:
    return now_unix_s


def member_record_rule(
    verifier: Verifier,
    run_id: RunId,
    ca_certificate_der: bytes,
    judged_as_of: JudgedAsOf = _as_of_now,
    is_banned: Callable[[PeerId], bool] = lambda _: False,
) -> RecordRule:
    """The whole rule of a run: only a peer with a valid credential in its record has a place in the directory.

    `judged_as_of` accepts members whose credential expired while nobody could renew it.
    """

    def check(owner: PeerId, payload: bytes, now_unix_s: float) -> None:
        if is_banned(owner):
            raise RefusedError(f"{owner} is banned from this run", "a peer in good standing")
        credential, as_of_s = decode_peer_record(payload, owner).credential, judged_as_of(owner, now_unix_s)
        check_credential(credential, ca_certificate_der, peer_id=owner, run_id=run_id, now_unix_s=as_of_s)

    return signed_record_rule(verifier, run_id, check)
