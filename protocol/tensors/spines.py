"""The units that can lead a run: its progress is that of its spine."""

from __future__ import annotations

from typing import Final

from protocol.tensors.adapter_schema import ADAPTER
from protocol.tensors.expert_schema import TRUNK
from protocol.tensors.model_config import WHOLE_MODEL
from protocol.tensors.stage_schema import stage_unit

SPINES: Final = (WHOLE_MODEL, TRUNK, stage_unit(0), ADAPTER)
"""A run has one of them: the model or its first fragment, the trunk of a run of experts, the first stage, or the adapter over a frozen
base.
"""
