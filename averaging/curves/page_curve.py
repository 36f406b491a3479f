"""A run's curve from its host's page: the newest rounds, as many as the page shows."""

from __future__ import annotations

from collections.abc import Mapping

from averaging.curves.curve import Curve, CurvePoint
from averaging.host.daemon_views import Row, rows_of
from averaging.host.http_client import get_json, get_rows
from protocol.errors import UnreachableError
from protocol.tables import number, printable


def curve_of_page(url: str) -> Curve:
    """The curve at the address of a host's page. Blocks, at most some seconds.

    Raises:
        UnreachableError: nobody answers there, or no host does.
    """
    status = get_json(f"{url.rstrip('/')}/api/status")
    num_rounds, shown = number(status.get("num_rounds")), rows_of(status.get("rounds"))
    if num_rounds is not None and len(shown) < num_rounds:
        status = {**status, "rounds": get_rows(url.rstrip("/"), "rounds")}
    return curve_of_status(status, url)


def curve_of_status(status: Row, url: str) -> Curve:
    """The curve in a host's /api/status. Rows that cannot be understood are left out.

    Raises:
        UnreachableError: it is no status of a host.
    """
    if not isinstance(status.get("rounds"), list):
        raise UnreachableError(f"no host's page at {url}", "the address that `potluck host` prints")
    heldout, train = _nats(status.get("heldout")), _nats(status.get("train_loss"))
    points = {}
    for row in rows_of(status.get("rounds")):
        index, total, members = row.get("index"), row.get("total_tokens"), row.get("members")
        if isinstance(index, int) and isinstance(total, int) and isinstance(members, list):
            seen_s = number(row.get("unix_s"))
            points[index] = CurvePoint(index, seen_s, total, len(members), None, heldout.get(index), train.get(index))
    name, run_id = (printable(status.get(key) or "") for key in ("run", "run_id"))
    return Curve(name or "run", run_id, tuple(points[index] for index in sorted(points)))


def _nats(curve: object) -> Mapping[int, float]:
    """The values of one of the page's curves by rounds."""
    found: dict[int, float] = {}
    for row in rows_of(curve):
        index, nats = row.get("index"), number(row.get("nats"))
        if isinstance(index, int) and nats is not None:
            found[index] = nats
    return found
