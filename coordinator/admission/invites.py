"""Invites: the run's addresses, and the line that admits a newcomer."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from coordinator.ledger.ledger import Ledger
from protocol.identity.invite import SECRET_BYTES, Invite, hash_secret

if TYPE_CHECKING:
    from coordinator.run.run_files import RunFiles

_ADDRESSES_KEY: Final = "invite addresses"
_BOOTSTRAP_KEY: Final = "invite bootstrap"


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


def issue_invite(
    ledger: Ledger, run: RunFiles, reach: InviteAddresses, *, uses: int, hours: float, now_unix_s: float
) -> str:
    """Store a new invite by the hash of its secret. Returns the line to paste."""
    invite = Invite(
        coordinator_addresses=reach.addresses,
        ca_certificate_der=run.authority.certificate_der,
        run_id=run.manifest.run_id,
        secret=secrets.token_bytes(SECRET_BYTES),
        expires_unix_s=int(now_unix_s + hours * 3600),
        bootstrap=reach.bootstrap,
        max_uses=uses,
    )
    ledger.add_invite(
        hash_secret(invite.secret),
        max_uses=uses,
        created_unix_s=int(now_unix_s),
        expires_unix_s=invite.expires_unix_s,
    )
    return invite.encode()
