"""The lines that the host prints once its run is open: the ports in use, and the invite."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from coordinator.admission.addresses import HostAddresses, reach_note
from protocol.tables import several

if TYPE_CHECKING:
    from coordinator.admission.invites import IssuedInvite
    from coordinator.run.start_command import StartCommand


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


def open_lines(line: str) -> list[str]:
    """The line of an open run."""
    about = "open to strangers: this line has no secret, so publish it where you like; they train, and do not vote"
    return [
        f"{about}:\n\n    potluck join {line}\n",
        "the next line has a secret, and makes keepers of those who use it:",
    ]


WITHDRAWN_NOTE = (
    "no invite: that of an earlier start was withdrawn, so this start makes none. More: potluck invite --uses 20"
)
"""In place of the invite, where the owner has withdrawn it."""


def complete_lines(*, has_last_checkpoint: bool) -> list[str]:
    """In place of the invite of a complete run. A host that was away at the end may lack the last state, which only peers have."""
    lines = ["nobody can join it any more, so there is no invite; its model: potluck checkpoint list"]
    if not has_last_checkpoint:
        lines.append("the checkpoint of the last round is missing; a peer brings it that comes back by potluck join")
    return lines


def invite_end(expires_unix_s: float) -> str:
    """The day and minute at which an invite ends, as "Tue 01 Dec 08:45" of this machine's time zone."""
    return time.strftime("%a %d %b %H:%M", time.localtime(expires_unix_s))


def invite_limits(num_left: int, expires_unix_s: float) -> str:
    """As "for 2 peers, until Tue 01 Dec 08:45"."""
    return f"for {several(num_left, 'peer')}, until {invite_end(expires_unix_s)}"


def invite_lines(invite: IssuedInvite, addresses: HostAddresses, command: StartCommand) -> list[str]:
    """The invite with its limits, and a note if it works for some volunteers only. `command` started the host."""
    note = reach_note(addresses, command)
    return [
        f"invite {invite_limits(invite.num_left, invite.expires_unix_s)}; on their machines:",
        f"\n    potluck join {invite.line}\n",
        *([note] if note else []),
    ]
