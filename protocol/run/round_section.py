"""The section [round] of run.toml: when a round is due, and how its bytes look."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, model_serializer, model_validator

from protocol.kinds.codec_table import CONTRIBUTION_CODECS, RESULT_CODECS, SPARSE_CODECS, leaves_out
from protocol.kinds.robust_table import OFF, ROBUST_RULES
from protocol.rounds.lineage.rule_numbers import CAP_FACTOR, MOST_CAP_FACTOR, NO_CAP
from protocol.rounds.schedule.sum_rules import AUDIT_SHARE, SumRules
from protocol.run.section import Count, Fraction, OneOf, Section
from protocol.run.streaming_rules import what_is_wrong_with_mixing
from protocol.run.traffic import MOST_INTERVAL_S
from protocol.tensors.round_defaults import SPARSE_FEEDBACK

_FIRST_ROUND_KEYS: Final = frozenset(["target_tokens", "longest_interval_s", "codec", "chunk_elements"])
"""Keys of the round section that every manifest has."""


class RoundSection(Section):
    """When a round is due, and how its bytes look."""

    target_tokens: Count
    """Tokens at which a round is due, or of the largest round where rounds grow. More of them mean fewer rounds and less traffic.
    """

    longest_interval_s: Annotated[float, Field(ge=1.0, le=MOST_INTERVAL_S)] = 60.0
    """Seconds after which a round is due anyway, and in which its exchange must end. Raise it for slow links."""

    codec: Annotated[str, OneOf(CONTRIBUTION_CODECS)] = "int8"
    """Codec of contributions. "int8" is a safe choice; "int4" and "e3m0" take half its bytes, "topk" a fiftieth, with more error."""

    result_codec: Annotated[str, OneOf(("", *RESULT_CODECS))] = ""
    """Codec of results. The same as `codec` if not given; with "topk", one with room for the values of all members."""

    chunk_elements: Annotated[int, Field(ge=256, le=1 << 18)] | None = None
    """Values of a chunk, the unit of sending. Chosen by the size of the model if not given."""

    error_feedback: Annotated[float, Field(ge=0.0, le=1.0)] | None = None
    """Share of what the codec left out of a contribution that goes into the next one. 0.95 with "topk" and 0 with others if not
    given.
    """

    ramp_share: Fraction = 0.0
    """Share of the tokens so far that a round takes, up to `target_tokens`: rounds begin small. 0 makes all alike."""

    local_steps: Literal["", "auto"] = ""
    """Empty for rounds of `target_tokens`. "auto" makes rounds as short as the links of the members allow, up to `target_tokens`.
    """

    first_local_steps: Count | None = None
    """Local steps of each member in the smallest round, with `ramp_share` or `local_steps`. One step if not given."""

    target_utilisation: Annotated[float, Field(ge=0.01, lt=1.0)] = 0.95
    """Share of a round that its exchange may fill, with "auto". In mode "blocking", the share that stays for training."""

    link_mbit_per_s: Annotated[float, Field(ge=1e-6, le=1e6)] | None = None
    """Slowest link, in Mbit/s each way, with which people are to take part. The host opens no run that it could not carry."""

    mode: Literal["overlap", "blocking", "streaming"] = "overlap"
    """Training during a round: "overlap" trains on; "blocking" waits for it; "streaming" averages fragments of the model one after
    another.
    """

    fragments: Annotated[int, Field(ge=1, le=512)] | None = None
    """Fragments of the layers, with "streaming". About three layers each if not given."""

    delay_steps: Annotated[int, Field(ge=0, le=1000)] | None = None
    """Local steps after the snapshot within which a commit is still mixed in, with `alpha`. 5 if not given."""

    alpha: Fraction | None = None
    """Share of the local parameters that stays when a commit is mixed in, with "streaming". Leave it out unless you compare: that
    trains better.
    """

    robust: Annotated[str, OneOf(ROBUST_RULES)] = OFF
    """Guard of the average against members that send wrong work. "off" trusts all; "clip" shortens what is longer than usual;
    "clip-agree" also leaves out what disagrees with most.
    """

    weight_cap: Annotated[int, Field(ge=0, le=MOST_CAP_FACTOR)] = CAP_FACTOR
    """A member's work weighs at most so many times the median of all. 0 for no limit: only among friends, since members say
    themselves how much they did.
    """

    close_share: Annotated[float, Field(gt=0.0, le=1.0)] = 1.0
    """Share of the members after which a round waits for the others only a quarter longer. 0.9 keeps rounds of ten and more short
    where some lines are slow. 1 waits for all.
    """

    patient_every: Annotated[int, Field(ge=1, le=1000)] = 8
    """With `close_share`, one of so many rounds waits for all members, so slow ones are counted there."""

    audit_share: Fraction = AUDIT_SHARE
    """Share of a contribution's bytes that each member fetches in a round, to compute some sums of others again. A member that signed
    a false one is banned by its own signature. 0 looks at nothing.
    """

    loss_gate: bool | None = None
    """Whether three voters measure each commit, and the host takes the run back to the last good commit when the held-out loss rises
    by more than the run's noise. It needs `shards = "data"` and a mode that is not "streaming". If not given: true in such a run that
    is open, else false.
    """

    @property
    def cap_factor(self) -> int:
        """`weight_cap` as the rules number of records has it."""
        return self.weight_cap or NO_CAP

    @property
    def sums(self) -> SumRules:
        """How reducers sum the slices of the run."""
        return SumRules(
            robust=self.robust,
            close_share=self.close_share,
            patient_every=self.patient_every,
            audit_share=self.audit_share,
        )

    @property
    def feedback(self) -> float:
        """`error_feedback`, or else 0.95 with "topk", which would lose most of the work without it, and 0 with others."""
        if self.error_feedback is not None:
            return self.error_feedback
        return SPARSE_FEEDBACK if leaves_out(self.codec) else 0.0

    @model_serializer(mode="wrap")
    def _leave_out_defaults(self, handler: SerializerFunctionWrapHandler) -> dict[str, object]:
        return self.used(handler(self), _FIRST_ROUND_KEYS)

    @model_validator(mode="after")
    def _check_ramp(self) -> RoundSection:
        first = self.first_local_steps
        if first is not None and not self.ramp_share and not self.local_steps:
            raise ValueError(f'first_local_steps {first} belongs to a ramp_share, or to local_steps = "auto"')
        if "target_utilisation" in self.model_fields_set and not self.local_steps:
            raise ValueError(f'target_utilisation {self.target_utilisation} belongs to local_steps = "auto"')
        return self

    @model_validator(mode="after")
    def _check_close_share(self) -> RoundSection:
        if "patient_every" in self.model_fields_set and self.close_share >= 1.0:
            raise ValueError(f"patient_every {self.patient_every} belongs to a close_share below 1")
        return self

    @model_validator(mode="after")
    def _check_mode(self) -> RoundSection:
        for name in ("fragments", "delay_steps", "alpha"):
            if self.mode != "streaming" and (value := getattr(self, name)) is not None:
                raise ValueError(f'{name} = {value} belongs to mode = "streaming", not to "{self.mode}"')
        if wrong := what_is_wrong_with_mixing(self.delay_steps, self.alpha):
            raise ValueError(wrong)
        if self.mode == "streaming" and (self.ramp_share or self.local_steps):
            found = f"ramp_share {self.ramp_share}" if self.ramp_share else f'local_steps = "{self.local_steps}"'
            raise ValueError(
                f'{found} with mode = "streaming": expected rounds of one size, between which delay_steps fit and the units lie '
                'evenly; leave it out, or take mode = "overlap"'
            )
        return self

    @model_validator(mode="after")
    def _check_codecs(self) -> RoundSection:
        if leaves_out(self.result_codec) and not leaves_out(self.codec):
            sparse = " or ".join(f'codec = "{name}"' for name in SPARSE_CODECS)
            raise ValueError(
                f'result_codec = "{self.result_codec}" belongs to {sparse}: it would leave out most of what "{self.codec}" sends'
            )
        return self
