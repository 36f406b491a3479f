"""A run's tokenizer in the files that Hugging Face's programs load with a model: tokenizer.json and its companions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from averaging.data.chat.run_template import RunTemplate
from averaging.data.tokenizer import END, VOCAB_SIZE
from protocol.tensors.model_config import ModelConfig

_END_TEXT: Final = "<|end|>"
"""Text of the byte vocabulary's end mark."""


@dataclass(frozen=True, slots=True)
class ExportedTokenizer:
    """A tokenizer.json, and the token between documents: its number and its text. It both begins and ends a document. `template` is
    that of the run's chats.
    """

    data: bytes
    end: int
    end_text: str
    template: RunTemplate | None = None


def byte_tokenizer(config: ModelConfig) -> ExportedTokenizer | None:
    """The byte vocabulary; None if the model's vocabulary is too small for every byte and the end mark."""
    if config.vocab_size < VOCAB_SIZE:
        return None
    return ExportedTokenizer(byte_vocabulary(), END, _END_TEXT)


def byte_vocabulary() -> bytes:
    """The tokenizer.json of the byte vocabulary."""
    return (json.dumps(_byte_vocabulary(), indent=2) + "\n").encode()


def file_tokenizer(data: bytes, end: int) -> ExportedTokenizer | None:
    """The tokenizer of a tokenizer.json; None if that has no token with the number `end`."""
    end_text = next((text for text, number in token_numbers(data) if number == end), None)
    return None if end_text is None else ExportedTokenizer(_as_trained(data), end, end_text)


def _as_trained(data: bytes) -> bytes:
    """The tokenizer.json with which other programs give a text the tokens that it had in training: all of them, and no special
    token around them.
    """
    values = json.loads(data)
    changed = {key: None for key in ("truncation", "padding") if values.get(key) is not None}
    if _adds_tokens(values.get("post_processor")):
        changed["post_processor"] = None
    return (json.dumps(values | changed, indent=2, ensure_ascii=False) + "\n").encode() if changed else data


def _adds_tokens(processor: object) -> bool:
    match processor:
        case {"type": "Sequence", "processors": list(parts)}:
            return any(map(_adds_tokens, parts))
        case {"type": "ByteLevel"} | None:
            return False
    return True


def token_numbers(data: bytes) -> Iterator[tuple[str, int]]:
    """The named tokens of a tokenizer.json and their numbers, added tokens first."""
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return
    model = values.get("model") if isinstance(values, dict) else None
    added = values.get("added_tokens") if isinstance(values, dict) else None
    vocabulary = model.get("vocab") if isinstance(model, dict) else None
    for token in added if isinstance(added, list) else ():
        if isinstance(token, dict) and isinstance(token.get("content"), str) and isinstance(token.get("id"), int):
            yield token["content"], token["id"]
    if isinstance(vocabulary, dict):
        yield from ((text, number) for text, number in vocabulary.items() if isinstance(number, int))
    elif isinstance(vocabulary, list):  # pieces with scores: the number is the position in the list
        for number, piece in enumerate(vocabulary):
            if isinstance(piece, list) and piece and isinstance(piece[0], str):
                yield piece[0], number


def generation_config(config: ModelConfig, tokenizer: ExportedTokenizer) -> dict[str, object]:
    """Content of generation_config.json: a text ends at the end mark, and an answer at its own. The longest text is what the model
    reads.
    """
    ends = {tokenizer.end}
    if tokenizer.template is not None:
        named = tokenizer.template.variables.get("eos_token")  # as tokenizer_config.json has it
        ends |= {tokenizer.template.end, *(number for text, number in token_numbers(tokenizer.data) if text == named)}
    eos = tokenizer.end if len(ends) == 1 else sorted(ends)
    return {"bos_token_id": tokenizer.end, "eos_token_id": eos, "max_length": config.position_tokens}


def _byte_vocabulary() -> dict[str, object]:
    """Content of tokenizer.json for the byte vocabulary: byte-level pieces without merges, each byte its own number."""
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    end = {
        "id": END,
        "content": _END_TEXT,
        "single_word": False,
        "lstrip": False,
        "rstrip": False,
        "normalized": False,
        "special": True,
    }
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [end],
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {letter: byte for byte, letter in enumerate(_byte_letters())},
            "merges": [],
        },
    }


def tokenizer_config(config: ModelConfig, tokenizer: ExportedTokenizer) -> dict[str, object]:
    """Content of tokenizer_config.json. With a chat template it names the special tokens that the template was rendered with."""
    values: dict[str, object] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokenizer.end_text,
        "eos_token": tokenizer.end_text,
        "model_max_length": config.position_tokens,
        "clean_up_tokenization_spaces": False,
    }
    if tokenizer.template is None:
        return values
    known = {text for text, _ in token_numbers(tokenizer.data)}
    named = {name: text for name, text in tokenizer.template.variables.items() if text in known}
    return values | named | {"chat_template": tokenizer.template.source}


def _byte_letters() -> list[str]:
    """A printable letter for each byte, as byte-level vocabularies since GPT-2 write them: the byte's own letter if it has one,
    else the next one from U+0100 on.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    rest = iter(range(0x100, 0x200))
    return [chr(byte if byte in printable else next(rest)) for byte in range(256)]
