"""Input from which no run of experts can be made, or with which none can be joined, at the real commands: one line that says what was
found, what was expected and what to do, its exit code, and nothing made of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from averaging.data.packing.document_router import fit_router
from tests.e2e.processes import LOOPBACK, PEER_FLAGS, ROOT, Running, environment, running_potluck
from tests.e2e.test_experts import RUN_TOML
from tests.forked import Forked

WRONG_SETTING = 3
NAMED = RUN_TOML.replace('router_features = "embeddings"', 'router = "words.router"')
TEXTS = [f"{kind} of a text " * 20 for kind in ("one kind", "def f(x): return", "a third")]


def _router(num_experts: int) -> bytes:
    return fit_router([text.encode() for text in TEXTS], num_experts).to_bytes()


def _run_file(folder: Path, toml: str, files: dict[str, bytes]) -> Path:
    for number in range(24):
        text = (ROOT / ("README.md", "potluck.py")[number % 2]).read_text(encoding="utf8")
        (folder / f"{number}.md").write_text(f"{number} {text[100 * number :]}")
    for name, data in files.items():
        (folder / name).write_bytes(data)
    path = folder / "run.toml"
    path.write_text(toml)
    return path


@pytest.mark.parametrize(
    ("toml", "files", "said"),
    [
        (NAMED, {}, r"words\.router cannot be read: .*; expected a router file; correct experts\.router"),
        (
            NAMED,
            {"words.router": _router(3)},
            r'"experts": 3, .*; expected .*"experts": 2, .*; correct experts\.router',
        ),
        (
            NAMED,
            {"words.router": _router(2)[:-5]},
            r"\d+ bytes after .*; expected \d+ of 2 .*; correct experts\.router",
        ),
        (RUN_TOML, {"x.md": b" \n\n"}, r"x\.md is empty; expected some text; leave it out"),
        (RUN_TOML, {"x.md": b"\xff\xfe" * 40}, r"x\.md is no text; expected UTF-8; leave it out"),
    ],
    ids=["no router", "router of others", "cut router", "blank", "bytes"],
)
def test_a_run_of_a_wrong_router_or_document_is_not_opened(
    tmp_path: Path, forked: Forked, toml: str, files: dict[str, bytes], said: str
) -> None:
    run_file, state = _run_file(tmp_path, toml, files), tmp_path / "host"
    command = ("host", str(run_file), "--state-dir", str(state), *LOOPBACK)
    done = forked.run(*command, cwd=ROOT, environment=environment())
    assert done.returncode == WRONG_SETTING, done.stderr
    (line,) = done.stderr.splitlines()
    assert re.search(said, line), line
    left = {path.name for path in state.iterdir() if path.is_file()}
    assert left <= {"identity.key", "settings_in_use.json", "started_with.json"}, "which are the host's own"
    assert not (state / "data").exists()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory, forked: Forked) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("host")
    run_file = _run_file(folder, RUN_TOML, {})
    command = ("host", str(run_file), "--state-dir", str(folder / "host"), *LOOPBACK)
    with running_potluck(folder, "host", *command, forked=forked) as running:
        yield running


@pytest.mark.parametrize(
    ("experts", "said"),
    [
        ("2", "expert 2 of a run of 2; expected 0 to 1; correct --expert"),
        ("0,1", "2 experts; expected at most 1 in this run; name fewer with --expert"),
        ("-1", "peer setting expert is '-1'; expected numbers of experts"),
        ("0,0", "peer setting expert is '0,0'; expected each expert once"),
    ],
)
def test_a_peer_with_experts_that_the_run_has_not_does_not_join(
    tmp_path: Path, forked: Forked, host: Running, experts: str, said: str
) -> None:
    invite = host.wait_for(r"(potluck1:\S+)\n")
    command = ("join", invite, "--state-dir", str(tmp_path / "peer"), *PEER_FLAGS, "--expert", experts)
    done = forked.run(*command, cwd=ROOT, environment=environment())
    assert done.returncode == WRONG_SETTING, done.stderr
    (line,) = done.stderr.splitlines()
    assert said in line
    assert not list(tmp_path.rglob("experts")), "it has decided nothing"
    assert not list(tmp_path.rglob("rounds.log"))
