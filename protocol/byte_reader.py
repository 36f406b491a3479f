"""Reads fields off the front of bytes that came from elsewhere. It never reads past their end."""

from __future__ import annotations

import struct
from typing import Final

_U16: Final = struct.Struct(">H")


class CutOffError(ValueError):
    """The bytes end before a field does."""


class BytesLeftError(ValueError):
    """Bytes are left after the last field. `num_bytes` counts them."""

    def __init__(self, num_bytes: int) -> None:
        super().__init__(f"{num_bytes} bytes more than its parts")
        self.num_bytes = num_bytes


class ByteReader:
    """Takes fields in their order. Integers are big-endian. A caller turns the errors into its own."""

    def __init__(self, data: bytes) -> None:
        self._data, self._at = data, 0

    def take(self, length: int) -> bytes:
        """The next `length` bytes. Raises CutOffError if there are fewer."""
        left = len(self._data) - self._at
        if left < length:
            raise CutOffError(f"{length} bytes of which {left} are there")
        self._at += length
        return self._data[self._at - length : self._at]

    def u8(self) -> int:
        """A number of one byte. Raises CutOffError."""
        return self.take(1)[0]

    def u16(self) -> int:
        """A number of two bytes. Raises CutOffError."""
        return int(_U16.unpack(self.take(_U16.size))[0])

    def text(self, length: int) -> str:
        """UTF-8 text of `length` bytes. Raises CutOffError, and UnicodeDecodeError where it cannot be read."""
        return self.take(length).decode()

    def end(self) -> None:
        """Raises BytesLeftError unless everything was taken."""
        if left := len(self._data) - self._at:
            raise BytesLeftError(left)
