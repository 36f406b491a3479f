"""The run.toml of a run for real processes: a tiny model, small steps, and rounds of seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Final

Section = Mapping[str, object]

USUAL: Final[Mapping[str, Section]] = {
    "run": {"min_members": 2},
    "model": {"dim": 16, "num_layers": 1, "num_heads": 2, "num_kv_heads": 1, "ffn_dim": 32, "context_tokens": 32},
    "data": {"source": "text", "glob": "*.md", "shard_bytes": 4096},
    "inner": {"learning_rate": 0.01, "batch_tokens": 64},
    "round": {"chunk_elements": 256, "longest_interval_s": 4.0},
    "checkpoint": {"every_rounds": 100},
}


def run_toml(name: str, total_tokens: int, **sections: Section) -> str:
    """The text of a run.toml: these sections over the usual ones, key by key; None leaves a key out."""
    given = {**sections, "run": {"name": name, "total_tokens": total_tokens, **sections.get("run", {})}}
    lines = list[str]()
    for section in {**USUAL, **given}:
        keys = {**USUAL.get(section, {}), **given.get(section, {})}
        lines += [f"[{section}]", *(f"{key} = {json.dumps(value)}" for key, value in keys.items() if value is not None)]
    return "\n".join(lines) + "\n"


def write_texts(folder: Path) -> None:
    """Four short texts, `texts/*.txt`."""
    (folder / "texts").mkdir()
    for number in range(4):
        (folder / "texts" / f"{number}.txt").write_text(f"text number {number}, " * 100)
