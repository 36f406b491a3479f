"""Files of the pages, served as they are."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import cast

import pytest
from starlette.requests import Request
from starlette.responses import Response

from averaging.host.web_files import SAFE_HEADERS, SHARED_FILES, SHARED_FOLDER, file_routes

Answer = Callable[[Request], Response]
ROOT = Path(__file__).parents[3]


@pytest.fixture
def answers(tmp_path: Path) -> dict[str, Response]:
    (tmp_path / "page.js").write_text("look()", encoding="utf8")
    (tmp_path / "index.html").write_text("<!doctype html>", encoding="utf8")
    (tmp_path / "secret").write_text("no", encoding="utf8")
    request = Request({"type": "http"})
    routes = file_routes(tmp_path, {"/": "index.html", "/page.js": "page.js"})
    return {route.path: cast("Answer", route.endpoint)(request) for route in routes}


def test_each_listed_file_is_served_with_its_kind_and_the_safe_headers(answers: dict[str, Response]) -> None:
    kinds = {"/": "text/html", "/page.js": "text/javascript", "/base.css": "text/css", "/icon.svg": "image/svg+xml"}
    kinds["/words.js"] = "text/javascript"
    assert {path: reply.headers["content-type"].split(";")[0] for path, reply in answers.items()} == kinds
    for reply in answers.values():
        assert {name: reply.headers[name] for name in SAFE_HEADERS} == dict(SAFE_HEADERS)
    assert answers["/page.js"].body == b"look()"


@pytest.mark.parametrize("side", ["coordinator", "peer"])
def test_both_pages_read_the_shared_words_first_and_have_none_of_their_own(side: str) -> None:
    folder = ROOT / side / "status" / "web"
    read = re.findall(r'<script src="(\S+)">', (folder / "index.html").read_text(encoding="utf8"))
    own = [name for name in read if (folder / name).exists()]
    assert own == read[read.index("words.js") + 1 :]
    shared = re.findall(r"^const (\w+) =", (SHARED_FOLDER / "words.js").read_text(encoding="utf8"), re.MULTILINE)
    assert shared == ["el", "big", "inBytes", "several", "span"]
    for name in own:
        text = (folder / name).read_text(encoding="utf8")
        assert not re.search(rf"const .*\b({'|'.join(shared)}) =", text), name


def test_the_shared_files_are_there_and_need_nothing_from_outside() -> None:
    for name in SHARED_FILES.values():
        text = (SHARED_FOLDER / name).read_text(encoding="utf8").replace("http://www.w3.org/2000/svg", "")
        assert "http" not in text
