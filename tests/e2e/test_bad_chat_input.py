"""Chats, adapters, questions and addresses that cannot work, as the command line tells them: one line, with its own exit code."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from averaging.models.llama.config import LlamaConfig
from coordinator.checkpoints.checkpoint_export import export_checkpoint
from tests.coordinator.checkpoints.adapter_checkpoint import checkpoint_of_adapter
from tests.coordinator.checkpoints.test_checkpoints import checkpoint_of, decoder
from tests.e2e.processes import LOOPBACK, ROOT, environment
from tests.e2e.run_file import USUAL, Section, run_toml
from tests.forked import Forked

TEMPLATE = "{% for m in messages %}[{{ m.role }}]{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
QUESTION = {"question": "The capital of France is", "choices": ["Rome", "Paris"], "answer": 1}
ROUND: Section = {"target_tokens": 1_536}
CHATS: Section = {"source": "jsonl", "glob": "chats.jsonl", "format": "chat", "chat_template": "t.jinja"}

Done = subprocess.CompletedProcess[str]


@dataclass(frozen=True)
class Bench:
    """A folder with chats, a template, a base and questions that work, and the command line."""

    folder: Path
    forked: Forked

    def potluck(self, *arguments: str) -> Done:
        return self.forked.run(*arguments, cwd=ROOT, environment=environment())

    def host(self, **sections: Section) -> Done:
        (self.folder / "run.toml").write_text(run_toml("bad", 6_000, data=CHATS, round=ROUND, **sections))
        return self.potluck("host", str(self.folder / "run.toml"), "--state-dir", str(self.folder / "host"), *LOOPBACK)

    def written(self, name: str, text: str) -> Bench:
        (self.folder / name).write_text(text)
        return self


@pytest.fixture
def bench(tmp_path: Path, forked: Forked) -> Bench:
    turns = [{"role": role, "content": f"word {role} " * 20} for role in ("user", "assistant")]
    rows = [json.dumps({"messages": [{**turns[0], "content": f"{number} word"}, turns[1]]}) for number in range(80)]
    bench = Bench(tmp_path, forked).written("chats.jsonl", "\n".join(rows)).written("t.jinja", TEMPLATE)
    return bench.written("questions.jsonl", json.dumps(QUESTION))


def _of_another_role(bench: Bench) -> Done:
    row = {"messages": [{"role": "robot", "content": "a"}, {"role": "assistant", "content": "b"}]}
    text = (bench.folder / "chats.jsonl").read_text()
    return bench.written("chats.jsonl", f"{json.dumps(row)}\n{text}").host()


def _for_other_layers(bench: Bench) -> Done:
    export_checkpoint(checkpoint_of(bench.folder, LlamaConfig.model_validate(USUAL["model"])), bench.folder / "base")
    return bench.host(run={"start_from": "base"}, adapter={"rank": 2, "targets": ["query"]})


def _without_the_right_answer(bench: Bench) -> Done:
    text = json.dumps({**QUESTION, "answer": "Berlin"})
    data = run_toml("bad", 6_000, data=CHATS, round=ROUND) + '[[evaluate]]\nname = "facts"\nfile = "questions.jsonl"\n'
    bench.written("questions.jsonl", text).written("run.toml", data)
    return bench.potluck("host", str(bench.folder / "run.toml"), "--state-dir", str(bench.folder / "host"), *LOOPBACK)


def _over_another_base(bench: Bench) -> Done:
    checkpoint = checkpoint_of_adapter(bench.folder / "host", decoder())
    for path in (bench.folder / "host" / "data").rglob("*"):
        if path.is_file():
            path.write_bytes(bytes(path.stat().st_size))
    return bench.potluck("checkpoint", "export", str(checkpoint), str(bench.folder / "out"), "--merged")


def _to_a_place_that_refuses(bench: Bench) -> Done:
    checkpoint = checkpoint_of(bench.folder, decoder())
    return bench.potluck("checkpoint", "push", "file:///proc/nowhere", "--checkpoint", str(checkpoint))


@dataclass(frozen=True)
class Mishap:
    """The act of the host, the exit code, and parts of the one line: a pattern of the finding, and words of the remedy."""

    do: Callable[[Bench], Done]
    exit_code: int
    found: str
    remedy: str


MISHAPS = {
    "a template that reaches out": Mishap(
        lambda bench: bench.written("t.jinja", "{{ cycler.__init__.__globals__ }}").host(),
        3,
        r"the chat template \S*t\.jinja fails: .*unsafe",
        "mend the template",
    ),
    "an unknown role": Mishap(_of_another_role, 3, "line 1: message 1 has role 'robot'", "mend or remove the row"),
    "an adapter for layers that are not there": Mishap(
        _for_other_layers, 3, 'adapter.targets has "query", which no layer of the model has', "change it"
    ),
    "a question without the right answer": Mishap(
        _without_the_right_answer, 3, "line 1: the answer 'Berlin' is none of its choices", "expected"
    ),
    "a base of another hash": Mishap(_over_another_base, 4, "is lost or damaged", "restore a copy"),
    "a place that refuses": Mishap(
        _to_a_place_that_refuses, 4, "file:///proc/nowhere would not take", "check the address"
    ),
}


@pytest.mark.parametrize("name", MISHAPS)
def test_bad_input_of_a_host_is_one_line_with_its_exit_code(bench: Bench, name: str) -> None:
    mishap = MISHAPS[name]
    done = mishap.do(bench)
    assert done.returncode == mishap.exit_code, done.stdout + done.stderr
    (line,) = done.stderr.splitlines()
    assert line.startswith("potluck: ")
    assert re.search(mishap.found, line), line
    assert mishap.remedy in line
    assert "Traceback" not in done.stdout
