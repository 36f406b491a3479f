"""Documents on their way into the packed data: pieces of bounded length, each with its part of the data."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from hashlib import sha256
from itertools import chain
from pathlib import Path
from typing import BinaryIO, Final, Literal

from averaging.data.sources.corpus import Document
from protocol.errors import ConfigError, MachineError

Split = Literal["train", "heldout", "prose"]

PIECE_BYTES: Final = 1 << 20
"""Approximate length of a piece. A long file takes no more memory than a short one."""

MAX_DOCUMENT_BYTES: Final = 64 << 20
"""A row or line is held in memory whole. A longer one is most likely not a document but a file of another kind."""

_LONGEST_CHARACTER_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class Text:
    """A piece of a document. `is_last` marks the document's last piece; `place` is its name in errors, if it has one.

    `counted` are the parts that count in the loss, as bytes, disjoint and in order; None if all of it does. A document of which only
    some counts is always whole, and special tokens that stand in it are meant as such. `source` is the number of its source.
    """

    data: bytes
    split: Split
    is_last: bool = True
    place: str = field(default="", compare=False)
    counted: tuple[tuple[int, int], ...] | None = None
    source: int = 0

    @property
    def counted_data(self) -> bytes:
        """The parts that count, one after another."""
        if self.counted is None:
            return self.data
        return b"".join(self.data[begin:end] for begin, end in self.counted)

    @property
    def ends_counted(self) -> bool:
        """Whether its end mark counts, which follows a last piece."""
        return self.counted is None or (bool(self.counted) and self.counted[-1][1] == len(self.data))


def split_by_content(data: bytes, heldout_every: int) -> Split:
    """The split by the hash of the text, one document in `heldout_every` held out. It does not depend on the order, and copies of
    a text are in the same part.
    """
    return "heldout" if int.from_bytes(sha256(data).digest()[:8], "big") % heldout_every == 0 else "train"


def one_document(text: str, place: str, heldout_every: int) -> Text:
    """A row or line as a document. `place` is its name in errors.

    Raises:
        ConfigError: half of a surrogate pair, or too long.
    """
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{place}: the text holds {ascii(text[error.start])[1:-1]}, which is no character",
            "text that can be written as UTF-8",
            "mend or remove it",
        ) from error
    if len(data) > MAX_DOCUMENT_BYTES:
        raise too_long(place)
    return Text(data, split_by_content(data, heldout_every), place=place)


def too_long(place: str) -> ConfigError:
    """The error for a line or row that is too long to be a document."""
    limit = f"at most {MAX_DOCUMENT_BYTES >> 20} MiB of text in one document"
    return ConfigError(f"{place} is too long", limit, "split it into several")


def no_text(place: str, column: str) -> ConfigError:
    """The error for a row of a table whose text is missing."""
    return ConfigError(f"{place}: column {column!r} is empty", "text", "drop such rows, or set data.field")


def not_installed(package: str, purpose: str) -> MachineError:
    """The error for a package that only some hosts need."""
    return MachineError(f"{package} is not installed", f"it, for {purpose}", 'pip install "potluck-train[hf]"')


def read_files(documents: Sequence[Document], *, is_utf8: bool) -> Iterator[Text]:
    """The text of whole files in order, one document each.

    Args:
        documents: the files.
        is_utf8: whether they must be UTF-8. The byte tokenizer takes any bytes; others take characters.

    Raises:
        MachineError: a file cannot be read.
        ConfigError: bytes that must be UTF-8 and are not.
    """
    for document in documents:
        yield from _read_file(document.path, "heldout" if document.is_heldout else "train", is_utf8)


def read_prose(paths: Sequence[Path], *, is_utf8: bool) -> Iterator[Text]:
    """The text of files for evaluation only. Raises as `read_files`."""
    for path in paths:
        yield from _read_file(path, "prose", is_utf8)


def _read_file(path: Path, split: Split, is_utf8: bool) -> Iterator[Text]:
    line = 1
    try:
        with path.open("rb") as file:
            for data in cut_pieces(_without_mark(file)):
                if is_utf8:
                    _require_utf8(data, path, line)
                    line += data.count(b"\n")
                yield Text(data, split, is_last=False, place=str(path))
    except OSError as error:
        raise MachineError(f"{path} cannot be read: {error.strerror}", "a readable file") from error
    yield Text(b"", split, place=str(path))


def _without_mark(file: BinaryIO) -> Iterator[bytes]:
    """Blocks of a file, without the byte order mark with which some editors begin a file."""
    begin = file.read(PIECE_BYTES).removeprefix(BOM_UTF8)
    return chain([begin] if begin else [], iter(lambda: file.read(PIECE_BYTES), b""))


def cut_pieces(blocks: Iterable[bytes]) -> Iterator[bytes]:
    """The same bytes, cut after a line's end or, in a line longer than a block, between two characters."""
    rest = b""
    for block in blocks:
        data = rest + block
        cut = data.rfind(b"\n") + 1 or _character_end(data)
        yield data[:cut]
        rest = data[cut:]
    if rest:
        yield rest


def _character_end(data: bytes) -> int:
    """Start of the last character; the end if no start is near it."""
    for back in range(1, min(_LONGEST_CHARACTER_BYTES, len(data) - 1) + 1):
        if data[-back] & 0xC0 == 0xC0:
            return len(data) - back
    return len(data)


def whole_documents(texts: Iterable[Text], cut: Callable[[bytes], int]) -> Iterator[Text]:
    """The same texts in pieces that can be encoded one by one: whole documents, or cut where it makes no difference to a tokenizer.

    Args:
        texts: documents, piece by piece.
        cut: returns the last place at which a text may be cut; 0 if there is none.

    Raises:
        ConfigError: a document is too long to be encoded whole; or an error of the texts.
    """
    held = b""
    for text in texts:
        held += text.data
        if text.is_last:
            yield replace(text, data=held)
            held = b""
        elif len(held) >= PIECE_BYTES and (place := cut(held)):
            yield replace(text, data=held[:place])
            held = held[place:]
        elif len(held) > MAX_DOCUMENT_BYTES:
            raise too_long(f"{text.place or 'a document'}, which its tokenizer encodes whole,")


def _require_utf8(data: bytes, path: Path, first_line: int) -> None:
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = first_line + data.count(b"\n", 0, error.start)
        raise ConfigError(
            f"{path} line {line} is no UTF-8", "UTF-8 text", 'save it as UTF-8, or set data.tokenizer = "bytes"'
        ) from error
