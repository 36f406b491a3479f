"""`potluck doctor`: what stands in the way of a run on this machine, and how to mend it. `potluck join` asks the short form first."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from peer.checks.machine_core import Finding, Level, Readings, Unread, judge, report_lines, unread, worst
from peer.checks.machine_readings import READING_WITHIN_S, read_machine, within
from peer.settings.config import PeerConfig
from peer.settings.exit_codes import OK
from protocol.errors import MachineError

if TYPE_CHECKING:
    from peer.checks.host_core import HostReadings

FAILED: Final = MachineError.exit_code
NO_HOST: Final = "clock, ports and bandwidth are looked at with the line of a host: potluck doctor potluck1:..."
"""The last line where there is neither an invite nor a last run: half a report that says it is whole would mislead."""

HOST_WITHIN_S: Final = 40.0
"""Above the deadlines of peer/checks/host_readings.py, which say more when they pass."""


def run_doctor(config: PeerConfig, invite_text: str, *, as_json: bool) -> int:
    """Read, judge and print, first of this machine, then of the way to the host of the invite, or of the last run where that is empty.
    Returns the exit code: 0 when nothing fails, else that of a MachineError.
    """
    num_parameters = _num_parameters(config.state_dir, invite_text)
    machine = read_machine(
        config.state_dir, config.device, cache_bytes=config.cache_bytes, num_parameters=num_parameters
    )
    findings = judge(machine)
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
    from peer.checks.host_readings import read_host  # grpc and trio take a second to import

    return read_host(config, invite_text)


def _judge_host(host: HostReadings | Unread | None) -> tuple[Finding, ...]:
    from peer.checks.host_core import judge_host

    if host is None:
        return ()
    return (unread("host", host),) if isinstance(host, Unread) else judge_host(host)


def check_before_join(config: PeerConfig, invite_text: str) -> None:
    """The short form: what takes tenths of a second. Each warn is a line on standard error.

    Raises:
        MachineError: something fails; the rest is not told.
    """
    num_parameters = _num_parameters(config.state_dir, invite_text)
    readings = read_machine(
        config.state_dir,
        config.device,
        cache_bytes=config.cache_bytes,
        num_parameters=num_parameters,
        asks_torch=False,
    )
    findings = judge(readings)
    for finding in findings:
        if finding.level is Level.FAIL:
            raise MachineError(f"{finding.name}: {finding.found}", "", finding.fix)
    for finding in findings:
        if finding.level is Level.WARN:
            fix = f"; {finding.fix}" if finding.fix else ""
            print(f"potluck: warn: {finding.name}: {finding.found}{fix}", file=sys.stderr, flush=True)


def _num_parameters(state_dir: Path, invite_text: str) -> int:
    """Of the model of a run that was joined from here before; 0 where that is not known."""
    found = within(READING_WITHIN_S, partial(_parameters_kept, state_dir, invite_text))
    return 0 if isinstance(found, Unread) else found


def _parameters_kept(state_dir: Path, invite_text: str) -> int:
    from peer.checks.known_runs import find_kept_run
    from protocol.identity.invite import decode_invite

    kept = find_kept_run(state_dir, decode_invite(invite_text).run_id if invite_text else None)
    return 0 if kept is None else kept.manifest.config.held_elements


def _json(findings: Sequence[Finding], machine: Readings, host: HostReadings | Unread | None) -> str:
    """For scripts; names and fields stay."""
    rows = [{"name": f.name, "level": f.level.value, "found": f.found, "fix": f.fix} for f in findings]
    read = {"machine": asdict(machine), "host": None if host is None else asdict(host)}
    return json.dumps({"worst": worst(findings).value, "findings": rows, "readings": read})
