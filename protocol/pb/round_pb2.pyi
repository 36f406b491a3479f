from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Ballot(_message.Message):
    __slots__ = ("attempt", "peer")
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PEER_FIELD_NUMBER: _ClassVar[int]
    attempt: int
    peer: str
    def __init__(self, attempt: _Optional[int] = ..., peer: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("peer", "incarnation", "session")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    peer: str
    incarnation: int
    session: int
    def __init__(self, peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., session: _Optional[int] = ...) -> None: ...

class SliceSpec(_message.Message):
    __slots__ = ("first_chunk", "stop_chunk", "reducer")
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STOP_CHUNK_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    first_chunk: int
    stop_chunk: int
    reducer: str
    def __init__(self, first_chunk: _Optional[int] = ..., stop_chunk: _Optional[int] = ..., reducer: _Optional[str] = ...) -> None: ...

class OuterStep(_message.Message):
    __slots__ = ("kind", "learning_rate", "momentum")
    KIND_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    MOMENTUM_FIELD_NUMBER: _ClassVar[int]
    kind: str
    learning_rate: float
    momentum: float
    def __init__(self, kind: _Optional[str] = ..., learning_rate: _Optional[float] = ..., momentum: _Optional[float] = ...) -> None: ...

class Proposal(_message.Message):
    __slots__ = ("unit", "base", "index", "ballot", "members", "slices", "codec", "weight_cap_tokens", "reduce_within_s", "level", "lone", "spine", "result_codec", "pre_votes")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    REDUCE_WITHIN_S_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    LONE_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    RESULT_CODEC_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTES_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    index: int
    ballot: Ballot
    members: _containers.RepeatedCompositeFieldContainer[Member]
    slices: _containers.RepeatedCompositeFieldContainer[SliceSpec]
    codec: str
    weight_cap_tokens: int
    reduce_within_s: float
    level: int
    lone: bool
    spine: bytes
    result_codec: str
    pre_votes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., index: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., slices: _Optional[_Iterable[_Union[SliceSpec, _Mapping]]] = ..., codec: _Optional[str] = ..., weight_cap_tokens: _Optional[int] = ..., reduce_within_s: _Optional[float] = ..., level: _Optional[int] = ..., lone: bool = ..., spine: _Optional[bytes] = ..., result_codec: _Optional[str] = ..., pre_votes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class LanePart(_message.Message):
    __slots__ = ("lane", "round", "tokens")
    LANE_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    round: int
    tokens: int
    def __init__(self, lane: _Optional[int] = ..., round: _Optional[int] = ..., tokens: _Optional[int] = ...) -> None: ...

class ContributionHeader(_message.Message):
    __slots__ = ("unit", "base", "member", "tokens", "codec", "root", "attested", "attested_root", "lanes", "is_stranger")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_ROOT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    IS_STRANGER_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    member: Member
    tokens: int
    codec: str
    root: bytes
    attested: bytes
    attested_root: bytes
    lanes: _containers.RepeatedCompositeFieldContainer[LanePart]
    is_stranger: bool
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., member: _Optional[_Union[Member, _Mapping]] = ..., tokens: _Optional[int] = ..., codec: _Optional[str] = ..., root: _Optional[bytes] = ..., attested: _Optional[bytes] = ..., attested_root: _Optional[bytes] = ..., lanes: _Optional[_Iterable[_Union[LanePart, _Mapping]]] = ..., is_stranger: bool = ...) -> None: ...

class Omission(_message.Message):
    __slots__ = ("peer", "reason", "code")
    PEER_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CODE_FIELD_NUMBER: _ClassVar[int]
    peer: str
    reason: str
    code: int
    def __init__(self, peer: _Optional[str] = ..., reason: _Optional[str] = ..., code: _Optional[int] = ...) -> None: ...

class Included(_message.Message):
    __slots__ = ("peer", "incarnation", "root", "tokens", "attested", "attested_root", "lanes", "session", "seal", "credential", "num_left_out", "agreement_percent", "is_stranger")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_ROOT_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    NUM_LEFT_OUT_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    IS_STRANGER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    incarnation: int
    root: bytes
    tokens: int
    attested: bytes
    attested_root: bytes
    lanes: _containers.RepeatedCompositeFieldContainer[LanePart]
    session: int
    seal: bytes
    credential: bytes
    num_left_out: int
    agreement_percent: int
    is_stranger: bool
    def __init__(self, peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., root: _Optional[bytes] = ..., tokens: _Optional[int] = ..., attested: _Optional[bytes] = ..., attested_root: _Optional[bytes] = ..., lanes: _Optional[_Iterable[_Union[LanePart, _Mapping]]] = ..., session: _Optional[int] = ..., seal: _Optional[bytes] = ..., credential: _Optional[bytes] = ..., num_left_out: _Optional[int] = ..., agreement_percent: _Optional[int] = ..., is_stranger: bool = ...) -> None: ...

class ResultHeader(_message.Message):
    __slots__ = ("unit", "base", "ballot", "first_chunk", "stop_chunk", "reducer", "included", "omitted", "weight_sum", "result_hash", "lost_ppm", "sum_seal", "credential")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STOP_CHUNK_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    INCLUDED_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_SUM_FIELD_NUMBER: _ClassVar[int]
    RESULT_HASH_FIELD_NUMBER: _ClassVar[int]
    LOST_PPM_FIELD_NUMBER: _ClassVar[int]
    SUM_SEAL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    first_chunk: int
    stop_chunk: int
    reducer: str
    included: _containers.RepeatedCompositeFieldContainer[Included]
    omitted: _containers.RepeatedCompositeFieldContainer[Omission]
    weight_sum: int
    result_hash: bytes
    lost_ppm: int
    sum_seal: bytes
    credential: bytes
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., first_chunk: _Optional[int] = ..., stop_chunk: _Optional[int] = ..., reducer: _Optional[str] = ..., included: _Optional[_Iterable[_Union[Included, _Mapping]]] = ..., omitted: _Optional[_Iterable[_Union[Omission, _Mapping]]] = ..., weight_sum: _Optional[int] = ..., result_hash: _Optional[bytes] = ..., lost_ppm: _Optional[int] = ..., sum_seal: _Optional[bytes] = ..., credential: _Optional[bytes] = ...) -> None: ...

class Disagreement(_message.Message):
    __slots__ = ("peer", "num_chunks", "agreement_percent")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NUM_CHUNKS_FIELD_NUMBER: _ClassVar[int]
    AGREEMENT_PERCENT_FIELD_NUMBER: _ClassVar[int]
    peer: str
    num_chunks: int
    agreement_percent: int
    def __init__(self, peer: _Optional[str] = ..., num_chunks: _Optional[int] = ..., agreement_percent: _Optional[int] = ...) -> None: ...

class SliceRecord(_message.Message):
    __slots__ = ("first_chunk", "stop_chunk", "reducer", "result_hash", "omitted", "lost_ppm", "seal", "credential", "disagreeing")
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STOP_CHUNK_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    RESULT_HASH_FIELD_NUMBER: _ClassVar[int]
    OMITTED_FIELD_NUMBER: _ClassVar[int]
    LOST_PPM_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    DISAGREEING_FIELD_NUMBER: _ClassVar[int]
    first_chunk: int
    stop_chunk: int
    reducer: str
    result_hash: bytes
    omitted: _containers.RepeatedCompositeFieldContainer[Omission]
    lost_ppm: int
    seal: bytes
    credential: bytes
    disagreeing: _containers.RepeatedCompositeFieldContainer[Disagreement]
    def __init__(self, first_chunk: _Optional[int] = ..., stop_chunk: _Optional[int] = ..., reducer: _Optional[str] = ..., result_hash: _Optional[bytes] = ..., omitted: _Optional[_Iterable[_Union[Omission, _Mapping]]] = ..., lost_ppm: _Optional[int] = ..., seal: _Optional[bytes] = ..., credential: _Optional[bytes] = ..., disagreeing: _Optional[_Iterable[_Union[Disagreement, _Mapping]]] = ...) -> None: ...

class Contributor(_message.Message):
    __slots__ = ("peer", "incarnation", "root", "tokens", "credited_tokens", "lanes", "session", "seal", "attests", "credential", "is_stranger")
    PEER_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    CREDITED_TOKENS_FIELD_NUMBER: _ClassVar[int]
    LANES_FIELD_NUMBER: _ClassVar[int]
    SESSION_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    ATTESTS_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    IS_STRANGER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    incarnation: int
    root: bytes
    tokens: int
    credited_tokens: int
    lanes: _containers.RepeatedCompositeFieldContainer[LanePart]
    session: int
    seal: bytes
    attests: int
    credential: bytes
    is_stranger: bool
    def __init__(self, peer: _Optional[str] = ..., incarnation: _Optional[int] = ..., root: _Optional[bytes] = ..., tokens: _Optional[int] = ..., credited_tokens: _Optional[int] = ..., lanes: _Optional[_Iterable[_Union[LanePart, _Mapping]]] = ..., session: _Optional[int] = ..., seal: _Optional[bytes] = ..., attests: _Optional[int] = ..., credential: _Optional[bytes] = ..., is_stranger: bool = ...) -> None: ...

class Attestation(_message.Message):
    __slots__ = ("commit", "state_root")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    commit: bytes
    state_root: bytes
    def __init__(self, commit: _Optional[bytes] = ..., state_root: _Optional[bytes] = ...) -> None: ...

class CommitRecord(_message.Message):
    __slots__ = ("unit", "parent", "index", "ballot", "slices", "contributors", "codec", "weight_cap_tokens", "total_tokens", "outer", "next_target_tokens", "roster", "incarnations", "attested", "lone", "level", "spine", "result_codec", "rules", "attestations")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    PARENT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTORS_FIELD_NUMBER: _ClassVar[int]
    CODEC_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_CAP_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    OUTER_FIELD_NUMBER: _ClassVar[int]
    NEXT_TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    ATTESTED_FIELD_NUMBER: _ClassVar[int]
    LONE_FIELD_NUMBER: _ClassVar[int]
    LEVEL_FIELD_NUMBER: _ClassVar[int]
    SPINE_FIELD_NUMBER: _ClassVar[int]
    RESULT_CODEC_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    ATTESTATIONS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    parent: bytes
    index: int
    ballot: Ballot
    slices: _containers.RepeatedCompositeFieldContainer[SliceRecord]
    contributors: _containers.RepeatedCompositeFieldContainer[Contributor]
    codec: str
    weight_cap_tokens: int
    total_tokens: int
    outer: OuterStep
    next_target_tokens: int
    roster: _containers.RepeatedScalarFieldContainer[str]
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    attested: Attestation
    lone: bool
    level: int
    spine: bytes
    result_codec: str
    rules: int
    attestations: _containers.RepeatedCompositeFieldContainer[Attestation]
    def __init__(self, unit: _Optional[str] = ..., parent: _Optional[bytes] = ..., index: _Optional[int] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., slices: _Optional[_Iterable[_Union[SliceRecord, _Mapping]]] = ..., contributors: _Optional[_Iterable[_Union[Contributor, _Mapping]]] = ..., codec: _Optional[str] = ..., weight_cap_tokens: _Optional[int] = ..., total_tokens: _Optional[int] = ..., outer: _Optional[_Union[OuterStep, _Mapping]] = ..., next_target_tokens: _Optional[int] = ..., roster: _Optional[_Iterable[str]] = ..., incarnations: _Optional[_Iterable[int]] = ..., attested: _Optional[_Union[Attestation, _Mapping]] = ..., lone: bool = ..., level: _Optional[int] = ..., spine: _Optional[bytes] = ..., result_codec: _Optional[str] = ..., rules: _Optional[int] = ..., attestations: _Optional[_Iterable[_Union[Attestation, _Mapping]]] = ...) -> None: ...

class StartUnit(_message.Message):
    __slots__ = ("unit", "schema_fingerprint", "state_root", "roster")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    SCHEMA_FINGERPRINT_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    unit: str
    schema_fingerprint: bytes
    state_root: bytes
    roster: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, unit: _Optional[str] = ..., schema_fingerprint: _Optional[bytes] = ..., state_root: _Optional[bytes] = ..., roster: _Optional[_Iterable[str]] = ...) -> None: ...

class StartRecord(_message.Message):
    __slots__ = ("run_id", "units", "roster", "target_tokens", "started_unix_s", "incarnations", "rules")
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    UNITS_FIELD_NUMBER: _ClassVar[int]
    ROSTER_FIELD_NUMBER: _ClassVar[int]
    TARGET_TOKENS_FIELD_NUMBER: _ClassVar[int]
    STARTED_UNIX_S_FIELD_NUMBER: _ClassVar[int]
    INCARNATIONS_FIELD_NUMBER: _ClassVar[int]
    RULES_FIELD_NUMBER: _ClassVar[int]
    run_id: bytes
    units: _containers.RepeatedCompositeFieldContainer[StartUnit]
    roster: _containers.RepeatedScalarFieldContainer[str]
    target_tokens: int
    started_unix_s: int
    incarnations: _containers.RepeatedScalarFieldContainer[int]
    rules: int
    def __init__(self, run_id: _Optional[bytes] = ..., units: _Optional[_Iterable[_Union[StartUnit, _Mapping]]] = ..., roster: _Optional[_Iterable[str]] = ..., target_tokens: _Optional[int] = ..., started_unix_s: _Optional[int] = ..., incarnations: _Optional[_Iterable[int]] = ..., rules: _Optional[int] = ...) -> None: ...

class Milestone(_message.Message):
    __slots__ = ("genesis", "record", "state_root")
    GENESIS_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    genesis: bytes
    record: bytes
    state_root: bytes
    def __init__(self, genesis: _Optional[bytes] = ..., record: _Optional[bytes] = ..., state_root: _Optional[bytes] = ...) -> None: ...

class Ack(_message.Message):
    __slots__ = ("unit", "base", "ballot", "commit", "lone", "before", "before_commit", "version")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    LONE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_FIELD_NUMBER: _ClassVar[int]
    BEFORE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    commit: bytes
    lone: bool
    before: Ballot
    before_commit: bytes
    version: int
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., commit: _Optional[bytes] = ..., lone: bool = ..., before: _Optional[_Union[Ballot, _Mapping]] = ..., before_commit: _Optional[bytes] = ..., version: _Optional[int] = ...) -> None: ...

class DoubleVote(_message.Message):
    __slots__ = ("unit", "one", "other")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    ONE_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    unit: str
    one: bytes
    other: bytes
    def __init__(self, unit: _Optional[str] = ..., one: _Optional[bytes] = ..., other: _Optional[bytes] = ...) -> None: ...

class FalseSum(_message.Message):
    __slots__ = ("unit", "base", "reducer", "result_hash", "proof_hash")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    RESULT_HASH_FIELD_NUMBER: _ClassVar[int]
    PROOF_HASH_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    reducer: str
    result_hash: bytes
    proof_hash: bytes
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., reducer: _Optional[str] = ..., result_hash: _Optional[bytes] = ..., proof_hash: _Optional[bytes] = ...) -> None: ...

class Input(_message.Message):
    __slots__ = ("peer", "root", "weight", "is_stranger")
    PEER_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    IS_STRANGER_FIELD_NUMBER: _ClassVar[int]
    peer: str
    root: bytes
    weight: int
    is_stranger: bool
    def __init__(self, peer: _Optional[str] = ..., root: _Optional[bytes] = ..., weight: _Optional[int] = ..., is_stranger: bool = ...) -> None: ...

class SliceSum(_message.Message):
    __slots__ = ("unit", "base", "first_chunk", "stop_chunk", "reducer", "result_hash", "lost_ppm", "inputs", "disagreeing")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STOP_CHUNK_FIELD_NUMBER: _ClassVar[int]
    REDUCER_FIELD_NUMBER: _ClassVar[int]
    RESULT_HASH_FIELD_NUMBER: _ClassVar[int]
    LOST_PPM_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    DISAGREEING_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    first_chunk: int
    stop_chunk: int
    reducer: str
    result_hash: bytes
    lost_ppm: int
    inputs: _containers.RepeatedCompositeFieldContainer[Input]
    disagreeing: _containers.RepeatedCompositeFieldContainer[Disagreement]
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., first_chunk: _Optional[int] = ..., stop_chunk: _Optional[int] = ..., reducer: _Optional[str] = ..., result_hash: _Optional[bytes] = ..., lost_ppm: _Optional[int] = ..., inputs: _Optional[_Iterable[_Union[Input, _Mapping]]] = ..., disagreeing: _Optional[_Iterable[_Union[Disagreement, _Mapping]]] = ...) -> None: ...

class ShownChunk(_message.Message):
    __slots__ = ("root", "path", "data")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    path: bytes
    data: bytes
    def __init__(self, root: _Optional[bytes] = ..., path: _Optional[bytes] = ..., data: _Optional[bytes] = ...) -> None: ...

class SumProof(_message.Message):
    __slots__ = ("sum", "seal", "chunk", "leaf", "path", "shown")
    SUM_FIELD_NUMBER: _ClassVar[int]
    SEAL_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    LEAF_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SHOWN_FIELD_NUMBER: _ClassVar[int]
    sum: SliceSum
    seal: bytes
    chunk: int
    leaf: bytes
    path: bytes
    shown: _containers.RepeatedCompositeFieldContainer[ShownChunk]
    def __init__(self, sum: _Optional[_Union[SliceSum, _Mapping]] = ..., seal: _Optional[bytes] = ..., chunk: _Optional[int] = ..., leaf: _Optional[bytes] = ..., path: _Optional[bytes] = ..., shown: _Optional[_Iterable[_Union[ShownChunk, _Mapping]]] = ...) -> None: ...

class Certificate(_message.Message):
    __slots__ = ("record", "acks", "leaves", "ack", "votes")
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ACKS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    VOTES_FIELD_NUMBER: _ClassVar[int]
    record: bytes
    acks: _containers.RepeatedScalarFieldContainer[bytes]
    leaves: _containers.RepeatedScalarFieldContainer[bytes]
    ack: bytes
    votes: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, record: _Optional[bytes] = ..., acks: _Optional[_Iterable[bytes]] = ..., leaves: _Optional[_Iterable[bytes]] = ..., ack: _Optional[bytes] = ..., votes: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Settle(_message.Message):
    __slots__ = ("unit", "base", "ballot", "record", "holders", "leaves", "promises")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    LEAVES_FIELD_NUMBER: _ClassVar[int]
    PROMISES_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    record: bytes
    holders: _containers.RepeatedScalarFieldContainer[str]
    leaves: _containers.RepeatedScalarFieldContainer[bytes]
    promises: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[bytes] = ..., holders: _Optional[_Iterable[str]] = ..., leaves: _Optional[_Iterable[bytes]] = ..., promises: _Optional[_Iterable[bytes]] = ...) -> None: ...

class Mend(_message.Message):
    __slots__ = ("unit", "base", "ballot", "revision", "slices")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    REVISION_FIELD_NUMBER: _ClassVar[int]
    SLICES_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    revision: int
    slices: _containers.RepeatedCompositeFieldContainer[SliceSpec]
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., revision: _Optional[int] = ..., slices: _Optional[_Iterable[_Union[SliceSpec, _Mapping]]] = ...) -> None: ...

class PreVoteRequest(_message.Message):
    __slots__ = ("unit", "base", "ballot", "waited_s", "lone")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    WAITED_S_FIELD_NUMBER: _ClassVar[int]
    LONE_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    waited_s: float
    lone: bool
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., waited_s: _Optional[float] = ..., lone: bool = ...) -> None: ...

class PreVote(_message.Message):
    __slots__ = ("unit", "base", "ballot", "objection", "leads_s")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    OBJECTION_FIELD_NUMBER: _ClassVar[int]
    LEADS_S_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    objection: str
    leads_s: float
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., objection: _Optional[str] = ..., leads_s: _Optional[float] = ...) -> None: ...

class PromiseRequest(_message.Message):
    __slots__ = ("unit", "base", "ballot", "pre_votes", "lone")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTES_FIELD_NUMBER: _ClassVar[int]
    LONE_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    pre_votes: _containers.RepeatedScalarFieldContainer[bytes]
    lone: bool
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., pre_votes: _Optional[_Iterable[bytes]] = ..., lone: bool = ...) -> None: ...

class AckedRecord(_message.Message):
    __slots__ = ("ballot", "record")
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    RECORD_FIELD_NUMBER: _ClassVar[int]
    ballot: Ballot
    record: bytes
    def __init__(self, ballot: _Optional[_Union[Ballot, _Mapping]] = ..., record: _Optional[bytes] = ...) -> None: ...

class Promise(_message.Message):
    __slots__ = ("unit", "base", "ballot", "acked")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    acked: AckedRecord
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., acked: _Optional[_Union[AckedRecord, _Mapping]] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("unit", "base", "promised")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    promised: Ballot
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ...) -> None: ...

class ResultReady(_message.Message):
    __slots__ = ("unit", "base", "ballot", "header")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    HEADER_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    header: bytes
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., header: _Optional[bytes] = ...) -> None: ...

class Committed(_message.Message):
    __slots__ = ("unit", "certificate")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATE_FIELD_NUMBER: _ClassVar[int]
    unit: str
    certificate: Certificate
    def __init__(self, unit: _Optional[str] = ..., certificate: _Optional[_Union[Certificate, _Mapping]] = ...) -> None: ...

class UnitHead(_message.Message):
    __slots__ = ("unit", "head", "index", "total_tokens", "tokens_ready", "can_contribute", "state_commit", "state_root")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_READY_FIELD_NUMBER: _ClassVar[int]
    CAN_CONTRIBUTE_FIELD_NUMBER: _ClassVar[int]
    STATE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    unit: str
    head: bytes
    index: int
    total_tokens: int
    tokens_ready: int
    can_contribute: bool
    state_commit: bytes
    state_root: bytes
    def __init__(self, unit: _Optional[str] = ..., head: _Optional[bytes] = ..., index: _Optional[int] = ..., total_tokens: _Optional[int] = ..., tokens_ready: _Optional[int] = ..., can_contribute: bool = ..., state_commit: _Optional[bytes] = ..., state_root: _Optional[bytes] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("member", "is_inbound_reachable", "upload_bytes_per_s", "heads", "exchange_ms", "silent")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    IS_INBOUND_REACHABLE_FIELD_NUMBER: _ClassVar[int]
    UPLOAD_BYTES_PER_S_FIELD_NUMBER: _ClassVar[int]
    HEADS_FIELD_NUMBER: _ClassVar[int]
    EXCHANGE_MS_FIELD_NUMBER: _ClassVar[int]
    SILENT_FIELD_NUMBER: _ClassVar[int]
    member: Member
    is_inbound_reachable: bool
    upload_bytes_per_s: int
    heads: _containers.RepeatedCompositeFieldContainer[UnitHead]
    exchange_ms: int
    silent: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., is_inbound_reachable: bool = ..., upload_bytes_per_s: _Optional[int] = ..., heads: _Optional[_Iterable[_Union[UnitHead, _Mapping]]] = ..., exchange_ms: _Optional[int] = ..., silent: _Optional[_Iterable[str]] = ...) -> None: ...

class Leave(_message.Message):
    __slots__ = ("member", "unit", "base", "promised", "acked", "carrier", "version")
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    PROMISED_FIELD_NUMBER: _ClassVar[int]
    ACKED_FIELD_NUMBER: _ClassVar[int]
    CARRIER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    member: Member
    unit: str
    base: bytes
    promised: Ballot
    acked: AckedRecord
    carrier: Member
    version: int
    def __init__(self, member: _Optional[_Union[Member, _Mapping]] = ..., unit: _Optional[str] = ..., base: _Optional[bytes] = ..., promised: _Optional[_Union[Ballot, _Mapping]] = ..., acked: _Optional[_Union[AckedRecord, _Mapping]] = ..., carrier: _Optional[_Union[Member, _Mapping]] = ..., version: _Optional[int] = ...) -> None: ...

class ExchangeHello(_message.Message):
    __slots__ = ("unit", "base", "ballot", "first_chunk", "contribution", "chunk_hashes", "path", "no_part", "credential", "carried", "hashes_follow")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    BALLOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    CHUNK_HASHES_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NO_PART_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    CARRIED_FIELD_NUMBER: _ClassVar[int]
    HASHES_FOLLOW_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    ballot: Ballot
    first_chunk: int
    contribution: bytes
    chunk_hashes: bytes
    path: bytes
    no_part: bool
    credential: bytes
    carried: bool
    hashes_follow: bool
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., ballot: _Optional[_Union[Ballot, _Mapping]] = ..., first_chunk: _Optional[int] = ..., contribution: _Optional[bytes] = ..., chunk_hashes: _Optional[bytes] = ..., path: _Optional[bytes] = ..., no_part: bool = ..., credential: _Optional[bytes] = ..., carried: bool = ..., hashes_follow: bool = ...) -> None: ...

class CarryHello(_message.Message):
    __slots__ = ("unit", "base", "contribution", "credential")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTION_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    contribution: bytes
    credential: bytes
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., contribution: _Optional[bytes] = ..., credential: _Optional[bytes] = ...) -> None: ...

class FetchResult(_message.Message):
    __slots__ = ("unit", "base", "first_chunk", "stop_chunk", "result_hash")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STOP_CHUNK_FIELD_NUMBER: _ClassVar[int]
    RESULT_HASH_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    first_chunk: int
    stop_chunk: int
    result_hash: bytes
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., first_chunk: _Optional[int] = ..., stop_chunk: _Optional[int] = ..., result_hash: _Optional[bytes] = ...) -> None: ...

class FetchCommits(_message.Message):
    __slots__ = ("unit", "known")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    KNOWN_FIELD_NUMBER: _ClassVar[int]
    unit: str
    known: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, unit: _Optional[str] = ..., known: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FetchState(_message.Message):
    __slots__ = ("unit", "first_chunk", "stop_chunk", "commit", "knows_busy")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    FIRST_CHUNK_FIELD_NUMBER: _ClassVar[int]
    STOP_CHUNK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    KNOWS_BUSY_FIELD_NUMBER: _ClassVar[int]
    unit: str
    first_chunk: int
    stop_chunk: int
    commit: bytes
    knows_busy: bool
    def __init__(self, unit: _Optional[str] = ..., first_chunk: _Optional[int] = ..., stop_chunk: _Optional[int] = ..., commit: _Optional[bytes] = ..., knows_busy: bool = ...) -> None: ...

class FetchParts(_message.Message):
    __slots__ = ("unit", "commit", "group")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    unit: str
    commit: bytes
    group: int
    def __init__(self, unit: _Optional[str] = ..., commit: _Optional[bytes] = ..., group: _Optional[int] = ...) -> None: ...

class FetchHashes(_message.Message):
    __slots__ = ("unit", "commit")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    unit: str
    commit: bytes
    def __init__(self, unit: _Optional[str] = ..., commit: _Optional[bytes] = ...) -> None: ...

class FetchMilestones(_message.Message):
    __slots__ = ("unit",)
    UNIT_FIELD_NUMBER: _ClassVar[int]
    unit: str
    def __init__(self, unit: _Optional[str] = ...) -> None: ...

class FetchChunk(_message.Message):
    __slots__ = ("unit", "base", "chunk", "roots")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    CHUNK_FIELD_NUMBER: _ClassVar[int]
    ROOTS_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    chunk: int
    roots: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., chunk: _Optional[int] = ..., roots: _Optional[_Iterable[bytes]] = ...) -> None: ...

class FetchProof(_message.Message):
    __slots__ = ("unit", "proof_hash")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    PROOF_HASH_FIELD_NUMBER: _ClassVar[int]
    unit: str
    proof_hash: bytes
    def __init__(self, unit: _Optional[str] = ..., proof_hash: _Optional[bytes] = ...) -> None: ...

class FetchSteps(_message.Message):
    __slots__ = ("unit", "base", "root")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    unit: str
    base: bytes
    root: bytes
    def __init__(self, unit: _Optional[str] = ..., base: _Optional[bytes] = ..., root: _Optional[bytes] = ...) -> None: ...

class StepsTaken(_message.Message):
    __slots__ = ("root", "first_step", "num_steps")
    ROOT_FIELD_NUMBER: _ClassVar[int]
    FIRST_STEP_FIELD_NUMBER: _ClassVar[int]
    NUM_STEPS_FIELD_NUMBER: _ClassVar[int]
    root: bytes
    first_step: int
    num_steps: int
    def __init__(self, root: _Optional[bytes] = ..., first_step: _Optional[int] = ..., num_steps: _Optional[int] = ...) -> None: ...

class FetchRequest(_message.Message):
    __slots__ = ("fetch_result", "fetch_commits", "fetch_state", "fetch_hashes", "fetch_milestones", "fetch_parts", "fetch_chunk", "fetch_proof", "fetch_steps")
    FETCH_RESULT_FIELD_NUMBER: _ClassVar[int]
    FETCH_COMMITS_FIELD_NUMBER: _ClassVar[int]
    FETCH_STATE_FIELD_NUMBER: _ClassVar[int]
    FETCH_HASHES_FIELD_NUMBER: _ClassVar[int]
    FETCH_MILESTONES_FIELD_NUMBER: _ClassVar[int]
    FETCH_PARTS_FIELD_NUMBER: _ClassVar[int]
    FETCH_CHUNK_FIELD_NUMBER: _ClassVar[int]
    FETCH_PROOF_FIELD_NUMBER: _ClassVar[int]
    FETCH_STEPS_FIELD_NUMBER: _ClassVar[int]
    fetch_result: FetchResult
    fetch_commits: FetchCommits
    fetch_state: FetchState
    fetch_hashes: FetchHashes
    fetch_milestones: FetchMilestones
    fetch_parts: FetchParts
    fetch_chunk: FetchChunk
    fetch_proof: FetchProof
    fetch_steps: FetchSteps
    def __init__(self, fetch_result: _Optional[_Union[FetchResult, _Mapping]] = ..., fetch_commits: _Optional[_Union[FetchCommits, _Mapping]] = ..., fetch_state: _Optional[_Union[FetchState, _Mapping]] = ..., fetch_hashes: _Optional[_Union[FetchHashes, _Mapping]] = ..., fetch_milestones: _Optional[_Union[FetchMilestones, _Mapping]] = ..., fetch_parts: _Optional[_Union[FetchParts, _Mapping]] = ..., fetch_chunk: _Optional[_Union[FetchChunk, _Mapping]] = ..., fetch_proof: _Optional[_Union[FetchProof, _Mapping]] = ..., fetch_steps: _Optional[_Union[FetchSteps, _Mapping]] = ...) -> None: ...

class RoundMessage(_message.Message):
    __slots__ = ("heartbeat", "leave", "proposal", "result_ready", "settle", "ack", "committed", "promise_request", "promise", "refusal", "mend", "pre_vote_request", "pre_vote", "double_vote", "false_sum")
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    LEAVE_FIELD_NUMBER: _ClassVar[int]
    PROPOSAL_FIELD_NUMBER: _ClassVar[int]
    RESULT_READY_FIELD_NUMBER: _ClassVar[int]
    SETTLE_FIELD_NUMBER: _ClassVar[int]
    ACK_FIELD_NUMBER: _ClassVar[int]
    COMMITTED_FIELD_NUMBER: _ClassVar[int]
    PROMISE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PROMISE_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    MEND_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_REQUEST_FIELD_NUMBER: _ClassVar[int]
    PRE_VOTE_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VOTE_FIELD_NUMBER: _ClassVar[int]
    FALSE_SUM_FIELD_NUMBER: _ClassVar[int]
    heartbeat: Heartbeat
    leave: Leave
    proposal: Proposal
    result_ready: ResultReady
    settle: Settle
    ack: Ack
    committed: Committed
    promise_request: PromiseRequest
    promise: Promise
    refusal: Refusal
    mend: Mend
    pre_vote_request: PreVoteRequest
    pre_vote: PreVote
    double_vote: DoubleVote
    false_sum: FalseSum
    def __init__(self, heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., leave: _Optional[_Union[Leave, _Mapping]] = ..., proposal: _Optional[_Union[Proposal, _Mapping]] = ..., result_ready: _Optional[_Union[ResultReady, _Mapping]] = ..., settle: _Optional[_Union[Settle, _Mapping]] = ..., ack: _Optional[_Union[Ack, _Mapping]] = ..., committed: _Optional[_Union[Committed, _Mapping]] = ..., promise_request: _Optional[_Union[PromiseRequest, _Mapping]] = ..., promise: _Optional[_Union[Promise, _Mapping]] = ..., refusal: _Optional[_Union[Refusal, _Mapping]] = ..., mend: _Optional[_Union[Mend, _Mapping]] = ..., pre_vote_request: _Optional[_Union[PreVoteRequest, _Mapping]] = ..., pre_vote: _Optional[_Union[PreVote, _Mapping]] = ..., double_vote: _Optional[_Union[DoubleVote, _Mapping]] = ..., false_sum: _Optional[_Union[FalseSum, _Mapping]] = ...) -> None: ...
