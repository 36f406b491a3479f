from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class LaneRefusal(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    LANE_REFUSAL_OTHER: _ClassVar[LaneRefusal]
    LANE_REFUSAL_CONTENT: _ClassVar[LaneRefusal]
    LANE_REFUSAL_NOT_YET: _ClassVar[LaneRefusal]
LANE_REFUSAL_OTHER: LaneRefusal
LANE_REFUSAL_CONTENT: LaneRefusal
LANE_REFUSAL_NOT_YET: LaneRefusal

class LanePoint(_message.Message):
    __slots__ = ("round", "step")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    round: int
    step: int
    def __init__(self, round: _Optional[int] = ..., step: _Optional[int] = ...) -> None: ...

class LaneBegin(_message.Message):
    __slots__ = ("lane", "epoch", "at", "members")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class LaneSquare(_message.Message):
    __slots__ = ("lane", "epoch", "at", "square")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    SQUARE_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    square: float
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., square: _Optional[float] = ...) -> None: ...

class LaneStep(_message.Message):
    __slots__ = ("lane", "epoch", "at", "whole_square")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_SQUARE_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    whole_square: float
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., whole_square: _Optional[float] = ...) -> None: ...

class LaneCopied(_message.Message):
    __slots__ = ("lane", "epoch", "at")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ...) -> None: ...

class LaneKeep(_message.Message):
    __slots__ = ("lane", "epoch", "at")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ...) -> None: ...

class LaneBack(_message.Message):
    __slots__ = ("lane", "epoch", "at", "counted", "members")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    counted: int
    members: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., counted: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ...) -> None: ...

class LaneLoaded(_message.Message):
    __slots__ = ("lane", "epoch")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class LaneLoadFailed(_message.Message):
    __slots__ = ("lane", "epoch", "reason")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    reason: str
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LaneResume(_message.Message):
    __slots__ = ("lane", "epoch")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class LaneEnd(_message.Message):
    __slots__ = ("lane", "epoch", "at", "tokens", "holders", "reason")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    HOLDERS_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    tokens: int
    holders: _containers.RepeatedScalarFieldContainer[str]
    reason: str
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., tokens: _Optional[int] = ..., holders: _Optional[_Iterable[str]] = ..., reason: _Optional[str] = ...) -> None: ...

class LanePing(_message.Message):
    __slots__ = ("lane", "epoch", "num_lanes")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    NUM_LANES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    num_lanes: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., num_lanes: _Optional[int] = ...) -> None: ...

class LaneLeave(_message.Message):
    __slots__ = ("lane", "epoch", "reason")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    reason: str
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class LaneHere(_message.Message):
    __slots__ = ("lane", "epoch")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ...) -> None: ...

class LaneSpare(_message.Message):
    __slots__ = ("stage", "index")
    STAGE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    stage: int
    index: int
    def __init__(self, stage: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class LaneClaim(_message.Message):
    __slots__ = ("lane", "at", "stage", "tokens", "giver")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    GIVER_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    stage: int
    tokens: int
    giver: str
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ..., tokens: _Optional[int] = ..., giver: _Optional[str] = ...) -> None: ...

class SyncedBegin(_message.Message):
    __slots__ = ("lane", "at", "stage", "donors")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    DONORS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    stage: int
    donors: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ..., donors: _Optional[_Iterable[str]] = ...) -> None: ...

class SyncedReady(_message.Message):
    __slots__ = ("lane", "at", "weights_hash")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WEIGHTS_HASH_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    weights_hash: bytes
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., weights_hash: _Optional[bytes] = ...) -> None: ...

class SyncedBeside(_message.Message):
    __slots__ = ("lane", "peers")
    LANE_FIELD_NUMBER: _ClassVar[int]
    PEERS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    peers: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, lane: _Optional[int] = ..., peers: _Optional[_Iterable[str]] = ...) -> None: ...

class SyncedGrant(_message.Message):
    __slots__ = ("lane", "at", "number")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    number: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class SyncedDrop(_message.Message):
    __slots__ = ("lane", "at", "number")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    number: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., number: _Optional[int] = ...) -> None: ...

class SyncedAgain(_message.Message):
    __slots__ = ("lane", "at", "reason")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    reason: str
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SyncedTellSum(_message.Message):
    __slots__ = ("lane", "at", "numbers")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class SyncedSummed(_message.Message):
    __slots__ = ("lane", "at", "numbers")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class SyncedNotSummed(_message.Message):
    __slots__ = ("lane", "at", "reason")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    reason: str
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., reason: _Optional[str] = ...) -> None: ...

class SyncedPart(_message.Message):
    __slots__ = ("peer", "numbers")
    PEER_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    peer: str
    numbers: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, peer: _Optional[str] = ..., numbers: _Optional[_Iterable[int]] = ...) -> None: ...

class SyncedCommit(_message.Message):
    __slots__ = ("lane", "at", "parts")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    PARTS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    parts: _containers.RepeatedCompositeFieldContainer[SyncedPart]
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., parts: _Optional[_Iterable[_Union[SyncedPart, _Mapping]]] = ...) -> None: ...

class SyncedStep(_message.Message):
    __slots__ = ("lane", "at", "whole_square", "counted")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    WHOLE_SQUARE_FIELD_NUMBER: _ClassVar[int]
    COUNTED_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    whole_square: float
    counted: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., whole_square: _Optional[float] = ..., counted: _Optional[int] = ...) -> None: ...

class SyncedBring(_message.Message):
    __slots__ = ("lane", "at", "tokens")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    tokens: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., tokens: _Optional[int] = ...) -> None: ...

class LaneMessage(_message.Message):
    __slots__ = ("lane_begin", "lane_square", "lane_step", "lane_copied", "lane_keep", "lane_back", "lane_loaded", "lane_load_failed", "lane_resume", "lane_end", "lane_ping", "lane_leave", "lane_spare", "synced_begin", "synced_ready", "synced_beside", "synced_grant", "synced_drop", "synced_again", "synced_tell_sum", "synced_summed", "synced_not_summed", "synced_commit", "synced_step", "synced_bring", "lane_claim", "lane_here")
    LANE_BEGIN_FIELD_NUMBER: _ClassVar[int]
    LANE_SQUARE_FIELD_NUMBER: _ClassVar[int]
    LANE_STEP_FIELD_NUMBER: _ClassVar[int]
    LANE_COPIED_FIELD_NUMBER: _ClassVar[int]
    LANE_KEEP_FIELD_NUMBER: _ClassVar[int]
    LANE_BACK_FIELD_NUMBER: _ClassVar[int]
    LANE_LOADED_FIELD_NUMBER: _ClassVar[int]
    LANE_LOAD_FAILED_FIELD_NUMBER: _ClassVar[int]
    LANE_RESUME_FIELD_NUMBER: _ClassVar[int]
    LANE_END_FIELD_NUMBER: _ClassVar[int]
    LANE_PING_FIELD_NUMBER: _ClassVar[int]
    LANE_LEAVE_FIELD_NUMBER: _ClassVar[int]
    LANE_SPARE_FIELD_NUMBER: _ClassVar[int]
    SYNCED_BEGIN_FIELD_NUMBER: _ClassVar[int]
    SYNCED_READY_FIELD_NUMBER: _ClassVar[int]
    SYNCED_BESIDE_FIELD_NUMBER: _ClassVar[int]
    SYNCED_GRANT_FIELD_NUMBER: _ClassVar[int]
    SYNCED_DROP_FIELD_NUMBER: _ClassVar[int]
    SYNCED_AGAIN_FIELD_NUMBER: _ClassVar[int]
    SYNCED_TELL_SUM_FIELD_NUMBER: _ClassVar[int]
    SYNCED_SUMMED_FIELD_NUMBER: _ClassVar[int]
    SYNCED_NOT_SUMMED_FIELD_NUMBER: _ClassVar[int]
    SYNCED_COMMIT_FIELD_NUMBER: _ClassVar[int]
    SYNCED_STEP_FIELD_NUMBER: _ClassVar[int]
    SYNCED_BRING_FIELD_NUMBER: _ClassVar[int]
    LANE_CLAIM_FIELD_NUMBER: _ClassVar[int]
    LANE_HERE_FIELD_NUMBER: _ClassVar[int]
    lane_begin: LaneBegin
    lane_square: LaneSquare
    lane_step: LaneStep
    lane_copied: LaneCopied
    lane_keep: LaneKeep
    lane_back: LaneBack
    lane_loaded: LaneLoaded
    lane_load_failed: LaneLoadFailed
    lane_resume: LaneResume
    lane_end: LaneEnd
    lane_ping: LanePing
    lane_leave: LaneLeave
    lane_spare: LaneSpare
    synced_begin: SyncedBegin
    synced_ready: SyncedReady
    synced_beside: SyncedBeside
    synced_grant: SyncedGrant
    synced_drop: SyncedDrop
    synced_again: SyncedAgain
    synced_tell_sum: SyncedTellSum
    synced_summed: SyncedSummed
    synced_not_summed: SyncedNotSummed
    synced_commit: SyncedCommit
    synced_step: SyncedStep
    synced_bring: SyncedBring
    lane_claim: LaneClaim
    lane_here: LaneHere
    def __init__(self, lane_begin: _Optional[_Union[LaneBegin, _Mapping]] = ..., lane_square: _Optional[_Union[LaneSquare, _Mapping]] = ..., lane_step: _Optional[_Union[LaneStep, _Mapping]] = ..., lane_copied: _Optional[_Union[LaneCopied, _Mapping]] = ..., lane_keep: _Optional[_Union[LaneKeep, _Mapping]] = ..., lane_back: _Optional[_Union[LaneBack, _Mapping]] = ..., lane_loaded: _Optional[_Union[LaneLoaded, _Mapping]] = ..., lane_load_failed: _Optional[_Union[LaneLoadFailed, _Mapping]] = ..., lane_resume: _Optional[_Union[LaneResume, _Mapping]] = ..., lane_end: _Optional[_Union[LaneEnd, _Mapping]] = ..., lane_ping: _Optional[_Union[LanePing, _Mapping]] = ..., lane_leave: _Optional[_Union[LaneLeave, _Mapping]] = ..., lane_spare: _Optional[_Union[LaneSpare, _Mapping]] = ..., synced_begin: _Optional[_Union[SyncedBegin, _Mapping]] = ..., synced_ready: _Optional[_Union[SyncedReady, _Mapping]] = ..., synced_beside: _Optional[_Union[SyncedBeside, _Mapping]] = ..., synced_grant: _Optional[_Union[SyncedGrant, _Mapping]] = ..., synced_drop: _Optional[_Union[SyncedDrop, _Mapping]] = ..., synced_again: _Optional[_Union[SyncedAgain, _Mapping]] = ..., synced_tell_sum: _Optional[_Union[SyncedTellSum, _Mapping]] = ..., synced_summed: _Optional[_Union[SyncedSummed, _Mapping]] = ..., synced_not_summed: _Optional[_Union[SyncedNotSummed, _Mapping]] = ..., synced_commit: _Optional[_Union[SyncedCommit, _Mapping]] = ..., synced_step: _Optional[_Union[SyncedStep, _Mapping]] = ..., synced_bring: _Optional[_Union[SyncedBring, _Mapping]] = ..., lane_claim: _Optional[_Union[LaneClaim, _Mapping]] = ..., lane_here: _Optional[_Union[LaneHere, _Mapping]] = ...) -> None: ...

class LanePassed(_message.Message):
    __slots__ = ("lane", "epoch", "at", "number", "is_backward", "num_bytes")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    number: int
    is_backward: bool
    num_bytes: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., number: _Optional[int] = ..., is_backward: bool = ..., num_bytes: _Optional[int] = ...) -> None: ...

class LaneCopy(_message.Message):
    __slots__ = ("lane", "epoch", "at", "stage", "num_bytes")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    stage: int
    num_bytes: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class LaneFetch(_message.Message):
    __slots__ = ("lane", "epoch", "at", "stage")
    LANE_FIELD_NUMBER: _ClassVar[int]
    EPOCH_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    lane: int
    epoch: int
    at: LanePoint
    stage: int
    def __init__(self, lane: _Optional[int] = ..., epoch: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ...) -> None: ...

class LaneGift(_message.Message):
    __slots__ = ("lane", "at", "stage", "tokens", "num_bytes")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    TOKENS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    stage: int
    tokens: int
    num_bytes: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ..., tokens: _Optional[int] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class LaneAnswer(_message.Message):
    __slots__ = ("reason", "num_lanes", "refusal")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_LANES_FIELD_NUMBER: _ClassVar[int]
    REFUSAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    num_lanes: int
    refusal: LaneRefusal
    def __init__(self, reason: _Optional[str] = ..., num_lanes: _Optional[int] = ..., refusal: _Optional[_Union[LaneRefusal, str]] = ...) -> None: ...

class SyncedAsk(_message.Message):
    __slots__ = ("lane", "at", "stage", "number", "is_backward", "forward_bytes", "backward_bytes")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    FORWARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    BACKWARD_BYTES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    stage: int
    number: int
    is_backward: bool
    forward_bytes: int
    backward_bytes: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ..., number: _Optional[int] = ..., is_backward: bool = ..., forward_bytes: _Optional[int] = ..., backward_bytes: _Optional[int] = ...) -> None: ...

class SyncedReply(_message.Message):
    __slots__ = ("lane", "at", "stage", "number", "is_backward", "num_bytes", "declined", "is_spoilt", "loss_nats")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    STAGE_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    IS_BACKWARD_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    DECLINED_FIELD_NUMBER: _ClassVar[int]
    IS_SPOILT_FIELD_NUMBER: _ClassVar[int]
    LOSS_NATS_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    stage: int
    number: int
    is_backward: bool
    num_bytes: int
    declined: str
    is_spoilt: bool
    loss_nats: float
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., stage: _Optional[int] = ..., number: _Optional[int] = ..., is_backward: bool = ..., num_bytes: _Optional[int] = ..., declined: _Optional[str] = ..., is_spoilt: bool = ..., loss_nats: _Optional[float] = ...) -> None: ...

class SyncedSum(_message.Message):
    __slots__ = ("lane", "at", "numbers", "num_bytes")
    LANE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    NUM_BYTES_FIELD_NUMBER: _ClassVar[int]
    lane: int
    at: LanePoint
    numbers: _containers.RepeatedScalarFieldContainer[int]
    num_bytes: int
    def __init__(self, lane: _Optional[int] = ..., at: _Optional[_Union[LanePoint, _Mapping]] = ..., numbers: _Optional[_Iterable[int]] = ..., num_bytes: _Optional[int] = ...) -> None: ...

class LaneParcel(_message.Message):
    __slots__ = ("lane_passed", "lane_copy", "lane_fetch", "lane_answer", "lane_gift", "synced_ask", "synced_reply", "synced_sum")
    LANE_PASSED_FIELD_NUMBER: _ClassVar[int]
    LANE_COPY_FIELD_NUMBER: _ClassVar[int]
    LANE_FETCH_FIELD_NUMBER: _ClassVar[int]
    LANE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    LANE_GIFT_FIELD_NUMBER: _ClassVar[int]
    SYNCED_ASK_FIELD_NUMBER: _ClassVar[int]
    SYNCED_REPLY_FIELD_NUMBER: _ClassVar[int]
    SYNCED_SUM_FIELD_NUMBER: _ClassVar[int]
    lane_passed: LanePassed
    lane_copy: LaneCopy
    lane_fetch: LaneFetch
    lane_answer: LaneAnswer
    lane_gift: LaneGift
    synced_ask: SyncedAsk
    synced_reply: SyncedReply
    synced_sum: SyncedSum
    def __init__(self, lane_passed: _Optional[_Union[LanePassed, _Mapping]] = ..., lane_copy: _Optional[_Union[LaneCopy, _Mapping]] = ..., lane_fetch: _Optional[_Union[LaneFetch, _Mapping]] = ..., lane_answer: _Optional[_Union[LaneAnswer, _Mapping]] = ..., lane_gift: _Optional[_Union[LaneGift, _Mapping]] = ..., synced_ask: _Optional[_Union[SyncedAsk, _Mapping]] = ..., synced_reply: _Optional[_Union[SyncedReply, _Mapping]] = ..., synced_sum: _Optional[_Union[SyncedSum, _Mapping]] = ...) -> None: ...
