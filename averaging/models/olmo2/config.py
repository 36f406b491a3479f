"""OLMo 2's numbers (2501.00656, section 2): Llama with norms after attention and feed-forward, and of all queries and keys of a
token, without any tensor library.
"""

from __future__ import annotations

from typing import ClassVar, Final, Literal

from averaging.models.llama.config import DecoderConfig, QkNorm


class Olmo2Config(DecoderConfig):
    """Sizes of an OLMo 2: a Llama with norms of results, queries and keys."""

    qk_norm: ClassVar[QkNorm] = "projection"
    norms_results: ClassVar[bool] = True

    family: Literal["olmo2"]
    """The model family, a folder of `averaging/models`."""


CONFIG: Final = Olmo2Config
