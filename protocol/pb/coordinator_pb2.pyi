from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ClockRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ClockReply(_message.Message):
    __slots__ = ("unix_s", "protocol_version", "run_id", "release")
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    RELEASE_FIELD_NUMBER: _ClassVar[int]
    unix_s: float
    protocol_version: int
    run_id: bytes
    release: str
    def __init__(self, unix_s: _Optional[float] = ..., protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., release: _Optional[str] = ...) -> None: ...

class DialBackRequest(_message.Message):
    __slots__ = ("invite_secret", "sealed", "port", "nonce")
    INVITE_SECRET_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    NONCE_FIELD_NUMBER: _ClassVar[int]
    invite_secret: bytes
    sealed: Sealed
    port: int
    nonce: bytes
    def __init__(self, invite_secret: _Optional[bytes] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ..., port: _Optional[int] = ..., nonce: _Optional[bytes] = ...) -> None: ...

class DialBackReply(_message.Message):
    __slots__ = ("is_reached", "caller_host")
    IS_REACHED_FIELD_NUMBER: _ClassVar[int]
    CALLER_HOST_FIELD_NUMBER: _ClassVar[int]
    is_reached: bool
    caller_host: str
    def __init__(self, is_reached: bool = ..., caller_host: _Optional[str] = ...) -> None: ...

class BandwidthRequest(_message.Message):
    __slots__ = ("invite_secret", "sealed", "wanted_bytes", "padding")
    INVITE_SECRET_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    WANTED_BYTES_FIELD_NUMBER: _ClassVar[int]
    PADDING_FIELD_NUMBER: _ClassVar[int]
    invite_secret: bytes
    sealed: Sealed
    wanted_bytes: int
    padding: bytes
    def __init__(self, invite_secret: _Optional[bytes] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ..., wanted_bytes: _Optional[int] = ..., padding: _Optional[bytes] = ...) -> None: ...

class BandwidthReply(_message.Message):
    __slots__ = ("padding",)
    PADDING_FIELD_NUMBER: _ClassVar[int]
    padding: bytes
    def __init__(self, padding: _Optional[bytes] = ...) -> None: ...

class DescribeRequest(_message.Message):
    __slots__ = ("invite_secret", "sealed")
    INVITE_SECRET_FIELD_NUMBER: _ClassVar[int]
    SEALED_FIELD_NUMBER: _ClassVar[int]
    invite_secret: bytes
    sealed: Sealed
    def __init__(self, invite_secret: _Optional[bytes] = ..., sealed: _Optional[_Union[Sealed, _Mapping]] = ...) -> None: ...

class DescribeReply(_message.Message):
    __slots__ = ("manifest", "dataset")
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    manifest: bytes
    dataset: bytes
    def __init__(self, manifest: _Optional[bytes] = ..., dataset: _Optional[bytes] = ...) -> None: ...

class AdmitRequest(_message.Message):
    __slots__ = ("protocol_version", "run_id", "invite_secret", "credential_request", "unix_s")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    INVITE_SECRET_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: bytes
    invite_secret: bytes
    credential_request: bytes
    unix_s: float
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., invite_secret: _Optional[bytes] = ..., credential_request: _Optional[bytes] = ..., unix_s: _Optional[float] = ...) -> None: ...

class AdmitReply(_message.Message):
    __slots__ = ("credential", "manifest", "dataset", "start_record", "coordinator_peer_id", "bootstrap", "milestones")
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    MANIFEST_FIELD_NUMBER: _ClassVar[int]
    DATASET_FIELD_NUMBER: _ClassVar[int]
    START_RECORD_FIELD_NUMBER: _ClassVar[int]
    COORDINATOR_PEER_ID_FIELD_NUMBER: _ClassVar[int]
    BOOTSTRAP_FIELD_NUMBER: _ClassVar[int]
    MILESTONES_FIELD_NUMBER: _ClassVar[int]
    credential: bytes
    manifest: bytes
    dataset: bytes
    start_record: bytes
    coordinator_peer_id: str
    bootstrap: _containers.RepeatedScalarFieldContainer[str]
    milestones: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, credential: _Optional[bytes] = ..., manifest: _Optional[bytes] = ..., dataset: _Optional[bytes] = ..., start_record: _Optional[bytes] = ..., coordinator_peer_id: _Optional[str] = ..., bootstrap: _Optional[_Iterable[str]] = ..., milestones: _Optional[_Iterable[bytes]] = ...) -> None: ...

class ChallengeRequest(_message.Message):
    __slots__ = ("protocol_version", "run_id", "unix_s", "public_key")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    PUBLIC_KEY_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: bytes
    unix_s: float
    public_key: bytes
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., unix_s: _Optional[float] = ..., public_key: _Optional[bytes] = ...) -> None: ...

class ChallengeReply(_message.Message):
    __slots__ = ("challenge",)
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    challenge: bytes
    def __init__(self, challenge: _Optional[bytes] = ...) -> None: ...

class EnterRequest(_message.Message):
    __slots__ = ("protocol_version", "run_id", "credential_request", "unix_s", "challenge", "answer")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    CHALLENGE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: bytes
    credential_request: bytes
    unix_s: float
    challenge: bytes
    answer: int
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., credential_request: _Optional[bytes] = ..., unix_s: _Optional[float] = ..., challenge: _Optional[bytes] = ..., answer: _Optional[int] = ...) -> None: ...

class RenewRequest(_message.Message):
    __slots__ = ("protocol_version", "run_id", "credential_request", "unix_s")
    PROTOCOL_VERSION_FIELD_NUMBER: _ClassVar[int]
    RUN_ID_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_REQUEST_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    protocol_version: int
    run_id: bytes
    credential_request: bytes
    unix_s: float
    def __init__(self, protocol_version: _Optional[int] = ..., run_id: _Optional[bytes] = ..., credential_request: _Optional[bytes] = ..., unix_s: _Optional[float] = ...) -> None: ...

class RenewReply(_message.Message):
    __slots__ = ("credential",)
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    credential: bytes
    def __init__(self, credential: _Optional[bytes] = ...) -> None: ...

class Sealed(_message.Message):
    __slots__ = ("envelope", "credential")
    ENVELOPE_FIELD_NUMBER: _ClassVar[int]
    CREDENTIAL_FIELD_NUMBER: _ClassVar[int]
    envelope: bytes
    credential: bytes
    def __init__(self, envelope: _Optional[bytes] = ..., credential: _Optional[bytes] = ...) -> None: ...

class HeldoutBody(_message.Message):
    __slots__ = ("commit", "index", "total_tokens", "nats", "prose_nats", "of_experts")
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    NATS_FIELD_NUMBER: _ClassVar[int]
    PROSE_NATS_FIELD_NUMBER: _ClassVar[int]
    OF_EXPERTS_FIELD_NUMBER: _ClassVar[int]
    commit: bytes
    index: int
    total_tokens: int
    nats: float
    prose_nats: float
    of_experts: _containers.RepeatedCompositeFieldContainer[ExpertLossBody]
    def __init__(self, commit: _Optional[bytes] = ..., index: _Optional[int] = ..., total_tokens: _Optional[int] = ..., nats: _Optional[float] = ..., prose_nats: _Optional[float] = ..., of_experts: _Optional[_Iterable[_Union[ExpertLossBody, _Mapping]]] = ...) -> None: ...

class ExpertLossBody(_message.Message):
    __slots__ = ("expert", "nats")
    EXPERT_FIELD_NUMBER: _ClassVar[int]
    NATS_FIELD_NUMBER: _ClassVar[int]
    expert: int
    nats: float
    def __init__(self, expert: _Optional[int] = ..., nats: _Optional[float] = ...) -> None: ...

class ScoreBody(_message.Message):
    __slots__ = ("task", "commit", "index", "part", "num_items", "num_right", "num_right_by_length", "answers")
    TASK_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    PART_FIELD_NUMBER: _ClassVar[int]
    NUM_ITEMS_FIELD_NUMBER: _ClassVar[int]
    NUM_RIGHT_FIELD_NUMBER: _ClassVar[int]
    NUM_RIGHT_BY_LENGTH_FIELD_NUMBER: _ClassVar[int]
    ANSWERS_FIELD_NUMBER: _ClassVar[int]
    task: str
    commit: bytes
    index: int
    part: int
    num_items: int
    num_right: int
    num_right_by_length: int
    answers: _containers.RepeatedCompositeFieldContainer[AnswerBody]
    def __init__(self, task: _Optional[str] = ..., commit: _Optional[bytes] = ..., index: _Optional[int] = ..., part: _Optional[int] = ..., num_items: _Optional[int] = ..., num_right: _Optional[int] = ..., num_right_by_length: _Optional[int] = ..., answers: _Optional[_Iterable[_Union[AnswerBody, _Mapping]]] = ...) -> None: ...

class AnswerBody(_message.Message):
    __slots__ = ("tokens",)
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    tokens: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, tokens: _Optional[_Iterable[int]] = ...) -> None: ...

class ScoreReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class WorkVerdictBody(_message.Message):
    __slots__ = ("unit", "commit", "contributor", "root", "gap_ppm", "length_permille", "untold")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    CONTRIBUTOR_FIELD_NUMBER: _ClassVar[int]
    ROOT_FIELD_NUMBER: _ClassVar[int]
    GAP_PPM_FIELD_NUMBER: _ClassVar[int]
    LENGTH_PERMILLE_FIELD_NUMBER: _ClassVar[int]
    UNTOLD_FIELD_NUMBER: _ClassVar[int]
    unit: str
    commit: bytes
    contributor: str
    root: bytes
    gap_ppm: int
    length_permille: int
    untold: bool
    def __init__(self, unit: _Optional[str] = ..., commit: _Optional[bytes] = ..., contributor: _Optional[str] = ..., root: _Optional[bytes] = ..., gap_ppm: _Optional[int] = ..., length_permille: _Optional[int] = ..., untold: bool = ...) -> None: ...

class WorkVerdictReply(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportBody(_message.Message):
    __slots__ = ("state", "reason", "unit", "head", "index", "total_tokens", "tokens_per_s", "tokens_ready", "loss_nats", "bytes_up", "bytes_down", "state_commit", "state_root", "is_ready_to_start", "heldout", "certificates", "addresses", "start_record", "known_revocations", "revocations", "version", "is_outbound_only", "like", "beside", "experts", "expert_room", "incarnation", "unit_bytes", "lane", "could_tokens_per_s", "double_votes", "nickname", "team", "source_tokens", "energy", "known_milestones", "milestones", "false_sums")
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    UNIT_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    TOKENS_READY_FIELD_NUMBER: _ClassVar[int]
    LOSS_NATS_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    STATE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    IS_READY_TO_START_FIELD_NUMBER: _ClassVar[int]
    HELDOUT_FIELD_NUMBER: _ClassVar[int]
    CERTIFICATES_FIELD_NUMBER: _ClassVar[int]
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    START_RECORD_FIELD_NUMBER: _ClassVar[int]
    KNOWN_REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    IS_OUTBOUND_ONLY_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    BESIDE_FIELD_NUMBER: _ClassVar[int]
    EXPERTS_FIELD_NUMBER: _ClassVar[int]
    EXPERT_ROOM_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    UNIT_BYTES_FIELD_NUMBER: _ClassVar[int]
    LANE_FIELD_NUMBER: _ClassVar[int]
    COULD_TOKENS_PER_S_FIELD_NUMBER: _ClassVar[int]
    DOUBLE_VOTES_FIELD_NUMBER: _ClassVar[int]
    NICKNAME_FIELD_NUMBER: _ClassVar[int]
    TEAM_FIELD_NUMBER: _ClassVar[int]
    SOURCE_TOKENS_FIELD_NUMBER: _ClassVar[int]
    ENERGY_FIELD_NUMBER: _ClassVar[int]
    KNOWN_MILESTONES_FIELD_NUMBER: _ClassVar[int]
    MILESTONES_FIELD_NUMBER: _ClassVar[int]
    FALSE_SUMS_FIELD_NUMBER: _ClassVar[int]
    state: str
    reason: str
    unit: str
    head: bytes
    index: int
    total_tokens: int
    tokens_per_s: float
    tokens_ready: int
    loss_nats: float
    bytes_up: int
    bytes_down: int
    state_commit: bytes
    state_root: bytes
    is_ready_to_start: bool
    heldout: _containers.RepeatedCompositeFieldContainer[HeldoutBody]
    certificates: _containers.RepeatedScalarFieldContainer[bytes]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    start_record: bytes
    known_revocations: bytes
    revocations: _containers.RepeatedScalarFieldContainer[bytes]
    version: str
    is_outbound_only: bool
    like: bytes
    beside: _containers.RepeatedCompositeFieldContainer[UnitBody]
    experts: _containers.RepeatedScalarFieldContainer[int]
    expert_room: int
    incarnation: int
    unit_bytes: _containers.RepeatedCompositeFieldContainer[UnitBytesBody]
    lane: int
    could_tokens_per_s: float
    double_votes: _containers.RepeatedCompositeFieldContainer[AckPairBody]
    nickname: str
    team: str
    source_tokens: _containers.RepeatedScalarFieldContainer[int]
    energy: EnergyBody
    known_milestones: bytes
    milestones: _containers.RepeatedScalarFieldContainer[bytes]
    false_sums: _containers.RepeatedCompositeFieldContainer[FalseSumBody]
    def __init__(self, state: _Optional[str] = ..., reason: _Optional[str] = ..., unit: _Optional[str] = ..., head: _Optional[bytes] = ..., index: _Optional[int] = ..., total_tokens: _Optional[int] = ..., tokens_per_s: _Optional[float] = ..., tokens_ready: _Optional[int] = ..., loss_nats: _Optional[float] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ..., state_commit: _Optional[bytes] = ..., state_root: _Optional[bytes] = ..., is_ready_to_start: bool = ..., heldout: _Optional[_Iterable[_Union[HeldoutBody, _Mapping]]] = ..., certificates: _Optional[_Iterable[bytes]] = ..., addresses: _Optional[_Iterable[str]] = ..., start_record: _Optional[bytes] = ..., known_revocations: _Optional[bytes] = ..., revocations: _Optional[_Iterable[bytes]] = ..., version: _Optional[str] = ..., is_outbound_only: bool = ..., like: _Optional[bytes] = ..., beside: _Optional[_Iterable[_Union[UnitBody, _Mapping]]] = ..., experts: _Optional[_Iterable[int]] = ..., expert_room: _Optional[int] = ..., incarnation: _Optional[int] = ..., unit_bytes: _Optional[_Iterable[_Union[UnitBytesBody, _Mapping]]] = ..., lane: _Optional[int] = ..., could_tokens_per_s: _Optional[float] = ..., double_votes: _Optional[_Iterable[_Union[AckPairBody, _Mapping]]] = ..., nickname: _Optional[str] = ..., team: _Optional[str] = ..., source_tokens: _Optional[_Iterable[int]] = ..., energy: _Optional[_Union[EnergyBody, _Mapping]] = ..., known_milestones: _Optional[bytes] = ..., milestones: _Optional[_Iterable[bytes]] = ..., false_sums: _Optional[_Iterable[_Union[FalseSumBody, _Mapping]]] = ...) -> None: ...

class EnergyBody(_message.Message):
    __slots__ = ("joules", "tokens", "g_per_kwh")
    JOULES_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    G_PER_KWH_FIELD_NUMBER: _ClassVar[int]
    joules: float
    tokens: int
    g_per_kwh: float
    def __init__(self, joules: _Optional[float] = ..., tokens: _Optional[int] = ..., g_per_kwh: _Optional[float] = ...) -> None: ...

class FalseSumBody(_message.Message):
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

class AckPairBody(_message.Message):
    __slots__ = ("one", "other")
    ONE_FIELD_NUMBER: _ClassVar[int]
    OTHER_FIELD_NUMBER: _ClassVar[int]
    one: bytes
    other: bytes
    def __init__(self, one: _Optional[bytes] = ..., other: _Optional[bytes] = ...) -> None: ...

class UnitBytesBody(_message.Message):
    __slots__ = ("unit", "bytes_up", "bytes_down")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    BYTES_UP_FIELD_NUMBER: _ClassVar[int]
    BYTES_DOWN_FIELD_NUMBER: _ClassVar[int]
    unit: str
    bytes_up: int
    bytes_down: int
    def __init__(self, unit: _Optional[str] = ..., bytes_up: _Optional[int] = ..., bytes_down: _Optional[int] = ...) -> None: ...

class UnitBody(_message.Message):
    __slots__ = ("unit", "state_commit", "state_root", "index")
    UNIT_FIELD_NUMBER: _ClassVar[int]
    STATE_COMMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    unit: str
    state_commit: bytes
    state_root: bytes
    index: int
    def __init__(self, unit: _Optional[str] = ..., state_commit: _Optional[bytes] = ..., state_root: _Optional[bytes] = ..., index: _Optional[int] = ...) -> None: ...

class ReportReply(_message.Message):
    __slots__ = ("phase", "head", "index", "want_from_index", "is_final_checkpoint_written", "revocations", "asks_revocations", "known_revocations", "like", "live_others", "again_in_s", "start", "milestones", "gate")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    WANT_FROM_INDEX_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_CHECKPOINT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    ASKS_REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    KNOWN_REVOCATIONS_FIELD_NUMBER: _ClassVar[int]
    LIKE_FIELD_NUMBER: _ClassVar[int]
    LIVE_OTHERS_FIELD_NUMBER: _ClassVar[int]
    AGAIN_IN_S_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    MILESTONES_FIELD_NUMBER: _ClassVar[int]
    GATE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    head: bytes
    index: int
    want_from_index: int
    is_final_checkpoint_written: bool
    revocations: _containers.RepeatedScalarFieldContainer[bytes]
    asks_revocations: bool
    known_revocations: bytes
    like: bytes
    live_others: int
    again_in_s: float
    start: StartNews
    milestones: _containers.RepeatedScalarFieldContainer[bytes]
    gate: GateNews
    def __init__(self, phase: _Optional[str] = ..., head: _Optional[bytes] = ..., index: _Optional[int] = ..., want_from_index: _Optional[int] = ..., is_final_checkpoint_written: bool = ..., revocations: _Optional[_Iterable[bytes]] = ..., asks_revocations: bool = ..., known_revocations: _Optional[bytes] = ..., like: _Optional[bytes] = ..., live_others: _Optional[int] = ..., again_in_s: _Optional[float] = ..., start: _Optional[_Union[StartNews, _Mapping]] = ..., milestones: _Optional[_Iterable[bytes]] = ..., gate: _Optional[_Union[GateNews, _Mapping]] = ...) -> None: ...

class GateNews(_message.Message):
    __slots__ = ("hold", "rewinds")
    HOLD_FIELD_NUMBER: _ClassVar[int]
    REWINDS_FIELD_NUMBER: _ClassVar[int]
    hold: bytes
    rewinds: _containers.RepeatedScalarFieldContainer[bytes]
    def __init__(self, hold: _Optional[bytes] = ..., rewinds: _Optional[_Iterable[bytes]] = ...) -> None: ...

class StartNews(_message.Message):
    __slots__ = ("reason", "start_record")
    REASON_FIELD_NUMBER: _ClassVar[int]
    START_RECORD_FIELD_NUMBER: _ClassVar[int]
    reason: str
    start_record: bytes
    def __init__(self, reason: _Optional[str] = ..., start_record: _Optional[bytes] = ...) -> None: ...

class WatchBody(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class RunEvent(_message.Message):
    __slots__ = ("phase", "reason", "head", "index", "total_tokens", "start_record", "is_final_checkpoint_written")
    PHASE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    HEAD_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    START_RECORD_FIELD_NUMBER: _ClassVar[int]
    IS_FINAL_CHECKPOINT_WRITTEN_FIELD_NUMBER: _ClassVar[int]
    phase: str
    reason: str
    head: bytes
    index: int
    total_tokens: int
    start_record: bytes
    is_final_checkpoint_written: bool
    def __init__(self, phase: _Optional[str] = ..., reason: _Optional[str] = ..., head: _Optional[bytes] = ..., index: _Optional[int] = ..., total_tokens: _Optional[int] = ..., start_record: _Optional[bytes] = ..., is_final_checkpoint_written: bool = ...) -> None: ...

class ListCheckpointsBody(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CheckpointEntry(_message.Message):
    __slots__ = ("index", "commit", "state_root", "total_tokens", "unix_s")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    STATE_ROOT_FIELD_NUMBER: _ClassVar[int]
    TOTAL_TOKENS_FIELD_NUMBER: _ClassVar[int]
    UNIX_S_FIELD_NUMBER: _ClassVar[int]
    index: int
    commit: bytes
    state_root: bytes
    total_tokens: int
    unix_s: int
    def __init__(self, index: _Optional[int] = ..., commit: _Optional[bytes] = ..., state_root: _Optional[bytes] = ..., total_tokens: _Optional[int] = ..., unix_s: _Optional[int] = ...) -> None: ...

class CheckpointList(_message.Message):
    __slots__ = ("checkpoints",)
    CHECKPOINTS_FIELD_NUMBER: _ClassVar[int]
    checkpoints: _containers.RepeatedCompositeFieldContainer[CheckpointEntry]
    def __init__(self, checkpoints: _Optional[_Iterable[_Union[CheckpointEntry, _Mapping]]] = ...) -> None: ...

class ErrorBody(_message.Message):
    __slots__ = ("kind", "found", "expected", "remedy")
    KIND_FIELD_NUMBER: _ClassVar[int]
    FOUND_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    REMEDY_FIELD_NUMBER: _ClassVar[int]
    kind: str
    found: str
    expected: str
    remedy: str
    def __init__(self, kind: _Optional[str] = ..., found: _Optional[str] = ..., expected: _Optional[str] = ..., remedy: _Optional[str] = ...) -> None: ...
