"""Chat templates in their own process: what they render, and that they can neither reach out nor go on for ever."""

from __future__ import annotations

from collections.abc import Iterator

import psutil
import pytest

from averaging.data.chat.chat_rows import MarkedText, Message
from averaging.data.chat.sandbox import MOST_CPU_S, MOST_FILES, MOST_MEMORY_BYTES
from averaging.data.chat.template_process import KEPT_VARIABLES, ChatTemplate, TemplateProcess
from protocol.errors import ConfigError

TALK = (Message("user", "hé"), Message("assistant", "yo"))

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content | trim }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TAGGED = (
    "{{ bos_token }}{% for m in messages %}{% if m.role == 'assistant' %}"
    "{% generation %}{{ m.content }}</s>{% endgeneration %}{% else %}[{{ m.content }}]{% endif %}{% endfor %}"
)


def _rendered(source: str, within_s: float = 60.0) -> MarkedText:
    with TemplateProcess(ChatTemplate(source, "t.jinja", {"bos_token": "<s>"}), within_s=within_s) as process:
        return process.marked(TALK, "row 1")


def test_without_a_tag_answers_are_found_by_their_beginnings() -> None:
    found = _rendered(CHATML)
    assert found.text == "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\nyo<|im_end|>\n"
    assert [found.text[begin:end] for begin, end in found.counted] == ["yo<|im_end|>\n"]


def test_a_tag_marks_what_counts_and_special_tokens_are_known() -> None:
    assert _rendered(TAGGED) == MarkedText("<s>[hé]yo</s>", ((7, 13),)), "letters, not bytes"


THINKING = """{%- set ns = namespace(last=-1) %}
{%- for m in messages[::-1] %}
    {%- if ns.last < 0 and m.role == 'user' %}{% set ns.last = messages | length - 1 - loop.index0 %}{% endif %}
{%- endfor %}
{%- for m in messages %}
    {%- set said = m.content.split('</think>')[-1].lstrip('\\n') %}
    {{- '<|im_start|>' + m.role + '\\n' }}
    {%- if m.role == 'assistant' and loop.index0 > ns.last %}
        {%- set thought = m.content.split('</think>')[0] if '</think>' in m.content else '' %}
        {{- '<think>\\n' + thought.split('<think>')[-1].strip('\\n') + '\\n</think>\\n\\n' }}
    {%- endif %}
    {{- said + '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}{% endif %}"""
"""Drops the thoughts of earlier turns, as templates of models do that think."""


def test_a_template_that_drops_earlier_thoughts_is_taken_for_chats_of_several_turns() -> None:
    talk = [Message("user", "a"), Message("assistant", "<think>\nhm\n</think>\n\nb"), *TALK]
    with TemplateProcess(ChatTemplate(THINKING, "t.jinja")) as process:
        found = process.marked(talk, "row 1")
    turns = ("user\na", "assistant\nb", "user\nhé", "assistant\n<think>\n\n</think>\n\nyo")
    assert found.text == "".join(f"<|im_start|>{turn}<|im_end|>\n" for turn in turns)
    answers = [found.text[begin:end] for begin, end in found.counted]
    assert answers == ["b<|im_end|>\n", "<think>\n\n</think>\n\nyo<|im_end|>\n"]


@pytest.mark.parametrize(
    ("source", "problem"),
    [
        ("{% if", "unexpected"),
        ("{{ ''.__class__.__mro__ }}", "unsafe"),
        ("{{ cycler.__init__.__globals__ }}", "unsafe"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{% include '/etc/passwd' %}", "no loader"),
        ("{{ lipsum() }}", "undefined"),
        ("{{ raise_exception('only one\nsystem message') }}", "row 1: .* fails: only one;"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "recursion"),
        ("{{ 'x' * 4000000000 }}", "MemoryError"),
        ("{% for i in range(99999) %}{{ 'x' * 10000 }}{% endfor %}", "more than 16,777,216 letters"),
        ("{{ messages | length }}", "otherwise in the whole conversation"),
    ],
)
def test_a_template_that_fails_or_reaches_out_is_refused_in_a_line(source: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        _rendered(source)
    assert "\n" not in str(caught.value)
    assert "t.jinja" in str(caught.value)


def test_a_template_that_loops_is_ended_with_its_process() -> None:
    loop = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    with pytest.raises(ConfigError, match=r"row 1: .*takes more than 1 s"):
        _rendered(loop, within_s=1.0)
    assert list(_templates_running()) == []


def test_several_are_rendered_in_order_however_much_goes_both_ways() -> None:
    talks = [((Message("user", f"{number} " * 40_000), *TALK[1:]), f"row {number}") for number in range(12)]
    with TemplateProcess(ChatTemplate(CHATML, "t.jinja")) as process:
        found = list(process.marked_each(talks))
        assert [each.text for each in found] == [process.marked(*talk).text for talk in talks]
        assert list(process.marked_each([])) == []


def test_of_several_the_first_that_fails_is_named_after_those_before_it() -> None:
    picky = "{% if messages[0].content == 'bad' %}{{ raise_exception('no') }}{% endif %}" + CHATML
    talks = [((Message("user", text), *TALK[1:]), f"row {n}") for n, text in enumerate(("a", "b", "bad", "c"), 1)]
    with TemplateProcess(ChatTemplate(picky, "t.jinja")) as process:
        each = process.marked_each(talks)
        assert [next(each).text.count(text) for text in ("a", "b")]
        with pytest.raises(ConfigError, match=r"row 3: the chat template t\.jinja fails: no"):
            next(each)


def test_the_process_has_no_variables_that_it_does_not_need(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HF_TOKEN", "AWS_SECRET_ACCESS_KEY", "POTLUCK_ANYTHING", "SOME_PASSWORD"):
        monkeypatch.setenv(name, "secret")
    with TemplateProcess(ChatTemplate(CHATML, "t.jinja")) as process:
        (child,) = _templates_running()
        assert set(child.environ()) <= set(KEPT_VARIABLES)
        assert process.marked(TALK, "row 1").counted


def test_the_process_can_write_no_file_start_no_process_and_take_bounded_memory_and_time() -> None:
    with TemplateProcess(ChatTemplate(CHATML, "t.jinja")) as process:
        (child,) = _templates_running()
        assert process.marked(TALK, "row 1").counted
        for kind in (psutil.RLIMIT_FSIZE, psutil.RLIMIT_NPROC, psutil.RLIMIT_CORE):
            assert child.rlimit(kind) == (0, 0)
        assert child.rlimit(psutil.RLIMIT_NOFILE) == (MOST_FILES, MOST_FILES)
        assert child.rlimit(psutil.RLIMIT_AS) == (MOST_MEMORY_BYTES, MOST_MEMORY_BYTES)
        used_s = sum(child.cpu_times()[:2])
        assert 0 < child.rlimit(psutil.RLIMIT_CPU)[0] <= used_s + MOST_CPU_S


def test_a_process_that_dies_is_told_in_a_line() -> None:
    with TemplateProcess(ChatTemplate(CHATML, "t.jinja")) as process:
        for child in _templates_running():
            child.kill()
            child.wait(60.0)
        with pytest.raises(ConfigError, match="ended its process"):
            process.marked(TALK, "row 1")


def _templates_running() -> Iterator[psutil.Process]:
    for child in psutil.Process().children():
        if "averaging.data.chat.sandbox" in child.cmdline():
            yield child
