"""`potluck host --dry-run`: the settings, the source of each, and the run's demands on machines. Reads; writes nothing."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from averaging.host.settings import settings_with_origins
from coordinator.policy.config import HostConfig
from coordinator.run.run_checks import check_new_run
from coordinator.status.dry_run_core import Data, each_peer_estimates, host_estimates
from protocol.estimates.dry_run import END, Setting, estimate_lines, run_settings, setting_lines
from protocol.host.work_rules import audit_notes
from protocol.run.host_sections import keys_of_open_door
from protocol.run.manifest import RunFile, load_run_config


def dry_run_lines(run_file: Path, config: HostConfig, flags: Mapping[str, object]) -> list[str]:
    """The lines to print. Blocks while it looks at every file of the data.

    Raises:
        ConfigError, MachineError, StorageError: the run could not be hosted, with the reason.
    """
    run = load_run_config(run_file, is_open=config.open)
    data, is_opened = _data(run_file, run, config.state_dir)
    notes = [] if is_opened else check_new_run(run, run_file.parent)
    settings = settings_with_origins(config, flags)
    return [
        "settings",
        *setting_lines(settings),
        "run",
        f"  {run.run.name}, {'an existing run that would resume' if is_opened else 'a new run'}",
        *setting_lines(_of_run(run_file, run, settings if config.open else ())),
        "estimates for the host",
        *estimate_lines(host_estimates(run, data)),
        "estimates for each peer",
        *estimate_lines(each_peer_estimates(run)),
        *(f"note: {note}" for note in (*notes, *audit_notes(run))),
        END,
    ]


def _of_run(run_file: Path, run: RunFile, opening: Sequence[Setting]) -> list[Setting]:
    """The keys of the run with their origins. `opening`: the host's settings if they open the run, whatever its file says."""
    of_file = list(run_settings(run, f"file {run_file}"))
    origin = next((each.origin for each in opening if each.name == "open"), "")
    keys = keys_of_open_door(tomllib.loads(run_file.read_text("utf-8-sig"))) if origin else frozenset()
    return [replace(each, origin=origin) if each.name in keys else each for each in of_file]


def _data(run_file: Path, run: RunFile, folder: Path) -> tuple[Data, bool]:
    """The run's data, and whether the run was opened earlier."""
    if folder.exists():
        from coordinator.run.run_files import gives_way, is_opened, reopen_run  # imports torch, which takes seconds

        if is_opened(folder) and not gives_way(run, folder):
            files = reopen_run(run_file, run, folder).dataset.files
            return Data(sum(file.num_bytes for file in files), is_packed=True), True
    from averaging.data.sources.sources import source_bytes

    return Data(source_bytes(run.data, run_file.parent), is_packed=False), False
