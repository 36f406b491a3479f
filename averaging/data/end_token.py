"""The token that ends a document, as the tokenizer's own files name it.

transformers takes it from tokenizer_config.json and special_tokens_map.json, and stops a text by generation_config.json or
config.json. A tokenizer.json alone may name it in its post-processor. Nothing is believed against another file.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from averaging.data.tokenizer_folder.companion_files import (
    CONFIG_NAME,
    GENERATION_NAME,
    MAP_NAME,
    MODEL_NAME,
    CompanionFiles,
    map_counts,
)
from protocol.errors import ConfigError

_REMEDY: Final = "name the token that ends a document in data.end_token"

_USUAL_ENDS: Final = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "[EOS]", "[SEP]", "<|end|>")
"""Names of the end of a document in well-known tokenizers. One is taken only if nothing else names the token, and it is alone."""


@dataclass(frozen=True, slots=True)
class EndToken:
    """The token that ends a document. `doubt` is a sentence for the host if no file says so; else empty."""

    number: int
    doubt: str = ""


def find_end(
    values: Mapping[str, object], tokens: Mapping[str, int], companions: CompanionFiles, place: str
) -> EndToken:
    """The token that ends a document.

    Args:
        values: the contents of tokenizer.json.
        tokens: all tokens by their text, added ones too.
        companions: as `read_companions` returns them.
        place: the tokenizer's name in errors.

    Raises:
        ConfigError: the files name none, one that the tokenizer lacks, or different ones.
    """
    named = _named_by_config(tokens, companions, place)
    file, stops = _stops(companions, set(tokens.values()), place)
    if named is not None:
        if stops and named[1] not in stops:
            text = f"{place}: {named[0]} names token {named[1]} as its end, and {file} {' or '.join(map(str, stops))}"
            raise ConfigError(text, "the same token in both", _REMEDY)
        return EndToken(named[1])
    if len(stops) > 1:
        raise ConfigError(f"{place}: {file} names tokens {' and '.join(map(str, stops))}", "one that ends it", _REMEDY)
    if stops:
        return EndToken(stops[0])
    after = list(_appended(values.get("post_processor")))
    if after and after[-1] in tokens.values():
        return EndToken(after[-1])
    return _usual(values, tokens, place)


def _named_by_config(tokens: Mapping[str, int], companions: CompanionFiles, place: str) -> tuple[str, int] | None:
    """The file that names the end token and its number. The map counts only if the config lists no added tokens."""
    order = (MAP_NAME, CONFIG_NAME) if map_counts(companions.get(CONFIG_NAME, {})) else (CONFIG_NAME,)
    for file in order:
        token = companions.get(file, {}).get("eos_token")
        text = token.get("content") if isinstance(token, dict) else token
        if text is None:
            continue
        if not isinstance(text, str) or text not in tokens:
            raise ConfigError(f"{place} has no token {text!r}", f"the eos_token of its {file}", _REMEDY)
        return file, tokens[text]
    return None


def _stops(companions: CompanionFiles, known: set[int], place: str) -> tuple[str, list[int]]:
    """The file that says where a text stops, and its tokens. A generation config wins over a model's config."""
    for file in (GENERATION_NAME, MODEL_NAME):
        found = companions.get(file, {}).get("eos_token_id")
        if found is None:
            continue
        stops: list[object] = found if isinstance(found, list) else [found]
        wrong = [stop for stop in stops if type(stop) is not int or stop not in known]
        if wrong:
            raise ConfigError(f"{place} has no token {wrong[0]!r}", f"the eos_token_id of its {file}", _REMEDY)
        return file, [stop for stop in stops if isinstance(stop, int)]
    return "", []


def _appended(processor: object) -> Iterator[int]:
    """The special tokens that a post-processor appends to a text, in their order."""
    if not isinstance(processor, dict):
        return
    kind = processor.get("type")
    if kind == "Sequence":
        parts = processor.get("processors")
        for part in parts if isinstance(parts, list) else ():
            yield from _appended(part)
    elif kind in ("BertProcessing", "RobertaProcessing"):
        match processor.get("sep"):
            case [str(), int(number)]:
                yield number
    elif kind == "TemplateProcessing":
        yield from _of_template(processor)


def _of_template(processor: Mapping[str, object]) -> Iterator[int]:
    pieces, specials = processor.get("single"), processor.get("special_tokens")
    is_after = False
    for piece in pieces if isinstance(pieces, list) else ():
        match piece:
            case {"Sequence": _}:
                is_after = True
            case {"SpecialToken": {"id": str(name)}} if is_after and isinstance(specials, dict):
                match specials.get(name):
                    case {"ids": [*_, int(number)]}:
                        yield number


def _usual(values: Mapping[str, object], tokens: Mapping[str, int], place: str) -> EndToken:
    added = values.get("added_tokens")
    special = {
        token.get("content")
        for token in (added if isinstance(added, list) else ())
        if isinstance(token, dict) and token.get("special")
    }
    usual = [name for name in _USUAL_ENDS if name in tokens]
    found = [name for name in usual if name in special] or usual
    if len(found) == 1:
        doubt = f"no file of {place} says which token ends a document; {found[0]!r} does, as is usual for its name"
        return EndToken(tokens[found[0]], doubt)
    which = f"has several: {', '.join(map(repr, found))}" if found else "has no end mark of a usual name"
    known = ", ".join(sorted(map(repr, special))[:8])[:200]
    hint = f"; its special tokens: {known}" if known and not found else ""
    raise ConfigError(f"{place} {which}{hint}", "a token that ends a document", "name it in data.end_token")
