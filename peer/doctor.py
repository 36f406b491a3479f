"""`potluck doctor`: what of this machine stands in the way of a run, and how to mend it. `potluck join` asks the short form."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final

from peer.config import PeerConfig
from peer.doctor_core import Finding, Level, Readings, judge, report_lines, worst
from peer.doctor_readings import read_machine
from peer.exit_codes import OK
from protocol.errors import MachineError

FAILED: Final = MachineError.exit_code


def run_doctor(config: PeerConfig, *, as_json: bool) -> int:
    """Read, judge and print; the exit code: 0 when nothing fails, else that of a MachineError."""
    readings = read_machine(config.state_dir, config.device, cache_bytes=config.cache_bytes)
    findings = judge(readings)
    print(_json(findings, readings) if as_json else "\n".join(report_lines(findings)), flush=True)
    return FAILED if worst(findings) is Level.FAIL else OK


def check_before_join(config: PeerConfig) -> None:
    """The short form: what takes tenths of a second. Each warn is a line on standard error.

    Raises:
        MachineError: something fails; the rest is not told.
    """
    readings = read_machine(config.state_dir, config.device, cache_bytes=config.cache_bytes, asks_torch=False)
    findings = judge(readings)
    for finding in findings:
        if finding.level is Level.FAIL:
            raise MachineError(f"{finding.name}: {finding.found}", "", finding.fix)
    for finding in findings:
        if finding.level is Level.WARN:
            fix = f"; {finding.fix}" if finding.fix else ""
            print(f"potluck: warn: {finding.name}: {finding.found}{fix}", file=sys.stderr, flush=True)


def _json(findings: Sequence[Finding], readings: Readings) -> str:
    """For scripts; names and fields stay."""
    rows = [{"name": f.name, "level": f.level.value, "found": f.found, "fix": f.fix} for f in findings]
    return json.dumps({"worst": worst(findings).value, "findings": rows, "readings": asdict(readings)})
