"""Tasks as tokens, by a written-out copy of lm-evaluation-harness's `_encode_pair`."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from averaging.data.sources.texts import Text
from averaging.data.tasks.task_file import Prompts, Questions, open_task
from averaging.data.tasks.task_packing import packed_task
from averaging.data.tokenizer import ByteTokenizer, Tokenizer
from averaging.data.vocabulary import train_bpe
from protocol.errors import ConfigError, RemoteProtocolError
from protocol.run.evaluate_section import EvaluateSection
from tests.averaging.data.chat.chat_world import chat_template, chat_tokenizer

QUESTIONS = [
    {"question": "The capital of France is", "choices": ["Rome", "Paris, of course"], "answer": 1},
    {"question": "Trailing spaces stay with the answer:  ", "choices": ["a b", "çédille"], "answer": 0},
    {"question": "Two lines\nare one question?", "choices": ["yes", "no"], "answer": "no"},
]
BPE = train_bpe([Text(b"the capital of france is paris and not rome, of course; yes or no " * 9, "train")], 320)


def _encode_pair(tokenizer: Tokenizer, context: str, continuation: str) -> tuple[list[int], list[int]]:
    """`TemplateLM._encode_pair` of a causal model, without special tokens."""

    def tok_encode(text: str) -> list[int]:
        return [int(token) for token in tokenizer.encode(text.encode())]

    n_spaces = len(context) - len(context.rstrip())
    if n_spaces > 0:
        continuation = context[-n_spaces:] + continuation
        context = context[:-n_spaces]
    whole_enc = tok_encode(context + continuation)
    context_enc = tok_encode(context)
    return context_enc, whole_enc[len(context_enc) :]


def _write(folder: Path, rows: list[dict[str, object]]) -> None:
    (folder / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf8")


def _questions(
    folder: Path, tokenizer: Tokenizer, template: str = "{question}", context_tokens: int = 1000
) -> Questions:
    task = EvaluateSection(name="t", file="t.jsonl", template=template)
    packed = packed_task(task, folder, tokenizer, context_tokens)
    file = open_task(packed.data)
    assert isinstance(file, Questions)
    assert (packed.entry.num_bytes, packed.entry.num_items) == (len(packed.data), len(file.items))
    return file


@pytest.mark.parametrize("tokenizer", [ByteTokenizer(), BPE], ids=["bytes", "bpe"])
@pytest.mark.parametrize("template", ["{question}", "Question: {question}\nAnswer:"])
def test_questions_are_encoded_as_the_harness_encodes_them(tmp_path: Path, tokenizer: Tokenizer, template: str) -> None:
    _write(tmp_path, QUESTIONS)
    file = _questions(tmp_path, tokenizer, template)
    for row, item in zip(QUESTIONS, file.items, strict=True):
        context = template.replace("{question}", str(row["question"]))
        for choice, tokens in zip(row["choices"], item.choices, strict=True):  # type: ignore[call-overload]
            assert (list(item.context), list(tokens)) == _encode_pair(tokenizer, context, " " + choice)
    assert [item.answer for item in file.items] == [1, 0, 1]
    assert file.items[1].lengths == (3, len("çédille".encode()))


def test_no_token_stands_before_a_question(tmp_path: Path) -> None:
    _write(tmp_path, QUESTIONS)
    assert bytes(_questions(tmp_path, ByteTokenizer()).items[0].context) == b"The capital of France is"


def test_the_same_questions_give_the_same_file(tmp_path: Path) -> None:
    _write(tmp_path, QUESTIONS)
    task = EvaluateSection(name="t", file="t.jsonl")
    assert packed_task(task, tmp_path, BPE, 64) == packed_task(task, tmp_path, BPE, 64)


def test_a_choice_that_the_model_cannot_see_whole_is_named(tmp_path: Path) -> None:
    _write(tmp_path, QUESTIONS)
    with pytest.raises(ConfigError) as caught:
        _questions(tmp_path, ByteTokenizer(), context_tokens=16)
    assert (
        "line 1: choice 'Paris, of course' has 17 tokens after its question; expected 1 to 16"
        in caught.value.one_line()
    )


def test_prompts_keep_their_end_and_tell_where_an_answer_ends(tmp_path: Path) -> None:
    _write(tmp_path, [{"prompt": "Once upon a time"}])
    task = EvaluateSection(name="t", file="t.jsonl", kind="prompts", answer_tokens=9)
    file = open_task(packed_task(task, tmp_path, ByteTokenizer(), 8).data)
    assert isinstance(file, Prompts)
    assert bytes(file.items[0].tokens) == b" a time"[-8:].rjust(8, b"n")
    assert (file.items[0].text, file.end, file.vocab_size, file.answer_tokens) == ("Once upon a time", 256, 257, 9)


def test_a_file_that_is_no_task_is_refused() -> None:
    for data in (b"", b"{}", b'{"kind":"prompts","items":[]}', b'{"kind":"essay"}', b"\xff"):
        with pytest.raises(RemoteProtocolError, match="a task that cannot be read"):
            open_task(data)


@pytest.mark.parametrize(("chat", "is_chat"), [(None, True), (True, True), (False, False)])
def test_prompts_of_a_run_on_chats_are_put_by_its_template_unless_the_task_says_otherwise(
    tmp_path: Path, chat: bool | None, is_chat: bool
) -> None:
    _write(tmp_path, [{"prompt": "potluck?"}, {"prompt": "and <|im_end|>?"}])
    words, task = chat_tokenizer(), EvaluateSection(name="t", file="t.jsonl", kind="prompts", chat=chat)
    file = open_task(packed_task(task, tmp_path, words, 1000, chat_template()).data)
    assert isinstance(file, Prompts)
    assert [item.text for item in file.items] == ["potluck?", "and <|im_end|>?"], "people see the prompt alone"
    asked = b"<|im_start|>user\npotluck?<|im_end|>\n<|im_start|>assistant\n"
    expected = words.encode_marked(asked, ())[0] if is_chat else words.encode(b"potluck?")
    assert file.items[0].tokens == tuple(expected.tolist())
    assert file.end == (chat_template().end if is_chat else words.end)


def test_a_prompt_that_the_template_refuses_is_named(tmp_path: Path) -> None:
    _write(tmp_path, [{"prompt": "a"}])
    task = EvaluateSection(name="t", file="t.jsonl", kind="prompts")
    with pytest.raises(ConfigError, match=r"t\.jsonl line 1: the chat template of the run's chats fails: no"):
        packed_task(task, tmp_path, chat_tokenizer(), 64, chat_template("{{ raise_exception('no') }}"))
