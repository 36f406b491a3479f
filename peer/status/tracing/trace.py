"""`potluck status --trace FILE`: writes a trace of the peer's newest round, for ui.perfetto.dev, or a picture of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from averaging.host.daemon_views import rows_of
from averaging.host.http_client import get_json, read_status_address
from averaging.system.output_file import output_name, write_output
from peer.status.tracing.round_picture_core import round_picture
from peer.status.tracing.trace_core import chrome_trace, newest_round, training_summary
from protocol.errors import TemporaryError

_PICTURE: Final = ".svg"


def write_trace(folder: Path, target: Path) -> str:
    """Write the trace of the peer that runs from `folder`; print it if `target` is "-". A file that ends in .svg gets a picture
    instead. Returns one sentence that describes it. Blocks for some seconds at most.

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
    name, is_picture = str(status.get("name", "")), target.suffix.lower() == _PICTURE
    text = round_picture(spans, name) if is_picture else json.dumps(chrome_trace(spans, name)) + "\n"
    write_output(target, text, "choose another with --trace")
    training = training_summary(spans)
    trained = f", {training}" if training else ""
    viewer = "a browser" if is_picture else "ui.perfetto.dev"
    return f"{output_name(target)} has {len(spans)} spans of the newest round{trained}; look at it with {viewer}"
