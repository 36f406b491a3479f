"""The lines that the host prints once its run is open: the ports in use, and the invite."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.admission.addresses import HostAddresses, reach_note
from protocol.tables import several

if TYPE_CHECKING:
    from coordinator.admission.invites import IssuedInvite


def address_lines(addresses: HostAddresses, bulk_port: int) -> list[str]:
    """The addresses for volunteers and the TCP ports in use. `bulk_port`: the port of weights and data, 0 if there is none."""
    ports = f"{addresses.grpc_port} (host), {addresses.p2p_port} (peers)"
    if bulk_port:
        ports += f", {bulk_port} (weights and data)"
    lines = [f"address  {', '.join(addresses.public_hosts)}", f"ports    TCP {ports}"]
    if bulk_port and addresses.bulk_port and bulk_port != addresses.bulk_port:
        lines.append(
            f"port {addresses.bulk_port} is in use by another program, so weights and data come on {bulk_port} this time; free it, "
            "for a router forwards the one after the port of the peers"
        )
    return lines


def invite_lines(invite: IssuedInvite, addresses: HostAddresses) -> list[str]:
    """The invite with its limits, and a note if it works for some volunteers only."""
    until = time.strftime("%a %d %b %H:%M", time.localtime(invite.expires_unix_s))
    note = reach_note(addresses)
    return [
        f"invite for {several(invite.num_left, 'peer')}, until {until}; on their machines:",
        f"\n    potluck join {invite.line}\n",
        *([note] if note else []),
    ]
