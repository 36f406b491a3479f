"""The sections [admission] and [checkpoint] of run.toml: the host's own work for a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Final

from pydantic import AfterValidator, Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.identity.puzzle import MOST_BITS
from protocol.kinds.robust_table import OFF, ROBUST_RULES
from protocol.run.push_url import url_problem
from protocol.run.round_section import RoundSection
from protocol.run.section import Count, Section

_FIRST_ADMISSION_KEYS: Final = frozenset(["credential_days"])
"""Keys of the admission section that every manifest has."""

OPEN_GUARD: Final = "clip-agree"
"""The rule against wrong work in a run that is opened by a flag."""


def _checked_url(url: str) -> str:
    if url and (problem := url_problem(url)):
        raise ValueError(problem)
    return url


class AdmissionSection(Section):
    """The terms on which the host lets peers take part."""

    credential_days: Annotated[int, Field(ge=1, le=3650)] = 30
    """Days for which a credential lasts. Peers renew it while the host is up; raise it where the host may be away for long."""

    open: bool = False
    """Admit strangers without an invite, as `potluck host --open` does. They train and are counted; they do not vote, reduce or
    lead. The other keys below belong to such a run.
    """

    max_strangers: Annotated[int, Field(ge=1, le=100_000)] | None = None
    """Most strangers at a time. A quarter of the peers that the run takes if not given."""

    puzzle_bits: Annotated[int, Field(ge=0, le=MOST_BITS)] = 10
    """Difficulty of the puzzle that a stranger solves at the door. 10 takes one core about ten seconds, and each more twice as long.
    """

    prefix_places: Annotated[int, Field(ge=1, le=10_000)] = 4
    """Most strangers at a time whose addresses begin alike: with the same 24 bits of IPv4, or 48 of IPv6."""

    prefix_daily: Annotated[int, Field(ge=1, le=100_000)] = 16
    """Most new strangers a day whose addresses begin alike."""

    trial_minutes: Annotated[float, Field(ge=5.0, le=1440.0)] = 60.0
    """Minutes of a stranger's first credential; at least four of the longest intervals. Without counted work it gets no other."""

    stranger_hours: Annotated[float, Field(ge=1.0, le=720.0)] = 6.0
    """Hours of a stranger's later credentials, each after work that was counted."""

    member_days: Annotated[int, Field(ge=1, le=365)] = 3
    """Days of counted work that make a stranger a member, which may also reduce."""

    member_day_tokens: Count | None = None
    """Credited tokens that make a day count. A tenth of `target_tokens` if not given."""

    member_kept_percent: Annotated[int, Field(ge=0, le=100)] = 80
    """Least share of a stranger's work that reducers kept, over those days, for it to become a member."""

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _FIRST_ADMISSION_KEYS)

    @model_validator(mode="after")
    def _check_open(self) -> AdmissionSection:
        closed = sorted(self.model_fields_set - _FIRST_ADMISSION_KEYS - {"open"}) if not self.open else []
        if closed:
            raise ValueError(f"{closed[0]} belongs to open = true")
        return self


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


def door_problem(admission: AdmissionSection, robust: str, shards: str) -> str:
    """Why strangers cannot be let into such a run; empty where they can, or are not. `robust`, `shards`: of [round] and [run]."""
    if not admission.open:
        return ""
    if robust == OFF:
        guards = " or ".join(f'robust = "{name}"' for name in ROBUST_RULES if name != OFF)
        return f"admission.open with robust off averages whatever strangers send; expected {guards} in [round]"
    if shards != "data":
        why = f'admission.open with shards = "{shards}": no stranger holds a stage or an expert alone'
        return f'{why}; expected shards = "data", whose peers train the whole model, or open = false and invites'
    return ""


def gate_problem(round_section: RoundSection, shards: str) -> str:
    """Why such a run cannot have a loss gate; empty where it can, or has none. `shards`: of [run]."""
    if not round_section.loss_gate or is_one_unit(round_section, shards):
        return ""
    return (
        'round.loss_gate in a run whose model has several parts: they cannot go back together; expected shards = "data" in '
        'one of the modes "overlap" and "blocking"'
    )


def has_loss_gate(round_section: RoundSection, admission: AdmissionSection, shards: str) -> bool:
    """Whether the host takes the run back when its held-out loss rises: as the file says, else if the run is open."""
    asked = round_section.loss_gate
    return is_one_unit(round_section, shards) and (admission.open if asked is None else asked)


def is_one_unit(round_section: RoundSection, shards: str) -> bool:
    """Whether the whole model is averaged at once, by every peer."""
    return shards == "data" and round_section.mode != "streaming"


def with_open_door(values: Mapping[str, object]) -> dict[str, object]:
    """The values of a run.toml, as if it said open = true, and with the guard against wrong work if it names none."""
    given = {name: section for name, section in values.items() if isinstance(section, dict)}
    admission = {**given.get("admission", {}), "open": True}
    return {**values, "admission": admission, "round": {"robust": OPEN_GUARD, **given.get("round", {})}}


def keys_of_open_door(values: Mapping[str, object]) -> frozenset[str]:
    """The keys that `with_open_door` adds or changes, as "section.key"."""
    found = with_open_door(values)
    return frozenset(
        f"{name}.{key}"
        for name, section in found.items()
        if isinstance(section, dict) and section != (before := values.get(name))
        for key, value in section.items()
        if not isinstance(before, dict) or before.get(key) != value
    )
