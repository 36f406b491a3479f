"""Which tokens of a sequence and which part of each layer a rank of a replica has, and which models cannot be split so. Pure.

The tokens of a sequence are cut into twice as many equal chunks as there are ranks. Each rank has one from the beginning and one from
the end: causal attention then costs all of them the same.
"""

from __future__ import annotations

from peer.training.plan.layout import Mesh
from protocol.tensors.expert_schema import MixtureConfig
from protocol.tensors.model_config import ModelConfig


def context_place(mesh: Mesh, rank: int) -> int:
    """The rank's place among those that share its sequences."""
    return (rank // mesh.tensor) % mesh.context


def tensor_place(mesh: Mesh, rank: int) -> int:
    """The rank's place among those that share the products of its layers."""
    return rank % mesh.tensor


def reader_of(mesh: Mesh, rank: int) -> int:
    """The group of ranks that reads its own sequences, which this rank is in."""
    return rank // mesh.tensor // mesh.context


def token_spans(place: int, num_ranks: int, context_tokens: int) -> tuple[range, range]:
    """Positions of the tokens that one of `num_ranks` has of each sequence, in its order. Together they are all positions once."""
    chunk = context_tokens // (2 * num_ranks)
    late = 2 * num_ranks - 1 - place
    return range(place * chunk, (place + 1) * chunk), range(late * chunk, (late + 1) * chunk)


def why_no_context(model: ModelConfig, num_ranks: int, *, isolates: bool = False) -> str:
    """Why so many ranks cannot share each sequence, as "a context of 1000 tokens is not a multiple of 6"; empty if they can.

    Args:
        isolates: whether documents of a sequence do not see each other.
    """
    if num_ranks == 1:
        return ""
    if isolates:
        return "the tokens of a sequence cannot be shared with data.isolate = true"
    if not model.shares_contexts:
        return f"the tokens of a sequence cannot be shared in this model of family {model.family}"
    if model.context_tokens % (2 * num_ranks):
        return f"a context of {model.context_tokens} tokens is not a multiple of {2 * num_ranks}"
    return ""


def why_no_tensor(model: ModelConfig, num_ranks: int, mixture: MixtureConfig | None = None) -> str:
    """Why so many ranks cannot share each layer, as "2 key-value heads are not a multiple of 4"; empty if they can."""
    if num_ranks == 1:
        return ""
    counts = dict(model.split_counts)
    if not counts:
        return f"layers of a model of family {model.family} cannot be shared"
    if mixture is not None:
        counts["inner values of an expert"] = mixture.ffn_dim
    for what, count in counts.items():
        if count % num_ranks:
            return f"{count} {what} are not a multiple of {num_ranks}"
    return ""
