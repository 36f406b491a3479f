"""`potluck status --trace FILE`: writes a trace of the peer's newest round, for ui.perfetto.dev."""

from __future__ import annotations

import json
from pathlib import Path

from averaging.host.daemon_views import rows_of
from averaging.host.http_client import get_json, read_status_address
from averaging.system.output_file import output_name, write_output
from peer.status.trace_core import chrome_trace, newest_round, training_summary
from protocol.errors import TemporaryError


def write_trace(folder: Path, target: Path) -> str:
    """Write the trace of the peer that runs from `folder`; print it if `target` is "-". Returns one sentence that describes it. Blocks
    for some seconds at most.

    Raises:
        UnreachableError: no peer runs from there.
        TemporaryError: it has no finished round to show yet.
        StorageError: the file cannot be written.
    """
    url = read_status_address(folder)
    spans = newest_round(rows_of(get_json(f"{url}/trace.json").get("spans")))
    if not spans:
        raise TemporaryError("no finished round of this peer to show", "one round, from its snapshot to its adoption")
    status = get_json(f"{url}/status.json")
    text = json.dumps(chrome_trace(spans, str(status.get("name", ""))))
    write_output(target, text + "\n", "choose another with --trace")
    training = training_summary(spans)
    trained = f", {training}" if training else ""
    return f"{output_name(target)} has {len(spans)} spans of the newest round{trained}; look at it with ui.perfetto.dev"
