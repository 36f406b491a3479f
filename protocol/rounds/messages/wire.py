"""Messages to bytes and back: the dataclasses of protocol/rounds over the protobuf messages of protocol/proto.

Both sides have the same names and fields, so one converter, compiled once per class, serves them all. Decoding goes through the
dataclass constructors, which check every bound: any value that `decode_*` returns is safe to use, anything else raises
RemoteProtocolError. Signed messages are judged as received: their bytes are made once, carried, and never made again.

Rules: R1 (protocol/rounds/RULES.md).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
import re
import types
import typing
from array import array
from collections.abc import Callable, Hashable, Iterable
from hashlib import sha256
from typing import Final, TypeVar, cast

from google.protobuf.message import Message

from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.ids import CommitId, PeerId, Root, UnitName
from protocol.pb import round_pb2
from protocol.received import MAX_TEXT, parse
from protocol.rounds.messages.bounds import require_hash
from protocol.rounds.messages.messages import Certificate, RoundMessage
from protocol.rounds.messages.record import Attestation, CommitRecord, LightRecord, RecordGlance, is_agreed
from protocol.rounds.messages.requests import FetchRequest

D = TypeVar("D")
MAX_MESSAGE_BYTES: Final = 1 << 20

_PEER_ID: Final = re.compile("[0-9A-Za-z]{1,64}")
_COMMIT_DOMAIN: Final = b"potluck commit 1"
_START_DOMAIN: Final = b"potluck start 1"


@dataclasses.dataclass(frozen=True, slots=True)
class _Field:
    name: str
    kind: str  # "scalar", "many scalars", "message", "optional message", "many messages"
    inner: type
    is_text: bool = False


def _describe(cls: type, field: dataclasses.Field[object]) -> _Field:
    hint = typing.get_type_hints(cls)[field.name]
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is tuple:
        inner = args[0]
        kind = "many messages" if dataclasses.is_dataclass(inner) else "many scalars"
        return _Field(field.name, kind, inner, _is_text(inner))
    if origin in (types.UnionType, typing.Union):
        inner = next(a for a in args if a is not type(None))
        return _Field(field.name, "optional message", inner)
    return _Field(field.name, "message" if dataclasses.is_dataclass(hint) else "scalar", hint, _is_text(hint))


def _is_text(hint: object) -> bool:
    """Whether a type is plain text, or one of the names of protocol/ids.py."""
    return hint is str or getattr(hint, "__supertype__", None) is str


@functools.cache
def _fields(cls: Hashable) -> tuple[_Field, ...]:
    kind = cast("type", cls)
    return tuple(_describe(kind, f) for f in dataclasses.fields(kind))


@functools.cache
def _scalars_and_others(cls: Hashable) -> tuple[tuple[str, ...], tuple[_Field, ...]]:
    fields = _fields(cls)
    scalars = tuple(field.name for field in fields if field.kind == "scalar")
    return scalars, tuple(field for field in fields if field.kind != "scalar")


def _fill(value: object, target: Message) -> None:
    scalars, others = _scalars_and_others(cast("Hashable", type(value)))
    for name in scalars:
        setattr(target, name, getattr(value, name))
    for field in others:
        part = getattr(value, field.name)
        if field.kind == "many scalars":
            getattr(target, field.name).extend(part)
        elif field.kind == "many messages":
            repeated = getattr(target, field.name)
            for item in part:
                _fill(item, repeated.add())
        elif part is not None:
            inner = getattr(target, field.name)
            inner.SetInParent()
            _fill(part, inner)


def _check_text(cls: type, field: _Field, value: str) -> None:
    """Bound text from strangers, which ends up in logs, file names and addresses to dial."""
    if len(value) > MAX_TEXT or not value.isprintable():
        raise RemoteProtocolError(
            f"{cls.__name__}.{field.name} of {len(value)} letters", f"at most {MAX_TEXT}, all of them printable"
        )
    if field.inner is PeerId and not _PEER_ID.fullmatch(value):
        raise RemoteProtocolError(f"{cls.__name__}.{field.name} is {value[:80]!r}", "a peer id: letters and digits")


@functools.cache
def _taker(cls: Hashable) -> Callable[[Message], object]:
    """A function that makes a `cls` of its message: one reader per field, in the order of the constructor."""
    make = cast("Callable[..., object]", cls)
    readers = tuple(_reader(cast("type", cls), field) for field in _fields(cls))
    return lambda source: make(*[read(source) for read in readers])


def _reader(cls: type, field: _Field) -> Callable[[Message], object]:
    get = operator.attrgetter(field.name)
    if field.kind == "scalar":
        return _text_reader(cls, field) if field.is_text else get
    if field.kind == "many scalars":
        return _texts_reader(cls, field) if field.is_text else lambda source: tuple(get(source))
    take = _taker(cast("Hashable", field.inner))
    if field.kind == "many messages":
        return lambda source: tuple(map(take, get(source)))
    return _inner_reader(cls, field, take)


def _text_reader(cls: type, field: _Field) -> Callable[[Message], object]:
    def read(source: Message) -> object:
        value = getattr(source, field.name)
        _check_text(cls, field, value)
        return value

    return read


def _texts_reader(cls: type, field: _Field) -> Callable[[Message], object]:
    def read(source: Message) -> object:
        values = tuple(getattr(source, field.name))
        for value in values:
            _check_text(cls, field, value)
        return values

    return read


def _inner_reader(cls: type, field: _Field, take: Callable[[Message], object]) -> Callable[[Message], object]:
    def read(source: Message) -> object:
        if source.HasField(field.name):
            return take(getattr(source, field.name))
        if field.kind == "message":
            raise RemoteProtocolError(f"{cls.__name__} without {field.name}", "the field")
        return None

    return read


def _take(cls: type[D], source: Message) -> D:
    return cast("D", _taker(cast("Hashable", cls))(source))


def _proto_class(cls: type) -> type[Message]:
    return cast("type[Message]", getattr(round_pb2, cls.__name__))


def encode_body(value: object) -> bytes:
    """The bytes of one dataclass of protocol.rounds.messages."""
    message = _proto_class(type(value))()
    _fill(value, message)
    return message.SerializeToString(deterministic=True)


def decode_body(cls: type[D], data: bytes, max_bytes: int = MAX_MESSAGE_BYTES) -> D:
    """A `cls` from bytes made by `encode_body`.

    Raises:
        RemoteProtocolError: not such a message, too long, or a value out of its bounds.
    """
    return _take(cls, parse(_proto_class(cls), data, max_bytes))


@functools.cache
def _oneof_name(cls: Hashable) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", cast("type", cls).__name__).lower()


def oneof_classes(classes: Iterable[type]) -> dict[str, type]:
    """The kinds of a message that is one of several, by the names of its fields."""
    return {_oneof_name(cls): cls for cls in classes}


_ROUND_CLASSES: Final = oneof_classes(typing.get_args(RoundMessage))
_FETCH_CLASSES: Final = oneof_classes(typing.get_args(FetchRequest))


def encode_oneof(outer: Message, value: object) -> bytes:
    """The bytes of one dataclass as the one field that is set in a message of several kinds."""
    body = getattr(outer, _oneof_name(cast("Hashable", type(value))))
    body.SetInParent()
    _fill(value, body)
    return outer.SerializeToString(deterministic=True)


def decode_oneof(
    proto: type[Message], classes: dict[str, type], data: bytes, max_bytes: int = MAX_MESSAGE_BYTES
) -> object:
    """Read bytes of `encode_oneof`.

    Args:
        classes: as `oneof_classes` gave them for the kinds that may come.

    Raises:
        RemoteProtocolError: as `decode_body`, or a kind of message that this version does not know.
    """
    outer = parse(proto, data, max_bytes)
    name = outer.WhichOneof("body")
    if name is None:
        raise RemoteProtocolError(f"a {proto.__name__} of unknown kind", f"one of {', '.join(classes)}")
    return _take(classes[name], getattr(outer, name))


def encode_message(message: RoundMessage) -> bytes:
    """The payload of an envelope on the "round" channel."""
    return encode_oneof(round_pb2.RoundMessage(), message)


def decode_message(data: bytes) -> RoundMessage:
    """The message in the payload of an envelope on the "round" channel.

    Raises:
        RemoteProtocolError: as `decode_body`, or a kind of message that this version does not know.
    """
    return cast("RoundMessage", decode_oneof(round_pb2.RoundMessage, _ROUND_CLASSES, data))


def encode_fetch(request: FetchRequest) -> bytes:
    """The first frame of a stream on the "fetch" channel."""
    return encode_oneof(round_pb2.FetchRequest(), request)


def decode_fetch(data: bytes) -> FetchRequest:
    """The request in the first frame of a stream on the "fetch" channel. Raises as `decode_message`."""
    return cast("FetchRequest", decode_oneof(round_pb2.FetchRequest, _FETCH_CLASSES, data))


def encode_record(record: CommitRecord) -> bytes:
    """Make a record's bytes, once; from here on they are carried as received."""
    return encode_body(record)


@functools.lru_cache(maxsize=16)
def decode_record(data: bytes) -> CommitRecord:
    """Read a record; its bytes stay the truth. Recent ones are cached: a round reads the same bytes at each of its steps.

    Raises:
        RemoteProtocolError: as `decode_body`, or a signed record (`rules`) with bytes that `encode_record` does not write.
    """
    record = decode_body(CommitRecord, data)
    if record.rules and encode_record(record) != data:
        raise RemoteProtocolError(f"a record of {len(data)} bytes with others among them", "its own bytes only")
    return record


def glance_at_record(data: bytes) -> RecordGlance:
    """The link that a record makes, without its contributors, of a record that was read whole and verified at an earlier time. It
    takes a fraction of the time of `decode_record`, and of its memory.

    Raises:
        RemoteProtocolError: not a record.
    """
    body = parse(round_pb2.CommitRecord, data, MAX_MESSAGE_BYTES)
    require_hash("parent", body.parent)
    attested = (body.attested.commit, body.attested.state_root)
    pairs = [(pair.commit, pair.state_root) for pair in body.attestations]
    is_named = body.HasField("attested") and is_agreed(
        attested, pairs, [entry.attests for entry in body.contributors], body.rules
    )
    light = LightRecord(
        data,
        CommitId(body.parent),
        body.weight_cap_tokens,
        body.lone,
        CommitId(body.spine),
        array("Q", [entry.credited_tokens for entry in body.contributors]),
        Attestation(CommitId(attested[0]), Root(attested[1])) if is_named else None,
        0 if body.slices else body.ballot.attempt,
    )
    return RecordGlance(
        UnitName(body.unit),
        body.index,
        body.total_tokens,
        body.next_target_tokens,
        tuple(map(PeerId, body.roster)),
        tuple(body.incarnations),
        body.rules,
        light,
    )


def commit_id(parent: CommitId, record: bytes) -> CommitId:
    """hash(parent id, record bytes): R1."""
    if len(parent) != 32:
        raise LocalProtocolError(f"parent id of {len(parent)} bytes", "32 bytes")
    return CommitId(sha256(_COMMIT_DOMAIN + parent + record).digest())


def genesis_id(start_record: bytes) -> CommitId:
    """The commit id of the state before the first commit: hash of the host-signed start record's payload."""
    return CommitId(sha256(_START_DOMAIN + start_record).digest())


def encode_certificate(certificate: Certificate) -> bytes:
    """A certificate's bytes for the log and the wire."""
    return encode_body(certificate)


def decode_certificate(data: bytes) -> Certificate:
    """A certificate as stored or received; `chain.verify_certificate` judges it.

    Raises:
        RemoteProtocolError: as `decode_body`, or bytes that `encode_certificate` does not write: they are stored and handed on, and
            unsigned bytes must not travel with them.
    """
    certificate = decode_body(Certificate, data)
    if encode_certificate(certificate) != data:
        raise RemoteProtocolError(f"a certificate of {len(data)} bytes with others among them", "its own bytes only")
    return certificate
