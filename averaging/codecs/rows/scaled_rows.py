"""Rows of small signed codes with bfloat16 scales: int8 with one scale a row, int4 with one for each group of its values.

Layout of a row: its scales, then its codes. A scale is a group's absolute maximum / the largest code, rounded up to the next
bfloat16, so that no code leaves its range.
"""

from __future__ import annotations

import numpy as np
import torch

from averaging.codecs.bfloat16 import LARGEST, from_bfloat16, next_bfloat16
from averaging.codecs.codec import SMALLEST_NORMAL, FloatArray
from averaging.codecs.integer_codes import CodeArray, divided, packed, rounded
from averaging.codecs.rows.row_codec import ByteArray, RowCodec, float32_rows, require_finite_rows
from protocol.errors import LocalProtocolError, RemoteProtocolError
from protocol.kinds.boundary_table import BOUNDARY_CODECS, WHOLE_ROW, BoundaryFacts


class ScaledRows(RowCodec):
    """Codes of 8 bits, or of 4 bits, two to a byte with the first one in the low half."""

    def __init__(self, facts: BoundaryFacts) -> None:
        super().__init__(facts)
        self._largest_code = np.float32((1 << facts.bits - 1) - 1)

    def encode(self, values_BTD: torch.Tensor) -> bytes:
        """Scales, then codes, for each row."""
        rows, largest = float32_rows(values_BTD), self._largest_code
        groups = self._groups(rows)
        exact: FloatArray = np.abs(groups).max(axis=1) / largest
        exact[exact < SMALLEST_NORMAL] = 0.0
        scales = next_bfloat16(exact)
        by = from_bfloat16(scales)
        if by.max(initial=0.0) > np.finfo(np.float32).max / largest:
            raise LocalProtocolError(
                f"a boundary with values too large for {self.name}", "smaller ones", "leave this micro-batch out"
            )
        codes = rounded(divided(groups, by)).view(np.uint8).reshape(len(rows), -1)
        written = packed(codes) if self.facts.bits == 4 else codes
        of_rows = scales.reshape(len(rows), -1).view(np.uint8)
        num_codes = self.facts.row_bytes(rows.shape[1]) - of_rows.shape[1]
        return np.hstack([of_rows, written[:, :num_codes]]).tobytes()

    def _groups(self, rows: FloatArray) -> FloatArray:
        """(rows x groups, values), with zeros after the last value of a row."""
        size = rows.shape[1] if self.facts.group == WHOLE_ROW else self.facts.group
        padding = -rows.shape[1] % size
        padded = np.pad(rows, ((0, 0), (0, padding))) if padding else rows
        return np.ascontiguousarray(padded).reshape(-1, size)

    def decode(self, payload: ByteArray, dim: int) -> torch.Tensor:
        """Code x scale, one multiplication a value."""
        facts = self.facts
        table, num_scales = payload.reshape(-1, facts.row_bytes(dim)), facts.num_scales(dim)
        halves = np.ascontiguousarray(table[:, : 2 * num_scales]).view("<u2")
        if (halves > LARGEST).any() or ((halves != 0) & (halves < 0x80)).any():
            found = f"{self.name} with a scale that is negative, not normal or not finite"
            raise RemoteProtocolError(found, "zero or normal")
        codes = self._codes(table[:, 2 * num_scales :], dim)
        if (codes < -self._largest_code).any():
            found = f"{self.name} with a code that no encoder writes"
            raise RemoteProtocolError(found, f"at least -{self._largest_code:g}")
        scales = from_bfloat16(halves)
        spread = scales if num_scales == 1 else np.repeat(scales, facts.group, axis=1)[:, :dim]
        values: FloatArray = codes.astype(np.float32)
        with np.errstate(over="ignore"):  # overflow is refused
            values *= spread
            may_overflow = not np.isfinite(scales.max(initial=0.0) * self._largest_code)
        values_n = torch.from_numpy(values)
        return require_finite_rows(values_n, self.name) if may_overflow else values_n

    def _codes(self, written: ByteArray, dim: int) -> CodeArray:
        """(rows, dim) codes."""
        if self.facts.bits == 8:
            return written.view(np.int8)
        both = np.stack([written & 15, written >> 4], axis=2).reshape(len(written), -1)
        if dim % 2 and both[:, dim].any():
            raise RemoteProtocolError(f"{self.name} with bits behind a row's last value", "zeros there")
        signed: CodeArray = (both[:, :dim] ^ 8).astype(np.int8) - np.int8(8)
        return signed


KINDS = (ScaledRows(BOUNDARY_CODECS["int8"]), ScaledRows(BOUNDARY_CODECS["int4"]))
