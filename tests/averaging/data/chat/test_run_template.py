"""A run's chat template as a file, and the token by which its answers end."""

from __future__ import annotations

import pytest

from averaging.data.chat.run_template import open_template, question_tokens, run_template
from averaging.data.chat.template_process import ChatTemplate, TemplateProcess
from averaging.data.tokenizer import ByteTokenizer
from protocol.errors import ConfigError, StorageError
from tests.averaging.data.chat.chat_world import CHATML, PLAIN, chat_template, chat_tokenizer


def test_an_answer_ends_by_the_special_token_that_the_template_writes_after_it() -> None:
    words = chat_tokenizer()
    made = run_template(ChatTemplate(CHATML, "t.jinja", {"bos_token": "<s>"}), words)
    assert words.decode_marked(words.encode_marked(b"<|im_end|>", ())[0]) == "<|im_end|>"
    assert made.end == words.vocab_size - 1
    assert made.variables == {"bos_token": "<s>"}


@pytest.mark.parametrize(
    "source",
    [PLAIN, "{% for m in messages %}{{ m.content }}{% endfor %}", "{{ messages | length }}"],
    ids=["a line break", "nothing", "answers are not shown"],
)
def test_without_a_special_token_an_answer_ends_by_the_end_mark(source: str) -> None:
    words = chat_tokenizer()
    assert run_template(ChatTemplate(source, "t.jinja"), words).end == words.end


def test_bytes_have_no_special_tokens() -> None:
    assert run_template(ChatTemplate(CHATML, "t.jinja"), ByteTokenizer()).end == ByteTokenizer.end


def test_a_template_that_fails_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"t\.jinja fails: no"):
        run_template(ChatTemplate("{{ raise_exception('no') }}", "t.jinja"), chat_tokenizer())


def test_the_same_template_is_the_same_file_and_comes_back_from_it() -> None:
    template = chat_template("ä {{ messages }}")
    data = template.file_bytes()
    assert data == chat_template("ä {{ messages }}").file_bytes()
    assert open_template(data, "it") == template
    for damaged in (data[:-1], b"[]", data.replace(b'"end"', b'"fin"')):
        with pytest.raises(StorageError, match="it cannot be read as a chat template"):
            open_template(damaged, "it")


def test_a_question_is_put_as_in_training_up_to_the_place_where_the_assistant_begins() -> None:
    words = chat_tokenizer()
    with TemplateProcess(chat_template().chat("it")) as process:
        tokens = question_tokens(process, "größer?", words, "row 1")
    text = "<|im_start|>user\ngrößer?<|im_end|>\n<|im_start|>assistant\n"
    assert tokens == tuple(words.encode_marked(text.encode(), ())[0].tolist())
    assert tokens[0] == words.vocab_size - 2
