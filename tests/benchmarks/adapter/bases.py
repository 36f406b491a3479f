"""The bases that are fine-tuned: one that is made here of Python's library, or a checkpoint in the Hugging Face layout."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Final

import numpy as np
import torch

from averaging.arithmetic.genesis import genesis_anchor
from averaging.data.shards import ShardCache, write_whole
from averaging.data.sources.corpus import python_stdlib_documents
from averaging.host.progress import no_progress
from averaging.models.llama.config import LlamaConfig
from coordinator.run.run_files import DATA_FOLDER, open_run
from coordinator.run.run_from_checkpoint import run_toml_from
from peer.session.build import text_plan
from peer.training.training_plan import TextPlan
from protocol.identity.identity import Identity
from protocol.tensors.model_config import model_schema
from tests.benchmarks.adapter.fine_tuning import World, trainer
from tests.benchmarks.adapter.questions import Questions, chats

HELDOUT_EVERY: Final = 10
BASE_BYTES: Final = 4 << 20
BASE_BATCH_TOKENS: Final = 1024
BASE_RATE: Final = 0.003
BEGIN_S: Final = 1.8e9
"""The time at which the folder's run is opened. It is in no figure."""

RUN_TOML: Final = """
[run]
name = "adapter"
total_tokens = 10_000_000
start_from = {folder}
[model]
{model}
[adapter]
rank = 1
[data]
source = "jsonl"
glob = "chats.jsonl"
format = "chat"
tokenizer = {tokenizer}
heldout_every = {heldout_every}
[inner]
learning_rate = 0.001
batch_tokens = {context_tokens}
[round]
target_tokens = 1_000_000
longest_interval_s = 600.0
"""


def made_base(model: LlamaConfig, num_steps: int, folder: Path) -> World:
    """Bytes of the library's code train a base from its seed; the questions are bytes, too. A base in the folder is taken as it is."""
    code = b"".join(document.path.read_bytes() for document in islice(python_stdlib_documents(), 400))[:BASE_BYTES]
    own = list(chats())
    text = _bytes_text(folder, _as_bytes(own, is_heldout=False), _as_bytes(own, is_heldout=True))
    name = f"{model_schema(model).num_elements / 1e6:.1f}M values, {num_steps} steps on code"
    values = folder / f"{name}.bf16"
    if not values.exists():
        _write_tokens(folder / "base.text", code)
        on_code = World(name, model, text.model_copy(update={"train_shards": (folder / "base.text",)}))
        learner = trainer(on_code, BASE_RATE, num_steps * BASE_BATCH_TOKENS, BASE_BATCH_TOKENS, {})
        learner.load(genesis_anchor(model_schema(model), 1), 0)
        for _ in range(num_steps):
            learner.step()
        write_whole(values, learner.theta().bfloat16().view(torch.uint16).numpy().data.cast("B"))
    return World(name, model, text.model_copy(update={"base_shards": (values,)}))


def given_base(checkpoint: Path, context_tokens: int, folder: Path) -> World:
    """A host packs the checkpoint as a frozen base, and the questions by its tokenizer and chat template. Answers alone count.

    Raises:
        ConfigError, StorageError: the checkpoint is of a model that this release does not train, or lacks a part.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "chats.jsonl").open("w", encoding="utf8") as file:
        for questions in chats():
            file.write(json.dumps({"messages": _messages(questions)}) + "\n")
    values = tomllib.loads(run_toml_from(str(checkpoint), folder / "run.toml"))["model"]
    values["context_tokens"] = context_tokens
    text = RUN_TOML.format(
        folder=json.dumps(str(checkpoint.absolute())),
        model="\n".join(f"{key} = {json.dumps(value)}" for key, value in values.items()),
        tokenizer=json.dumps(str(checkpoint.absolute() / "tokenizer.json")),
        heldout_every=HELDOUT_EVERY,
        context_tokens=context_tokens,
    )
    (folder / "run.toml").write_text(text, encoding="utf8")
    with no_progress():
        run = open_run(folder / "run.toml", folder / "state", Identity(b"h" * 32), now_unix_s=BEGIN_S)
    cache = ShardCache(run.folder / DATA_FOLDER)
    return World(checkpoint.name, run.manifest.config.model, text_plan(run.dataset, cache))


def _messages(questions: Questions) -> list[dict[str, str]]:
    pairs = ((("user", question), ("assistant", answer)) for question, answer in questions)
    return [{"role": role, "content": content} for pair in pairs for role, content in pair]


def _as_bytes(own: Iterable[Questions], *, is_heldout: bool) -> bytes:
    part = [chat for place, chat in enumerate(own) if (place % HELDOUT_EVERY == 0) == is_heldout]
    lines = [f"user: {question}\nassistant: {answer}\n\n" for chat in part for question, answer in chat]
    return "".join(lines).encode()


def _bytes_text(folder: Path, train: bytes, heldout: bytes) -> TextPlan:
    folder.mkdir(parents=True, exist_ok=True)
    for name, data in (("train", train), ("heldout", heldout)):
        _write_tokens(folder / f"{name}.text", data)
    return TextPlan(train_shards=(folder / "train.text",), heldout_shards=(folder / "heldout.text",))


def _write_tokens(path: Path, data: bytes) -> None:
    np.frombuffer(data, dtype=np.uint8).astype("<u2").tofile(path)
