"""A tokenizer with the special tokens of a chat, and templates that use them."""

from __future__ import annotations

import json

from averaging.data.chat.run_template import RunTemplate
from averaging.data.sources.texts import Text
from averaging.data.vocabulary import FileTokenizer, train_bpe

CHATML = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
PLAIN = (
    "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant: {% endif %}"
)


def chat_tokenizer() -> FileTokenizer:
    """Of at most 272 tokens; the last two are <|im_start|> and <|im_end|>."""
    trained = train_bpe([Text(b"potluck trains, user assistant " * 20, "train")], 270)
    values = json.loads(trained.file or b"")
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    for number, name in enumerate(("<|im_start|>", "<|im_end|>"), trained.vocab_size):
        values["added_tokens"].append({"id": number, "content": name, **flags})
    return FileTokenizer(json.dumps(values).encode(), "it", trained.end)


def chat_template(source: str = CHATML, end: int | None = None) -> RunTemplate:
    """As a run of `chat_tokenizer` has it."""
    variables = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"}
    return RunTemplate(source=source, variables=variables, end=chat_tokenizer().vocab_size - 1 if end is None else end)
