"""Rows of unchanged numbers: fp32, bf16, and fp64 for proofs."""

from __future__ import annotations

import numpy as np
import torch

from averaging.codecs.bfloat16 import from_bfloat16, to_bfloat16
from averaging.codecs.rows.row_codec import ByteArray, RowCodec, float32_rows, require_finite_rows
from protocol.kinds.boundary_table import BOUNDARY_CODECS


class Fp32Rows(RowCodec):
    """Little-endian float32."""

    def encode(self, values_BTD: torch.Tensor) -> bytes:
        """4 bytes a value."""
        return float32_rows(values_BTD).astype("<f4").tobytes()

    def decode(self, payload: ByteArray, dim: int) -> torch.Tensor:
        """The values, bit for bit."""
        return require_finite_rows(torch.from_numpy(payload.view("<f4").astype(np.float32)), self.name)


class Fp64Rows(RowCodec):
    """Little-endian float64."""

    def encode(self, values_BTD: torch.Tensor) -> bytes:
        """8 bytes a value."""
        return values_BTD.double().contiguous().numpy().astype("<f8").tobytes()

    def decode(self, payload: ByteArray, dim: int) -> torch.Tensor:
        """Float64, bit for bit."""
        return require_finite_rows(torch.from_numpy(payload.view("<f8").astype(np.float64)), self.name)


class Bf16Rows(RowCodec):
    """Little-endian bfloat16, round half to even."""

    def encode(self, values_BTD: torch.Tensor) -> bytes:
        """2 bytes a value."""
        return to_bfloat16(float32_rows(values_BTD)).tobytes()

    def decode(self, payload: ByteArray, dim: int) -> torch.Tensor:
        """Exact: every bfloat16 is a float32."""
        return require_finite_rows(torch.from_numpy(from_bfloat16(payload.view("<u2"))), self.name)


KINDS = (
    Fp32Rows(BOUNDARY_CODECS["fp32"]),
    Fp64Rows(BOUNDARY_CODECS["fp64"]),
    Bf16Rows(BOUNDARY_CODECS["bf16"]),
)
