"""The sections [admission] and [checkpoint] of run.toml: the host's own work for a run."""

from __future__ import annotations

from typing import Annotated

from pydantic import AfterValidator, Field

from protocol.run.push_url import url_problem
from protocol.run.section import Section


def _checked_url(url: str) -> str:
    if url and (problem := url_problem(url)):
        raise ValueError(problem)
    return url


class AdmissionSection(Section):
    """The terms on which the host lets peers take part."""

    credential_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days for which a credential lasts. Peers renew it while the host is up; raise it where the host may be away for long."""


class CheckpointSection(Section):
    """When the host writes a checkpoint of the model, and which ones it keeps."""

    every_rounds: Annotated[int, Field(ge=1, le=1 << 20)] = 5
    """Rounds from one checkpoint to the next."""

    keep: Annotated[int, Field(ge=1, le=1000)] = 3
    """How many of the newest checkpoints are kept."""

    keep_every: Annotated[int, Field(ge=0, le=1 << 20)] = 10
    """One in this many checkpoints is kept longer, without its momentum; half as many for each doubling of their age; 0 for none."""

    push: Annotated[str, Field(exclude=True, max_length=1024), AfterValidator(_checked_url)] = ""
    """Address to which each new checkpoint and its export go: file://, s3://, gs:// or hf://. The host's alone, and may change at any
    start. Credentials come from the environment.
    """
