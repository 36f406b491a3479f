"""`potluck join --dry-run`: the settings with their sources, and the resources that a run would need here. Writes nothing.

For a run that was not joined before, the invite's host is asked.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import partial

from averaging.host.settings import settings_with_origins
from peer.checks.dry_run_core import OfferedResources, peer_estimates
from peer.checks.known_runs import KeptRun, find_kept_run
from peer.checks.machine_readings import CARD_WITHIN_S, read_graphics, read_memory, within
from peer.machine.torch_extras import why_no_compiler
from peer.settings.config import PeerConfig, whole_bytes
from protocol.errors import PotluckError
from protocol.estimates.dry_run import END, Estimate, estimate_lines, setting_lines
from protocol.identity.invite import Invite, decode_invite
from protocol.run.manifest import RunConfig
from protocol.tables import duration, printable


def dry_run_lines(config: PeerConfig, flags: Mapping[str, object], invite_text: str) -> list[str]:
    """The lines to print. The invite is not used up.

    Raises:
        ConfigError, VersionError: no invite that this release understands.
        StorageError, RemoteProtocolError: what was kept of the run is damaged.
    """
    invite = decode_invite(invite_text) if invite_text else None
    joined = find_kept_run(config.state_dir, invite.run_id if invite else None)
    kept, origin = (joined, "joined from here before") if joined else _ask_host(config, invite_text)
    memory_bytes = whole_bytes(config.max_memory_gb)
    offer = OfferedResources(
        config.cache_bytes, config.no_listen, config.daily_quota_gb, memory_bytes, config.audit_share
    )
    data_bytes = _data_bytes(kept) if kept else 0
    return [
        "settings",
        *setting_lines(settings_with_origins(config, flags)),
        "run",
        *(_invite_lines(invite) if invite else ()),
        f"  {kept.manifest.config.run.name}, {origin}" if kept else f"  {origin}",
        *(() if invite or kept else ("  an invite is needed: ask the host for one",)),
        "estimates",
        *estimate_lines(peer_estimates(kept.manifest.config if kept else None, data_bytes, offer)),
        *estimate_lines(_card_estimates(config, kept.manifest.config) if kept else ()),
        END,
    ]


def _card_estimates(config: PeerConfig, run: RunConfig) -> tuple[Estimate, ...]:
    """How the card would train, and why, if its driver tells what it is."""
    from peer.checks.all_cards_core import layout_lines
    from peer.checks.expected_layout import expected_layout, has_several_cards
    from peer.checks.expected_plan import card_of, expected_plan

    if has_several_cards(config) and (choice := expected_layout(config, run)) is not None:
        return tuple(Estimate("cards" if not place else "", line) for place, line in enumerate(layout_lines(choice)))

    graphics = within(CARD_WITHIN_S, partial(read_graphics, None, takes_any=True))
    card = card_of(graphics, read_memory().total_bytes, config.device)
    if card is None:
        return (Estimate("card", "chosen once training begins; `potluck doctor` looks closer"),)
    return (Estimate("card", expected_plan(card, run, config, has_compiler=not why_no_compiler("cuda")).reason),)


def _data_bytes(kept: KeptRun) -> int:
    experts = kept.manifest.config.experts
    return kept.dataset.most_bytes(experts.holdings if experts else 0)


def _ask_host(config: PeerConfig, invite_text: str) -> tuple[KeptRun | None, str]:
    """The run as its host describes it, if the host answers, and a sentence about the result."""
    never = "was not joined from here before"
    if not invite_text:
        return None, never
    from peer.checks.known_runs import ask_for_run  # importing grpc and trio is slow

    try:
        return ask_for_run(config, invite_text), f"{never}; as its host tells it"
    except PotluckError as error:
        return None, f"{never}; its host could not be asked: {printable(error.one_line())}"


def _invite_lines(invite: Invite) -> list[str]:
    """The contents of the invite, except its secret."""
    left_s = invite.expires_unix_s - time.time()
    until = (
        f"good for another {duration(left_s)}" if left_s > 0 else f"expired {duration(-left_s)} ago: ask for another"
    )
    until = "open to anybody" if invite.is_open else until
    return [
        f"  invite to run {invite.run_id[:4].hex()}, {until}",
        f"  host at {', '.join(printable(address) for address in invite.coordinator_addresses)}",
    ]
