"""The sections [admission] and [checkpoint] of run.toml: what the host does for a run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from protocol.run.section import Section


class AdmissionSection(Section):
    """Who may take part, and for how long a credential lasts."""

    credential_days: Annotated[int, Field(ge=1, le=3650)] = 30


class CheckpointSection(Section):
    """How often the coordinator writes a checkpoint, and which it keeps: the newest `keep`, and for ever one in every
    `keep_every`, none with 0.
    """

    every_rounds: Annotated[int, Field(ge=1, le=1 << 20)] = 5
    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    keep_every: Annotated[int, Field(ge=0, le=1 << 20)] = 10
