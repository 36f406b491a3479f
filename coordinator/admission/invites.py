"""Invites: the run's addresses, the line that admits a newcomer, and the list of those that were made."""

from __future__ import annotations

import hmac
import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coordinator.ledger.ledger import WITHDRAWN_INVITE, InviteRow, Ledger
from coordinator.policy.admission import InviteFacts, invite_error
from protocol.errors import UsageError
from protocol.identity.invite import PREFIX, SECRET_BYTES, Invite, decode_invite, hash_secret
from protocol.tables import several

if TYPE_CHECKING:
    from coordinator.run.run_files import RunFiles

_ADDRESSES_KEY: Final = "invite addresses"
_BOOTSTRAP_KEY: Final = "invite bootstrap"
_START_KEY: Final = "invite of the start"
"""Key of the salt of the invite that is printed at each start while it is valid. Its secret comes from the salt and the host's
private key, so that the ledger alone admits nobody.
"""

_ID_LETTERS: Final = 8


@dataclass(frozen=True, slots=True)
class InviteAddresses:
    """Addresses of the run for newcomers: host:port of the coordinator, and multiaddresses of peers that may be up."""

    addresses: tuple[str, ...]
    bootstrap: tuple[str, ...]


def remember_reach(ledger: Ledger, reach: InviteAddresses) -> None:
    """Store the addresses for invites that another process makes later."""
    ledger.put(_ADDRESSES_KEY, json.dumps(reach.addresses).encode("ascii"))
    ledger.put(_BOOTSTRAP_KEY, json.dumps(reach.bootstrap).encode("ascii"))


def known_reach(ledger: Ledger) -> InviteAddresses | None:
    """The addresses of the last start; None if the run was never up."""
    addresses, bootstrap = ledger.get(_ADDRESSES_KEY), ledger.get(_BOOTSTRAP_KEY)
    if addresses is None or bootstrap is None:
        return None
    return InviteAddresses(tuple(json.loads(addresses)), tuple(json.loads(bootstrap)))


@dataclass(frozen=True, slots=True)
class IssuedInvite:
    """The line to paste, how many more peers may join with it, and its end in seconds since 1970."""

    line: str
    num_left: int
    expires_unix_s: int


def issue_invite(
    ledger: Ledger, run: RunFiles, reach: InviteAddresses, *, uses: int, hours: float, now_unix_s: float
) -> IssuedInvite:
    """Store a new invite by the hash of its secret."""
    return _issue(ledger, run, reach, secrets.token_bytes(SECRET_BYTES), uses, hours, now_unix_s)


def invite_of_start(
    ledger: Ledger,
    run: RunFiles,
    reach: InviteAddresses,
    private_key: bytes,
    *,
    uses: int,
    hours: float,
    is_asked: bool,
    now_unix_s: float,
) -> IssuedInvite | None:
    """The invite that the host prints at its start: the one of an earlier start while it is valid, with the present addresses. None
    if its owner has withdrawn that one and asks for no other: whoever closed the door does not find it open again.

    Args:
        private_key: the host's.
        uses, hours: of a new invite.
        is_asked: the user has set them, so an invite with other ones is not taken.
    """
    salt, asked = ledger.get(_START_KEY), (uses, int(hours * 3600))
    secret = _secret(private_key, salt) if salt is not None else b""
    for row in ledger.invites() if secret else ():
        is_meant = not is_asked or asked == (row.facts.max_uses, row.facts.expires_unix_s - row.created_unix_s)
        if row.secret_hash != hash_secret(secret) or not is_meant:
            continue
        if row.facts.is_withdrawn:
            return None
        if invite_error(row.facts, now_unix_s) is None:
            return _issued(run, reach, secret, row.facts)
    salt = secrets.token_bytes(SECRET_BYTES)
    issued = _issue(ledger, run, reach, _secret(private_key, salt), uses, hours, now_unix_s)
    ledger.put(_START_KEY, salt)
    return issued


def open_line(run: RunFiles, reach: InviteAddresses) -> str:
    """The line of an open run, with the present addresses. It has no secret, so it may be published."""
    return Invite(
        reach.addresses, run.authority.certificate_der, run.manifest.run_id, b"", 0, reach.bootstrap, 0, is_open=True
    ).encode()


def _secret(private_key: bytes, salt: bytes) -> bytes:
    return hmac.digest(private_key, b"potluck invite of the start" + salt, "sha256")[:SECRET_BYTES]


def _issue(
    ledger: Ledger, run: RunFiles, reach: InviteAddresses, secret: bytes, uses: int, hours: float, now_unix_s: float
) -> IssuedInvite:
    made_unix_s = int(now_unix_s)
    facts = InviteFacts(0, uses, made_unix_s + int(hours * 3600))
    ledger.add_invite(
        hash_secret(secret), max_uses=uses, created_unix_s=made_unix_s, expires_unix_s=facts.expires_unix_s
    )
    return _issued(run, reach, secret, facts)


def _issued(run: RunFiles, reach: InviteAddresses, secret: bytes, facts: InviteFacts) -> IssuedInvite:
    invite = Invite(
        coordinator_addresses=reach.addresses,
        ca_certificate_der=run.authority.certificate_der,
        run_id=run.manifest.run_id,
        secret=secret,
        expires_unix_s=facts.expires_unix_s,
        bootstrap=reach.bootstrap,
        max_uses=facts.max_uses,
    )
    return IssuedInvite(invite.encode(), facts.max_uses - facts.uses, facts.expires_unix_s)


@dataclass(frozen=True, slots=True)
class ListedInvite:
    """An invite for `potluck invite list`. `ends` is empty while it admits peers, else the reason why not. Times in seconds since
    1970.
    """

    id: str
    made_unix_s: int
    expires_unix_s: int
    uses: int
    max_uses: int
    ends: str


def invite_id(line: str) -> str:
    """The id of an invite in the list of invites."""
    return hash_secret(decode_invite(line).secret).hex()[:_ID_LETTERS]


def list_invites(ledger: Ledger, now_unix_s: float) -> list[ListedInvite]:
    """All invites of the run, the newest last."""
    return [_listed(row, now_unix_s) for row in ledger.invites()]


def _listed(row: InviteRow, now_unix_s: float) -> ListedInvite:
    facts, ends = row.facts, ""
    if facts.is_withdrawn:
        ends = "withdrawn"
    elif now_unix_s >= facts.expires_unix_s:
        ends = "expired"
    elif facts.uses >= facts.max_uses:
        ends = "used up"
    known_as = row.secret_hash.hex()[:_ID_LETTERS]
    return ListedInvite(known_as, row.created_unix_s, facts.expires_unix_s, facts.uses, facts.max_uses, ends)


def withdraw_invite(ledger: Ledger, which: str, now_unix_s: float) -> str:
    """Withdraw the invite with this id, or this whole line. Returns one line for the user.

    Raises:
        UsageError: no invite or more than one is meant.
        ConfigError, VersionError: a line that is damaged.
    """
    wanted = hash_secret(decode_invite(which).secret).hex() if which.startswith(PREFIX) else which.lower()
    found = [row for row in ledger.invites() if len(wanted) >= 4 and row.secret_hash.hex().startswith(wanted)]
    if len(found) != 1:
        raise UsageError(
            f"{f'{len(found)} invites of this run begin' if found else 'no invite of this run begins'} with {which[:16]}",
            "one invite",
            "potluck invite list shows them",
        )
    listed = _listed(found[0], now_unix_s)
    if listed.ends == "withdrawn":
        return f"invite {listed.id} is withdrawn already"
    ledger.put(WITHDRAWN_INVITE + found[0].secret_hash.hex(), b"%d" % int(now_unix_s))
    return f"withdrawn: invite {listed.id} admits nobody from now on; {several(listed.uses, 'peer')} joined with it and may stay"
