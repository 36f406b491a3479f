"""How often and how much a caller may have measured, pure: the time comes as an argument, in seconds of any one clock.

A caller is an address; in IPv6 a /64, which one machine has to itself.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict, deque
from typing import Final

from protocol.errors import TemporaryError
from protocol.host.calls import MAX_PROBE_BYTES

CALLS_WITHIN: Final = 4
WITHIN_S: Final = 60.0
"""Four checks a minute: enough to try a port forwarding, far too few to look for open ports."""

MAX_CALLERS: Final = 4096
"""Who called longest ago is forgotten first; a megabyte at most."""

TURN_S: Final = 12.0
"""One check of the bandwidth: three seconds each way, and as much again for a slow start."""

TURN_BYTES: Final = 2 * MAX_PROBE_BYTES + (1 << 20)


def caller_of(host: str) -> str:
    """Whom an address stands for; what is no address stands for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


class CallLimit:
    """So many calls of each caller within so many seconds."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, host: str, now_s: float) -> None:
        """Count one call.

        Raises:
            TemporaryError: it was one too many, and was not counted.
        """
        caller = caller_of(host)
        calls = self._calls.setdefault(caller, deque())
        while calls and now_s - calls[0] >= WITHIN_S:
            calls.popleft()
        if len(calls) >= CALLS_WITHIN:
            wait_s = WITHIN_S - (now_s - calls[0])
            raise TemporaryError(
                f"{len(calls)} checks from {host} within {WITHIN_S:.0f} s", "fewer", f"try again in {wait_s:.0f} s"
            )
        calls.append(now_s)
        self._calls.move_to_end(caller)
        while len(self._calls) > MAX_CALLERS:
            self._calls.popitem(last=False)


class Turns:
    """Bandwidth is measured for one caller at a time: two would measure each other, and the host has a run to serve."""

    def __init__(self) -> None:
        self._limit = CallLimit()
        self._holder = ""
        self._until_s = float("-inf")
        self._left_bytes = 0

    def take(self, host: str, num_bytes: int, now_s: float) -> None:
        """Let this many bytes pass, within the caller's turn or as the first of a new one.

        Raises:
            TemporaryError: another's turn, or more than a turn may bring.
        """
        caller = caller_of(host)
        if now_s >= self._until_s:
            self._limit.take(host, now_s)
            self._holder, self._until_s, self._left_bytes = caller, now_s + TURN_S, TURN_BYTES
        wait = f"try again in {self._until_s - now_s:.0f} s"
        if caller != self._holder:
            raise TemporaryError("the host is measuring somebody else's line", "its turn to be over", wait)
        if num_bytes > self._left_bytes:
            most = f"at most {TURN_BYTES >> 20} MiB in one check"
            raise TemporaryError("this line was measured a moment ago", most, wait)
        self._left_bytes -= num_bytes
