"""The files of docker/, read as the programs that use them read them."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from coordinator.status.metrics.metrics_text import COORDINATOR_METRICS
from peer.status.metrics import PEER_METRICS

ROOT = Path(__file__).parents[2]
DOCKER = ROOT / "docker"

_NOT_NAMES = re.compile(r'"[^"]*"|\{[^}]*\}|\[[^\]]*\]|\b(?:on|by|without|ignoring|group_left|group_right)\s*\([^)]*\)')
_IDENTIFIER = re.compile(r"(?<![\w.$])[a-zA-Z_:][\w:]*(?!\s*\()\b")
_WORDS = {"and", "or", "unless", "on", "by", "offset", "bool", "Inf", "NaN", "sum", "without"}
_DURATION = re.compile(r"\d+[smhdwy]\b")


def boards() -> dict[str, Any]:
    """Grafana's boards by file name."""
    return {path.name: json.loads(path.read_text(encoding="utf8")) for path in (DOCKER / "grafana/boards").iterdir()}


def yaml_of(path: str) -> Any:
    """One YAML file below docker/."""
    return yaml.safe_load((DOCKER / path).read_text(encoding="utf8"))


def services() -> dict[str, Any]:
    """Compose's services by name."""
    found: dict[str, Any] = yaml_of("compose.yml")["services"]
    return found


def alerts() -> Iterator[Any]:
    """The alerting rules."""
    for group in yaml_of("prometheus/alerts.yml")["groups"]:
        yield from group["rules"]


def names_in(promql: str) -> set[str]:
    """The metrics that an expression reads: identifiers that are no functions, words of the language, labels or durations."""
    bare = _DURATION.sub(" ", _NOT_NAMES.sub(" ", promql))
    return {name for name in _IDENTIFIER.findall(bare) if name not in _WORDS}


def exported() -> set[str]:
    """Every series name that the two daemons serve, and the one that Prometheus makes itself."""
    rows = (*PEER_METRICS, *COORDINATOR_METRICS)
    return {row.name + ("_total" if row.kind == "counter" else "") for row in rows} | {"up"}


def stages() -> dict[str, list[tuple[str, str]]]:
    """The Dockerfile's stages by name: (instruction, rest) of each line, with those of the stages they are made from first."""
    text = (DOCKER / "Dockerfile").read_text(encoding="utf8")
    text = re.sub(r"\\\n\s*", "", "".join(line for line in text.splitlines(keepends=True) if not line.startswith("#")))
    found: dict[str, list[tuple[str, str]]] = {}
    name = ""
    for line in filter(None, text.splitlines()):
        instruction, _, rest = line.partition(" ")
        if instruction == "FROM":
            base, _, name = rest.partition(" AS ")
            found[name] = list(found.get(base, []))
        found.setdefault(name, []).append((instruction, rest))
    return found
