"""The functions behind the host's command line. They return text or values and raise PotluckError.

Heavy imports happen inside the functions: `potluck --help` must not wait for torch.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Final, get_args

from averaging.system.output_file import is_printed, write_output
from coordinator.run.hosted_folder import host_folder, is_running, require_run
from protocol.errors import ConfigError, StorageError

_MOST_USES: Final = 100_000
"""The same limit as in coordinator/policy/config.py for the invite that is printed at the start."""


def init_run(path: Path, shards: str = "data", source: str = "") -> None:
    """Write a commented run.toml that works as it is, or print it if `path` is "-".

    Args:
        shards: the parts that a peer holds, as in `run.shards`.
        source: a checkpoint to begin with, as `run_toml_from` takes it; empty for none.

    Raises:
        ConfigError: unknown kind of run, a checkpoint that cannot be trained, or the file exists already.
        StorageError: it cannot be written.
        MachineError, UnreachableError: the checkpoint cannot be fetched.
    """
    from protocol.run.experts_section import Shards
    from protocol.run.manifest import default_run_toml

    kind: Shards | None = next((known for known in get_args(Shards) if known == shards), None)
    if kind is None:
        raise ConfigError(f"shards is {shards!r}", " or ".join(get_args(Shards)), "see: potluck init --help")
    if source and kind != "data":
        raise ConfigError(
            f"--from {source} with --shards {kind}", "data: other runs begin with values from the seed", "leave one out"
        )
    if path.exists() and not is_printed(path):
        raise ConfigError(f"{path} exists already", "a new file", "choose another name or remove it")
    text = _from_checkpoint(source, path) if source else default_run_toml(kind)
    if is_printed(path):
        write_output(path, text)
        return
    try:
        with path.open("x", encoding="utf8") as file:
            file.write(text.replace("potluck host run.toml", f"potluck host {path.name}", 1))
    except FileExistsError as error:
        raise ConfigError(f"{path} exists already", "a new file", "choose another name or remove it") from error
    except OSError as error:
        raise StorageError(f"{path} cannot be written ({error.strerror})", "a writable folder") from error


def _from_checkpoint(source: str, path: Path) -> str:
    from coordinator.run.run_from_checkpoint import run_toml_from

    return run_toml_from(source, path)


def host(run_file: Path, flags: Mapping[str, object]) -> int:
    """Host the run until Ctrl-C; returns the exit code. `flags` are HostConfig's fields as given, None if not given.

    Raises:
        ConfigError, MachineError, StorageError: the run cannot be hosted, with the reason.
    """
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from coordinator.policy.config import HostConfig

    config = HostConfig.load(flags)
    # Before the heavy imports, so that a misspelt key is reported at once.
    from protocol.run.manifest import load_run_config

    load_run_config(run_file, is_open=config.open)
    from coordinator.run.hosted_folder import refuse_second_host

    refuse_second_host(config.state_dir)
    from averaging.gc_freeze import frozen_imports
    from coordinator.run.start_command import start_command

    with frozen_imports():
        from coordinator.daemon import run_host

    return run_host(run_file, config, start_command(run_file, flags))


def dry_run(run_file: Path, flags: Mapping[str, object]) -> list[str]:
    """The settings that `host` would use and estimates of the run, as lines. Starts nothing and writes nothing.

    Raises:
        ConfigError, MachineError, StorageError: the run could not be hosted, with the reason.
    """
    from coordinator.policy.config import HostConfig
    from coordinator.status.dry_run import dry_run_lines

    return dry_run_lines(run_file, HostConfig.load(flags), flags)


def make_invite(state_dir: Path | None, *, uses: int, hours: float) -> str:
    """Make one more invite of the run in `state_dir`. The host may be running.

    Raises:
        ConfigError: no run was ever hosted from there, it is complete, or a number is out of range.
    """
    if not 1 <= uses <= _MOST_USES or not 0 < hours <= 24 * 365:
        raise ConfigError(f"an invite for {uses} uses and {hours} hours", f"1 to {_MOST_USES:,} uses, and up to a year")
    folder = host_folder(state_dir)
    ledger_file = require_run(folder)
    from coordinator.admission.invites import issue_invite, known_reach
    from coordinator.ledger.ledger import open_ledger
    from coordinator.run.run_files import load_run

    run = load_run(folder)
    with open_ledger(ledger_file) as ledger:
        reach = known_reach(ledger)
        if reach is None:
            raise ConfigError(
                f"the run in {folder} was never up", "a host that ran once", "start it with: potluck host"
            )
        total_tokens = run.manifest.config.run.total_tokens
        if any(row.total_tokens >= total_tokens for row in ledger.checkpoints()):
            raise ConfigError(
                f"the run in {folder} is complete, so nobody can join it",
                "a run in progress",
                "see: potluck checkpoint list",
            )
        return issue_invite(ledger, run, reach, uses=uses, hours=hours, now_unix_s=time.time()).line


def invite_note(line: str, state_dir: Path | None) -> str:
    """The limits and the use of an invite that was just made, how to withdraw it, and that its host does not run if so. Blocks."""
    from coordinator.admission.greeting import invite_limits
    from coordinator.admission.invites import invite_id
    from coordinator.run.start_command import last_command
    from protocol.identity.invite import decode_invite

    invite = decode_invite(line)
    limits = invite_limits(invite.max_uses, invite.expires_unix_s)
    note = f"{limits}; on their machines: potluck join LINE; to withdraw it: potluck invite withdraw {invite_id(line)}"
    folder = host_folder(state_dir)
    return note if is_running(folder) else f"{note}; nobody can join before the host runs: {last_command(folder)}"


def list_invites(state_dir: Path | None) -> list[dict[str, object]]:
    """The run's invites, the newest last: id, made_unix_s, expires_unix_s, uses, max_uses, and the reason in `ends` if it admits
    nobody now. The host may be running.

    Raises:
        ConfigError: no run was ever hosted from there.
    """
    ledger_file = require_run(host_folder(state_dir))
    from coordinator.admission.invites import list_invites as listed
    from coordinator.ledger.ledger import open_ledger

    with open_ledger(ledger_file) as ledger:
        return [asdict(each) for each in listed(ledger, time.time())]


def audit_archive(state_dir: Path | None) -> list[dict[str, object]]:
    """The files of the archive of certificates of the run in `state_dir`, each checked, oldest first: unit, file, first_round,
    last_round, num_certificates, num_bytes. The host may be running.

    Raises:
        ConfigError: no run was ever hosted from there.
        StorageError: a file is missing or damaged, or the ledger cannot be read.
    """
    folder = host_folder(state_dir)
    ledger_file = require_run(folder)
    from coordinator.history.archive_audit import audited_files
    from coordinator.history.certificate_archive import ARCHIVE_FOLDER
    from coordinator.ledger.ledger import open_ledger

    with open_ledger(ledger_file) as ledger:
        return [asdict(each) for each in audited_files(ledger, folder / ARCHIVE_FOLDER)]


def withdraw_invite(state_dir: Path | None, which: str) -> str:
    """Withdraw an invite of the run in `state_dir`, by its id or line. The host may be running. Returns one line for the user.

    Raises:
        ConfigError: no run was ever hosted from there.
        UsageError: no invite or more than one is meant.
        StorageError: the ledger cannot be written; nothing was withdrawn.
    """
    ledger_file = require_run(host_folder(state_dir))
    from coordinator.admission.invites import withdraw_invite as withdraw
    from coordinator.ledger.ledger import open_ledger

    with open_ledger(ledger_file) as ledger:
        return withdraw(ledger, which, time.time())


def ban(state_dir: Path | None, who: str, *, reason: str) -> str:
    """Ban a peer permanently, by its id or name, from the run in `state_dir`. The host may be running. Returns one line for the
    user.

    Raises:
        ConfigError: no run was ever hosted from there, or the reason is invalid.
        UsageError: no peer or more than one has this name.
        MachineError, StorageError: the host's identity or ledger cannot be used.
    """
    folder = host_folder(state_dir)
    ledger_file = require_run(folder)
    from coordinator.admission.bans import ban_peer
    from coordinator.ledger.ledger import open_ledger
    from coordinator.run.run_files import IDENTITY_FILE, load_run
    from protocol.identity.identity_file import read_identity

    manifest, host_identity = load_run(folder).manifest, read_identity(folder / IDENTITY_FILE)
    with open_ledger(ledger_file) as ledger:
        return ban_peer(ledger, manifest, host_identity, who, reason, now_unix_s=time.time())
