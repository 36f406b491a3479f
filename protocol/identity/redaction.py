"""Remove secrets from text that leaves the machine: the known ones, in every spelling, and anything that looks like one."""

from __future__ import annotations

import base64
import ipaddress
import re
from collections.abc import Iterable
from typing import Final

HIDDEN: Final = "[secret]"

_SHORTEST_BYTES: Final = 8
"""A shorter known secret would remove harmless words from the text; none of ours is that short."""

_PATTERNS: Final = tuple(
    re.compile(pattern)
    for pattern in (
        # PEM in any escaping: JSON has \n between the lines, a log line perhaps \\n
        r"(?s)-----BEGIN [A-Z ]+-----.*?(?:-----END [A-Z ]+-----|\Z)",
        r"potluck\d+:[A-Za-z0-9+_\-=]+",
        r"(?i)\b(?:bearer|basic) +[A-Za-z0-9._~+/=\-]{8,}",
        r"\b(?:hf|ghp|gho|ghs|ghu|sk|pk|rk|glpat|xox[abpr])[_-][A-Za-z0-9_\-]{12,}",
        r"\bgithub_pat_[A-Za-z0-9_]{12,}",
        r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b",
        r"\beyJ[A-Za-z0-9_\-]{8,}\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*",
    )
)
_NAMED: Final = re.compile(
    r"""(?ix) (\b[\w-]*(?:secret|token|passw(?:or)?d|passphrase|credential|api_?-?key|private_?-?key|tls_?-?key|authorization|cookie)
    (?!s?_|s\b)[\w-]*["']?\s*[:=]\s*) (?:"[^"\n]*"|'[^'\n]*'|[^\s,;}"']+)"""
)
_IN_URL: Final = re.compile(r"(?i)(\b[a-z][a-z0-9+.\-]*://)[^\s/@:]*:[^\s/@]+@")
_LONG: Final = re.compile(r"(?<![A-Za-z0-9+/_=-])[A-Za-z0-9+/_-]{60,}={0,2}")
_HASH_OR_PEER: Final = re.compile(r"[0-9a-f]{64}|[1-9A-HJ-NP-Za-km-z]{1,60}")
_IP4: Final = re.compile(r"(?<![\d.])\d{1,3}(?:\.\d{1,3}){3}(?![\d.])")
_IP6: Final = re.compile(r"(?<![\w:])(?:[0-9A-Fa-f]{0,4}:){2,7}[0-9A-Fa-f]{0,4}(?![\w:])")
_DNS: Final = re.compile(r"(/dns(?:4|6|addr)?/)[^/\s\"']+")


def spellings(secret: bytes) -> list[str]:
    """The forms of a secret in a text: itself, hex, base64 of three alphabets (standard, URLs', invites'); longest first."""
    if len(secret) < _SHORTEST_BYTES:
        return []
    found = {secret.hex(), secret.hex().upper()}
    # within longer bytes base64 depends on the position: search for the letters that all three positions share
    for padding in range(3):
        whole = base64.b64encode(b"\0" * padding + secret).decode("ascii").rstrip("=")
        inner = whole[-(-padding * 8 // 6) : -1]
        found |= {inner, inner.replace("/", "_"), inner.replace("+", "-").replace("/", "_")}
    text = secret.decode("utf8", "ignore").strip()
    if len(text) >= _SHORTEST_BYTES and text.isprintable():
        found.add(text)
    return sorted(found, key=len, reverse=True)


class Redactor:
    """Removes secrets from texts. The same address gets the same name in all of them, so that a reader can follow it."""

    def __init__(self, known: Iterable[bytes] = (), *, hides_addresses: bool = True, home: str = "") -> None:
        found = {spelling for secret in known for spelling in spellings(secret)}
        longest_first = sorted(found, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest_first))) if longest_first else None
        self._hides_addresses = hides_addresses
        self._home = home.rstrip("/")
        self._names: dict[str, str] = {}

    def clean(self, text: str) -> str:
        """The text without its secrets, and without addresses of others if they are to be hidden."""
        for pattern in _PATTERNS:
            text = pattern.sub(HIDDEN, text)
        if self._known is not None:
            text = self._known.sub(HIDDEN, text)
        text = _IN_URL.sub(rf"\1{HIDDEN}@", text)
        text = _NAMED.sub(rf"\1{HIDDEN}", text)
        text = _LONG.sub(_unless_harmless, text)
        if self._home:
            text = text.replace(self._home, "~")
        if self._hides_addresses:
            text = _DNS.sub(lambda match: match[1] + self._name(match[0]), text)
            text = _IP6.sub(self._address, _IP4.sub(self._address, text))
        return text

    def _address(self, match: re.Match[str]) -> str:
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        return match[0] if address.is_loopback or address.is_unspecified else self._name(str(address))

    def _name(self, address: str) -> str:
        return self._names.setdefault(address, f"[address {len(self._names) + 1}]")


def _unless_harmless(match: re.Match[str]) -> str:
    """Keep hashes and peer ids, which a report is about; paths are judged by their parts."""
    parts = match[0].split("/")
    if all(len(part) < 60 or _HASH_OR_PEER.fullmatch(part) for part in parts) and "+" not in match[0]:
        return match[0]
    return HIDDEN
