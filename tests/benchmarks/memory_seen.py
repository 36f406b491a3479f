"""Looks at runs, in files of JSON, so that a long measurement goes on where it was interrupted."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path

from pydantic import TypeAdapter

from tests.benchmarks.memory_runs import Run, Seen


def seen_once(folder: Path, run: Run, look: Callable[[], Seen]) -> Seen:
    """The folder's record of this run, with all its settings. Without one, look at the run and make it."""
    settings = json.dumps([run.name, run.config.model_dump(mode="json"), run.commits, run.first_commits, run.has_all])
    path = folder / f"{hashlib.sha256(settings.encode()).hexdigest()[:16]}.json"
    if path.exists():
        return TypeAdapter(Seen).validate_json(path.read_text(encoding="utf8"))
    seen = look()
    folder.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(asdict(seen)), encoding="utf8")
    return seen
