"""An adapter's export read by `peft` itself, over a base that `transformers` reads."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import torch
from transformers import AutoModelForCausalLM

from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints.adapter_export import export_adapter
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from peer.models.checkpoint_sample import read_model
from protocol.tensors.adapter_schema import AdapterConfig
from tests.coordinator.checkpoints.adapter_checkpoint import checkpoint_of_adapter
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder
from tests.peer.adapter_world import base_values

MOST_APART: Final = 1e-4
ADAPTERS: Final = (
    AdapterConfig(rank=2, alpha=3.0, targets=("q_proj", "down_proj")),
    AdapterConfig(rank=4, alpha=8.0, targets=()),
)


def try_peft(folder: Path) -> None:
    """The logits are ours, and the adapter changes them.

    Raises:
        SystemExit: they are not.
    """
    for number, numbers in enumerate(ADAPTERS):
        for is_tied in (True, False):
            _compare(folder / f"{number}-{is_tied}", decoder(is_tied=is_tied), numbers)


def _compare(folder: Path, config: LlamaConfig, numbers: AdapterConfig) -> None:
    from peft import PeftModel

    checkpoint = checkpoint_of_adapter(folder / "host", config, numbers)
    export_adapter(checkpoint, folder / "adapter")
    export_checkpoint(checkpoint_of(folder, config, anchor_N=base_values(config)), folder / "base")
    base: Any = AutoModelForCausalLM.from_pretrained(folder / "base", dtype=torch.float32)
    tokens_BT = torch.randint(config.vocab_size, (2, config.context_tokens), generator=torch.Generator().manual_seed(5))
    with torch.no_grad():
        plain_BTV = base(tokens_BT).logits.clone()
        read_BTV = PeftModel.from_pretrained(base, folder / "adapter").eval()(tokens_BT).logits
        own_BTV = read_model(checkpoint).decoder()(tokens_BT)
    apart, changed = float((read_BTV - own_BTV).abs().max()), float((plain_BTV - own_BTV).abs().max())
    if apart > MOST_APART or changed < 100 * MOST_APART:
        raise SystemExit(f"logits of peft are {apart:g} apart from ours, and the adapter changes them by {changed:g}")
