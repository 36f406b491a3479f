"""The commented run.toml that `potluck init` writes, for each kind of run, and for one that begins with a checkpoint."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from protocol.run.experts_section import Shards

DEFAULT_TOML: Final = """\
# A Potluck run. `potluck host run.toml` opens it and prints an invite for volunteers.

[run]
name = "first-light"
seed = 1
total_tokens = 20_000_000      # the run ends when this many tokens have been committed
min_members = 2                # the run starts when this many peers are ready; it goes on with fewer
# max_peers = 500              # most peers at a time; a round takes 64 of them, and those that waited longest go first
# start_from = "my-model"      # begin with the checkpoint in this folder: potluck init --from my-model
# shards = "expert"            # a trunk that everybody holds, and experts under [experts] that each peer holds one of
# shards = "pipeline"          # a model larger than any peer: stages under [pipeline] that each peer holds one of

[model]                        # a decoder-only model: 0.8M parameters with these numbers
vocab_size = 257               # bytes and an end mark
dim = 128
num_layers = 4
num_heads = 4
num_kv_heads = 2
ffn_dim = 352
context_tokens = 128
is_tied = true                 # one matrix for embedding and output

[data]
source = "python-stdlib"       # or "text", "jsonl", "parquet" with a glob; or "hf", "domains"
# glob = "corpus/**/*.txt"     # below the folder of this file: of "text" two files or more, of "jsonl" and "parquet" one or more
# domains = "python, english"  # of source = "domains": kinds of text that every install has; "c++" and "stubs", too
# format = "chat"              # rows with messages, or "completion": rows with prompt and completion; the answers count
# isolate = true               # packed documents do not see each other
# dataset = "corpus"           # of "hf": a folder that Hugging Face datasets saved to disk, or "hf://OWNER/NAME"
heldout_every = 20             # one file in this many is kept for evaluation; of jsonl, parquet and hf one row
# prose = "prose/*.txt"        # a second text to evaluate on, never trained on; python-stdlib has one of its own
# tokenizer = "bpe"            # trained on the text, model.vocab_size tokens; or the path of a tokenizer.json; else bytes

[inner]                        # on every peer
optimizer = "muon"             # for the matrices inside the model, AdamW for the rest; or "adamw" for all
learning_rate = 0.003
warmup_tokens = 400_000
decay_fraction = 0.2           # the last fifth of the run decays to zero
batch_tokens = 2048            # per local step

[outer]                        # plain mean suits short rounds; for long ones try "nesterov", 0.7, 0.9
kind = "mean"
learning_rate = 1.0            # with codec = "topk", try 2.0
momentum = 0.0

[round]
target_tokens = 122_880        # a round is due at 3 peers x 20 steps x 2048 tokens
# ramp_share = 0.02            # begin with small rounds: each takes a fiftieth of the tokens before it, up to target_tokens
# local_steps = "auto"         # or as small as the members' links allow; measured, at most target_tokens
longest_interval_s = 60.0
codec = "int8"                 # or fp32, fp16; "int4" and "e3m0" take half the bytes of int8, with 12% and 20% error a value
                               # "topk": the largest 1.56%, a fiftieth of int8's bytes up; down between a quarter and a twelfth
# mode = "streaming"           # fragments of about three layers, one after another; the whole at once with "overlap" or "blocking"
# error_feedback = 0.95        # what the codec left out goes into the next round: no byte more to send, 8 of memory a parameter

[checkpoint]
every_rounds = 5
keep = 3                       # the newest ones
keep_every = 10                # and one in this many, fewer and fewer with age, without momentum
# push = "file:///mnt/models"  # each new one also there, with its export; or s3://, gs://, hf://

# [[evaluate]]                 # what the model can do, with shards = "data"; as many of these as you like
# name = "plain-facts"
# file = "built-in:plain-facts"  # or JSON lines of your own, with question, choices and answer
# every_rounds = 10

# [page]                       # your words on the pages of the run; they may change at any start of the host
# description = "A model of our own letters, for everybody"  # plain text, at most 500 letters
# contact = "host@example.org" # or a link that begins with https
# join = "ask for an invite at https://example.org/chat"     # never the invite itself: everybody can read this

# [adapter]                    # with start_from: its weights are frozen, and a LoRA adapter over them is trained and averaged
# rank = 16                    # of the matrices beside each adapted one
# alpha = 32.0                 # the adapter's output is multiplied by alpha / rank
# targets = ["q_proj", "v_proj"]  # left out, all matrices of the layers
# base = "int8"                # the frozen matrices in half the memory; left out, in bfloat16

# [experts]                    # with shards = "expert"
# num_experts = 2              # each next to the feed-forward of every layer, for documents of its own
# ffn_dim = 352                # of each
# holdings = 1                 # how many a peer holds at most
# top_k = 2                    # that a token passes in the merged model; training and its cost stay the same
# router_features = "embeddings"  # documents are known by their tokens' embeddings; left out, by runs of bytes

# [pipeline]                   # with shards = "pipeline", is_tied = false and mode = "blocking"
# stages = 3                   # cut to be even; or layers = "1, 2, 1", the number for each
# inner_steps = 20             # of a lane in a round; target_tokens is as many of all expected lanes
"""

_EXPERT: Final = (
    ('# shards = "expert"            #', 'shards = "expert"              #'),
    ("# [experts]                    # with", "[experts]                      # with"),
    ("# num_experts = 2              #", "num_experts = 2                #"),
    ("# ffn_dim = 352                #", "ffn_dim = 352                  #"),
)
_PIPELINE: Final = (
    ('# shards = "pipeline"          #', 'shards = "pipeline"            #'),
    (
        "min_members = 2                # the run starts when this many peers are ready",
        "min_members = 3                # the run starts when this many peers are ready, at least one for each stage",
    ),
    (
        "is_tied = true                 # one matrix for embedding and output",
        "is_tied = false                # embedding and output are in different stages",
    ),
    (
        "at 3 peers x 20 steps x 2048 tokens",
        "at 3 lanes x 20 steps x 2048 tokens; of fewer lanes when all have come",
    ),
    (
        "longest_interval_s = 60.0\n",
        'longest_interval_s = 60.0\nmode = "blocking"              # a lane waits for its round\n',
    ),
    ("# [pipeline]                   # with", "[pipeline]                     # with"),
    ("# stages = 3                   #", "stages = 3                     #"),
    ("# inner_steps = 20             #", "inner_steps = 20               #"),
)
EDITS: Final[Mapping[Shards, tuple[tuple[str, str], ...]]] = MappingProxyType(
    {"data": (), "expert": _EXPERT, "pipeline": _PIPELINE}
)


def default_toml(shards: Shards = "data") -> str:
    """The file for runs in which a peer holds this part: the whole model, a trunk and experts, or a stage."""
    text = DEFAULT_TOML
    for before, after in EDITS[shards]:
        text = text.replace(before, after)
    return text


_SEQUENCES: Final = 8
_STEPS: Final = 60
"""Sequences of a local step, and local steps of all peers together in a round, of a run that begins with a checkpoint."""


def checkpoint_toml(model: Mapping[str, object], start_from: str, tokenizer: str) -> str:
    """The file for a run that begins with the weights of a checkpoint, with rates for weights that are trained already.

    Args:
        model: the keys of [model] that are not defaults, `context_tokens` among them.
        start_from: the checkpoint's folder, relative to the file.
        tokenizer: the path of its tokenizer.json, relative to the file; "bytes" for none.
    """
    section = "".join(f"{key} = {json.dumps(value)}\n" for key, value in model.items())
    step_tokens = _SEQUENCES * int(str(model["context_tokens"]))
    edits = (
        (
            r"# start_from = .*",
            _line(f"start_from = {json.dumps(start_from)}", "the run begins with the weights in this folder"),
        ),
        (r"\[model\](.|\n)*?\n\n", _line("[model]", f"as config.json of these weights says\n{section}\n")),
        (r"# tokenizer = .*", _line(f"tokenizer = {json.dumps(tokenizer)}", "of these weights")),
        (r"optimizer = .*", 'optimizer = "adamw"'),
        (
            r"learning_rate = 0.003",
            _line("learning_rate = 2e-5", "small: the weights are trained already; with [adapter] take 2e-4"),
        ),
        (r"batch_tokens = .*", _line(f"batch_tokens = {step_tokens:_}", "per local step")),
        (
            r"target_tokens = .*",
            _line(
                f"target_tokens = {_STEPS * step_tokens:_}", f"a round is due at 3 peers x {_STEPS // 3} local steps"
            ),
        ),
    )
    text = DEFAULT_TOML
    for pattern, line in edits:
        text = re.sub(pattern, line.replace("\\", r"\\"), text, count=1)
    return text


def _line(key: str, comment: str) -> str:
    return f"{key:<30} # {comment}"
