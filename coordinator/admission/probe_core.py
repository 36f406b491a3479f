"""Limits on the checks that a caller may run. Pure: the time is an argument, in seconds of any one clock.

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
"""Window of the limit, in seconds: enough checks to test a port forwarding, far too few to scan for open ports."""

MAX_CALLERS: Final = 4096
"""Most callers that are remembered. The one that called longest ago is forgotten first. Bounds the memory to about a megabyte."""

TURN_S: Final = 12.0
"""Length of one bandwidth check, in seconds: both directions, and as much again for a slow start."""

TURN_BYTES: Final = 2 * MAX_PROBE_BYTES + (1 << 20)


def caller_of(host: str) -> str:
    """The caller that an address belongs to. A string that is no address stands for itself."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((int(address) >> 64 << 64, 64)))
    return str(address)


class CallLimit:
    """At most CALLS_WITHIN calls of each caller within WITHIN_S seconds."""

    def __init__(self) -> None:
        self._calls: OrderedDict[str, deque[float]] = OrderedDict()

    def take(self, host: str, now_s: float) -> None:
        """Count one call.

        Raises:
            TemporaryError: the limit was reached; the call was not counted.
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
    """Bandwidth checks run for one caller at a time: two would disturb each other, and the host has a run to serve."""

    def __init__(self) -> None:
        self._limit = CallLimit()
        self._holder = ""
        self._until_s = float("-inf")
        self._left_bytes = 0

    def take(self, host: str, num_bytes: int, now_s: float) -> None:
        """Let this many bytes pass, within the caller's turn or as the start of a new one.

        Raises:
            TemporaryError: it is another caller's turn, or the turn's bytes are used up.
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
            raise TemporaryError("a check of this line has just been made", most, wait)
        self._left_bytes -= num_bytes
