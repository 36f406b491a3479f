"""`potluck doctor`: problems that would prevent or slow down a run on this machine, each with a fix. `potluck join` runs the short
form first.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peer.checks.machine_core import Finding, Level, Readings, Torch, Unread, judge, report_lines, unread, worst
from peer.checks.machine_readings import READING_WITHIN_S, read_machine, within
from peer.settings.config import PeerConfig
from peer.settings.exit_codes import OK
from protocol.errors import MachineError, PotluckError

if TYPE_CHECKING:
    from peer.checks.host_core import HostReadings
    from protocol.run.manifest import RunConfig

FAILED: Final = MachineError.exit_code
NO_HOST: Final = "to check clock, ports and bandwidth, add the line of a host: potluck doctor potluck1:..."
"""The last line of a report without an invite or a last run, so that half a report does not look complete."""

HOST_WITHIN_S: Final = 40.0
"""Longer than the deadlines of peer/checks/host_readings.py, whose errors say more."""


def run_doctor(config: PeerConfig, invite_text: str, *, as_json: bool) -> int:
    """Read, judge and print: first this machine, then the way to the host of the invite, or of the last run if the invite is empty.
    Returns the exit code: 0 if nothing fails, else that of a MachineError.
    """
    run = _last_run(config.state_dir, invite_text)
    machine = read_machine(config.state_dir, config.device, cache_bytes=config.cache_bytes, run=run)
    findings = judge(machine) + _judge_cards(config, machine) + _judge_plan(config, machine, invite_text)
    if not as_json:
        print("\n".join(report_lines(findings)), flush=True)
    host = within(HOST_WITHIN_S, partial(_read_host, config, invite_text))
    host_findings = _judge_host(host)
    findings += host_findings
    if as_json:
        print(_json(findings, machine, host), flush=True)
    else:
        print("\n".join(report_lines(host_findings)) or NO_HOST, flush=True)
    return FAILED if worst(findings) is Level.FAIL else OK


def _read_host(config: PeerConfig, invite_text: str) -> HostReadings | None:
    from peer.checks.host_readings import read_host  # importing grpc and trio is slow

    return read_host(config, invite_text)


def _judge_host(host: HostReadings | Unread | None) -> tuple[Finding, ...]:
    from peer.checks.host_core import judge_host

    if host is None:
        return ()
    return (unread("host", host),) if isinstance(host, Unread) else judge_host(host)


def _judge_cards(config: PeerConfig, machine: Readings) -> tuple[Finding, ...]:
    """All cards of the machine, where there are several."""
    from peer.checks.all_cards_core import card_findings

    return card_findings(machine.torch.cards, config.gpus, config.device) if isinstance(machine.torch, Torch) else ()


def _judge_layout(config: PeerConfig, torch: Torch | None, run: RunConfig) -> tuple[Finding, ...]:
    """How several cards would train the last joined run. The processes on the CPU that `--gpus` names count as cards."""
    from peer.cards.all_cards import MachineCards
    from peer.checks.all_cards_core import layout_finding
    from peer.checks.expected_layout import layout_on
    from peer.training.plan.layout_core import Links

    found = MachineCards() if torch is None else MachineCards(torch.cards, Links(apart=frozenset(torch.apart)))
    try:
        return (layout_finding(layout_on(config, run, lambda: found)),)
    except PotluckError as error:
        return (Finding("layout", Level.FAIL, error.one_line()),)


def _judge_plan(config: PeerConfig, machine: Readings, invite_text: str) -> tuple[Finding, ...]:
    """How the last joined run would be trained here; nothing without a run, or where the readings do not tell."""
    run = within(READING_WITHIN_S, partial(_run_kept, config.state_dir, invite_text))
    if run is None or isinstance(run, Unread) or isinstance(machine.memory, Unread):
        return ()
    from peer.checks.expected_layout import named_cards
    from peer.checks.expected_plan import card_of, expected_plan, plan_finding
    from peer.machine.torch_extras import why_no_compiler

    torch = machine.torch if isinstance(machine.torch, Torch) else None
    card = card_of(machine.graphics, machine.memory.total_bytes, config.device, torch)
    has_cards = torch is not None and len(torch.cards) > 1 and config.device in ("auto", "cuda")
    if has_cards or (config.device == "cpu" and len(named_cards(config)) > 1):
        return _judge_layout(config, torch, run)
    if card is None:
        return ()
    return (plan_finding(expected_plan(card, run, config, has_compiler=not why_no_compiler("cuda"))),)


def check_before_join(config: PeerConfig, invite_text: str) -> None:
    """The short form, with only the quick checks. Each warning is a line on standard error.

    Raises:
        MachineError: the first check that fails.
    """
    run = _last_run(config.state_dir, invite_text)
    readings = read_machine(config.state_dir, config.device, cache_bytes=config.cache_bytes, run=run, asks_torch=False)
    findings = judge(readings)
    for finding in findings:
        if finding.level is Level.FAIL:
            raise MachineError(f"{finding.name}: {finding.found}", "", finding.fix)
    for finding in findings:
        if finding.level is Level.WARN:
            fix = f"; {finding.fix}" if finding.fix else ""
            print(f"potluck: warn: {finding.name}: {finding.found}{fix}", file=sys.stderr, flush=True)


def _last_run(state_dir: Path, invite_text: str) -> RunConfig | None:
    """The run of the invite, or the last joined one; None if it is not known here, or cannot be read in time."""
    found = within(READING_WITHIN_S, partial(_run_kept, state_dir, invite_text))
    return None if isinstance(found, Unread) else found


def _run_kept(state_dir: Path, invite_text: str) -> RunConfig | None:
    from peer.checks.known_runs import find_kept_run
    from protocol.identity.invite import decode_invite

    kept = find_kept_run(state_dir, decode_invite(invite_text).run_id if invite_text else None)
    return None if kept is None else kept.manifest.config


def _json(findings: Sequence[Finding], machine: Readings, host: HostReadings | Unread | None) -> str:
    """The report for scripts. Names and fields are stable."""
    rows = [{"name": f.name, "level": f.level.value, "found": f.found, "fix": f.fix} for f in findings]
    read = {"machine": asdict(machine), "host": None if host is None else asdict(host)}
    return json.dumps({"worst": worst(findings).value, "findings": rows, "readings": read})
