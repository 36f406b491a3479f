from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Iterable as _Iterable, Mapping as _Mapping, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

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

class LaneMessage(_message.Message):
    __slots__ = ("lane_begin", "lane_square", "lane_step", "lane_copied", "lane_keep", "lane_back", "lane_loaded", "lane_load_failed", "lane_resume", "lane_end", "lane_ping", "lane_leave", "lane_spare", "lane_claim", "lane_here")
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
    lane_claim: LaneClaim
    lane_here: LaneHere
    def __init__(self, lane_begin: _Optional[_Union[LaneBegin, _Mapping]] = ..., lane_square: _Optional[_Union[LaneSquare, _Mapping]] = ..., lane_step: _Optional[_Union[LaneStep, _Mapping]] = ..., lane_copied: _Optional[_Union[LaneCopied, _Mapping]] = ..., lane_keep: _Optional[_Union[LaneKeep, _Mapping]] = ..., lane_back: _Optional[_Union[LaneBack, _Mapping]] = ..., lane_loaded: _Optional[_Union[LaneLoaded, _Mapping]] = ..., lane_load_failed: _Optional[_Union[LaneLoadFailed, _Mapping]] = ..., lane_resume: _Optional[_Union[LaneResume, _Mapping]] = ..., lane_end: _Optional[_Union[LaneEnd, _Mapping]] = ..., lane_ping: _Optional[_Union[LanePing, _Mapping]] = ..., lane_leave: _Optional[_Union[LaneLeave, _Mapping]] = ..., lane_spare: _Optional[_Union[LaneSpare, _Mapping]] = ..., lane_claim: _Optional[_Union[LaneClaim, _Mapping]] = ..., lane_here: _Optional[_Union[LaneHere, _Mapping]] = ...) -> None: ...

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
    __slots__ = ("reason", "num_lanes")
    REASON_FIELD_NUMBER: _ClassVar[int]
    NUM_LANES_FIELD_NUMBER: _ClassVar[int]
    reason: str
    num_lanes: int
    def __init__(self, reason: _Optional[str] = ..., num_lanes: _Optional[int] = ...) -> None: ...

class LaneParcel(_message.Message):
    __slots__ = ("lane_passed", "lane_copy", "lane_fetch", "lane_answer", "lane_gift")
    LANE_PASSED_FIELD_NUMBER: _ClassVar[int]
    LANE_COPY_FIELD_NUMBER: _ClassVar[int]
    LANE_FETCH_FIELD_NUMBER: _ClassVar[int]
    LANE_ANSWER_FIELD_NUMBER: _ClassVar[int]
    LANE_GIFT_FIELD_NUMBER: _ClassVar[int]
    lane_passed: LanePassed
    lane_copy: LaneCopy
    lane_fetch: LaneFetch
    lane_answer: LaneAnswer
    lane_gift: LaneGift
    def __init__(self, lane_passed: _Optional[_Union[LanePassed, _Mapping]] = ..., lane_copy: _Optional[_Union[LaneCopy, _Mapping]] = ..., lane_fetch: _Optional[_Union[LaneFetch, _Mapping]] = ..., lane_answer: _Optional[_Union[LaneAnswer, _Mapping]] = ..., lane_gift: _Optional[_Union[LaneGift, _Mapping]] = ...) -> None: ...
