"""The host's web server over a real socket, in both of its views."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import trio

from averaging.host.http import bind_http, serve_http
from coordinator.progress.run_events import EventBook, RunEvent
from coordinator.progress.run_view import RunPicture
from coordinator.push.push_core import PushState
from coordinator.scores.score_core import ScoredTask, TaskCurve, TaskPoint
from coordinator.status.metrics.moment import Counts, Moment
from coordinator.status.run_json import Json, now_json
from coordinator.status.status_page import MAX_STREAMS, PAGE_FILES, WEB_FOLDER, RunSource, status_app
from protocol.errors import MachineError, StorageError
from protocol.run.evaluate_section import EvaluateSection
from protocol.run.page_section import PageSection
from tests.coordinator.progress.test_run_view import picture

CHECKPOINT = "00000002-cc"


def fetch(url: str) -> tuple[int, dict[str, str], bytes]:
    try:
        with urllib.request.urlopen(url, timeout=60) as reply:
            return reply.status, dict(reply.headers), reply.read()
    except urllib.error.HTTPError as error:
        return error.code, dict(error.headers), error.read()


def verify(folder: Path) -> str:
    if not (folder / "manifest.json").exists():
        raise StorageError("no manifest.json", "a checkpoint")
    return f"verified: {folder.name}"


QUESTIONS = TaskCurve(ScoredTask(EvaluateSection(name="facts", file="f"), 4, 0.25), (TaskPoint(2, 600, 4, 2, 3),))
WORDS = ScoredTask(EvaluateSection(name="words", file="w", kind="prompts"), 1, vocab_size=9, prompts=("<b>",))
SCORES = (QUESTIONS, TaskCurve(WORDS, answers=(("<b>", "</script>"),), answered_index=2))
PUSH = PushState("s3://bucket/run").failed("the bucket would not take it", 90.0)


class Source:
    """A run that the test can change."""

    def __init__(self, folder: Path) -> None:
        self.picture: RunPicture = replace(picture(), checkpoint_folder=folder)
        self.book = EventBook()
        self.book.note(self.picture, 100.0, 1_000)

    def look(self) -> Moment:
        return Moment(self.picture, Counts(), 100.0, scores=SCORES, push=PUSH)

    def events(self, most: int) -> tuple[RunEvent, ...]:
        return tuple(self.book.newest(most))


PAGE = PageSection(description="Our letters <b>", contact="host@example.org", join="ask at https://example.org/chat")


@asynccontextmanager
async def serving(source: Source, *, is_public: bool = False) -> AsyncIterator[str]:
    listener = bind_http("127.0.0.1", 0)
    url = f"http://127.0.0.1:{listener.getsockname()[1]}"
    async with trio.open_nursery() as nursery:
        app = status_app(RunSource(source.look, source.events, verify, page=PAGE), is_public=is_public)
        await nursery.start(serve_http, listener, app)
        with trio.fail_after(120):
            yield url
        nursery.cancel_scope.cancel()


async def get(url: str) -> tuple[int, dict[str, str], bytes]:
    return await trio.to_thread.run_sync(partial(fetch, url))


@pytest.fixture
def source(tmp_path: Path) -> Source:
    folder = tmp_path / CHECKPOINT
    folder.mkdir()
    (folder / "manifest.json").write_bytes(b"{}")
    (tmp_path / "secret").write_bytes(b"not for you")
    return Source(tmp_path)


async def test_page_status_events_metrics_and_health_are_served(source: Source) -> None:
    async with serving(source) as url:
        found = {
            path: await get(url + path)
            for path in (*PAGE_FILES, "/api/status", "/api/events", "/metrics", "/healthz", "/readyz")
        }
    assert {path: code for path, (code, _, _) in found.items() if code != 200} == {}
    for path in PAGE_FILES:
        assert "default-src 'self'" in found[path][1]["content-security-policy"]
    status = json.loads(found["/api/status"][2])
    assert (status["run"], status["view"], status["restarted"]) == ("tiny", "host", source.picture.restarted)
    assert [event["kind"] for event in json.loads(found["/api/events"][2])] == ["run"]
    assert b"potluck_run_tokens 600.0" in found["/metrics"][2]
    assert (found["/healthz"][2], found["/readyz"][2]) == (b"ok\n", b"ok\n")


async def test_the_public_view_says_nothing_of_the_hosts_machine(source: Source) -> None:
    async with serving(source, is_public=True) as url:
        status = await get(f"{url}/api/status")
        refused = [await get(url + path) for path in ("/metrics", f"/api/checkpoints/{CHECKPOINT}/verify")]
    shown = json.loads(status[2])
    assert (shown["view"], shown["gives_model"]) == ("public", False)
    assert str(source.picture.checkpoint_folder).encode() not in status[2]
    assert not {"restarted", "missing", "bans"} & shown.keys()
    assert [code for code, _, _ in refused] == [404, 404]


@pytest.mark.parametrize("is_public", [False, True])
async def test_both_views_have_the_scores_and_the_host_alone_sees_its_pushes(source: Source, is_public: bool) -> None:
    async with serving(source, is_public=is_public) as url:
        body = (await get(f"{url}/api/status"))[2]
    status = json.loads(body)
    assert [task["name"] for task in status["tasks"]] == ["facts", "words"]
    assert (status["tasks"][0]["points"][0]["acc_norm"], status["num_scores"]) == (0.75, 1)
    assert status["tasks"][1]["answers"] == [{"prompt": "<b>", "answer": "</script>"}]
    assert (b"s3://bucket" in body) is not is_public
    script = (WEB_FOLDER / "page.js").read_text(encoding="utf8")
    assert 'make("dd", each.answer)' in script, "set as text, as all that make() is given"
    assert "innerHTML" not in script


@pytest.mark.parametrize("is_public", [False, True])
async def test_both_views_have_the_hosts_words_about_the_run(source: Source, is_public: bool) -> None:
    async with serving(source, is_public=is_public) as url:
        status = json.loads((await get(f"{url}/api/status"))[2])
    assert status["page"] == PAGE.as_json()
    script, page = ((WEB_FOLDER / name).read_text(encoding="utf8") for name in ("page.js", "index.html"))
    assert all(f'id="{key}"' in page and f'said("{key}"' in script for key in PAGE.as_json())


async def test_a_stream_tells_the_run_at_once_and_again_when_it_has_changed(source: Source) -> None:
    async with serving(source) as url:
        with await trio.to_thread.run_sync(partial(urllib.request.urlopen, f"{url}/api/stream", timeout=60)) as stream:

            def reported() -> dict[str, object]:
                while not (line := stream.readline()).startswith(b"data: "):
                    assert line, "the stream has ended"
                data: dict[str, object] = json.loads(line[6:])
                return data

            first = await trio.to_thread.run_sync(reported)
            source.picture = replace(source.picture, reason="something else")
            second = await trio.to_thread.run_sync(reported)
    assert (first["reason"], second["reason"]) == ("all is well", "something else")
    assert (first["last_event"], "rounds" in first) == (1, False)


async def test_a_stream_in_which_nothing_changes_is_written_to_so_that_a_lost_reader_is_noticed(
    source: Source, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coordinator.status.status_page.LOOK_EVERY_S", 0.0)
    monkeypatch.setattr("coordinator.status.status_page.STILL_HERE_EVERY_S", 0.0)
    async with serving(source) as url:
        with await trio.to_thread.run_sync(partial(urllib.request.urlopen, f"{url}/api/stream", timeout=60)) as stream:

            def comment() -> bytes:
                while (line := stream.readline()) and not line.startswith(b":"):
                    pass
                return bytes(line)

            assert await trio.to_thread.run_sync(comment) == b": still here\n"


async def test_all_streams_of_a_second_get_one_text(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Moment] = []

    def counted(picture: RunPicture, *rest: object) -> Json:
        made.append(source.look())
        return now_json(picture, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr("coordinator.status.status_page.now_json", counted)
    monkeypatch.setattr("coordinator.status.status_page.LOOK_EVERY_S", 3600.0)
    async with serving(source) as url:
        for _ in range(5):
            with await trio.to_thread.run_sync(
                partial(urllib.request.urlopen, f"{url}/api/stream", timeout=60)
            ) as stream:
                assert (await trio.to_thread.run_sync(stream.readline)).startswith(b"event: now")
    assert len(made) == 1


@pytest.mark.parametrize("path", ["status", "peers?page=0", "rounds?page=0"])
async def test_all_who_ask_within_a_second_get_one_rendering(
    source: Source, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks: list[Moment] = []
    look = source.look

    def counted() -> Moment:
        looks.append(look())
        return looks[-1]

    source.look = counted  # type: ignore[method-assign]
    monkeypatch.setattr("coordinator.status.status_page.LOOK_EVERY_S", 3600.0)
    async with serving(source) as url:
        texts = {(await get(f"{url}/api/{path}"))[2] for _ in range(5)}
    assert (len(texts), len(looks)) == (1, 1)


@pytest.mark.parametrize("is_public", [False, True])
async def test_peers_and_rounds_come_by_page_and_a_page_that_is_not_there_is_refused_in_a_line(
    source: Source, is_public: bool
) -> None:
    async with serving(source, is_public=is_public) as url:
        peers = await get(f"{url}/api/peers?page=0&order=speed&search=")
        rounds = await get(f"{url}/api/rounds")
        refused = [
            await get(f"{url}/api/{query}") for query in ("peers?page=1", "rounds?page=-3", "peers?order=wealth")
        ]
    shown = json.loads(peers[2])
    assert (shown["num_pages"], len(shown["peers"])) == (1, len(source.picture.peers))
    assert all(("is_banned" in row) is not is_public for row in shown["peers"])
    assert [row["index"] for row in json.loads(rounds[2])["rounds"]] == [t.row.index for t in source.picture.rounds]
    assert [(code, text) for code, _, text in refused] == [
        (400, b"page 1; expected 0 to 0\n"),
        (400, b"page '-3'; expected a whole number from 0 on\n"),
        (400, b"order 'wealth'; expected one of name, counted, speed\n"),
    ]


@pytest.mark.parametrize("rows", ["peers", "rounds"])
@pytest.mark.parametrize("page", ["-1", "1", "999999999", "9" * 400, "1e3", "x", "", "%00", "%D9%A1", "0&page=-1"])
async def test_any_page_that_is_not_there_is_refused_in_a_line_and_the_first_one_is_still_given(
    source: Source, rows: str, page: str
) -> None:
    async with serving(source, is_public=True) as url:
        code, _, text = await get(f"{url}/api/{rows}?page={page}")
        first, _, _ = await get(f"{url}/api/{rows}?page=0")
    assert (code, text.count(b"\n"), text[:4], first) == (400, 1, b"page", 200)
    assert len(text) < 200


async def test_a_search_too_long_is_refused_in_a_line_and_one_for_nobody_finds_nobody(source: Source) -> None:
    async with serving(source, is_public=True) as url:
        code, _, text = await get(f"{url}/api/peers?search={'x' * 5000}")
        nobody, _, found = await get(f"{url}/api/peers?search=%25%27%22%3Cb%3E")
    assert (code, text.count(b"\n")) == (400, 1)
    assert text.startswith(b"a search of 5000 letters; expected at most")
    assert (nobody, json.loads(found)["num_found"]) == (200, 0)


async def test_one_stream_too_many_is_asked_to_poll(source: Source, monkeypatch: pytest.MonkeyPatch) -> None:
    assert MAX_STREAMS >= 10
    monkeypatch.setattr("coordinator.status.status_page.MAX_STREAMS", 0)
    async with serving(source) as url:
        code, _, text = await get(f"{url}/api/stream")
    assert (code, b"every few seconds" in text) == (503, True)


async def test_files_of_a_listed_checkpoint_can_be_fetched_and_verified(source: Source) -> None:
    async with serving(source) as url:
        files = await get(f"{url}/api/checkpoints/{CHECKPOINT}/files")
        one = await get(f"{url}/checkpoints/{CHECKPOINT}/manifest.json")
        good = await get(f"{url}/api/checkpoints/{CHECKPOINT}/verify")
        (source.picture.checkpoint_folder / CHECKPOINT / "manifest.json").unlink()
        bad = await get(f"{url}/api/checkpoints/{CHECKPOINT}/verify")
    assert json.loads(files[2]) == [{"name": "manifest.json", "num_bytes": 2}]
    assert (one[0], one[2]) == (200, b"{}")
    assert json.loads(good[2]) == {"ok": True, "sentence": f"verified: {CHECKPOINT}"}
    assert json.loads(bad[2]) == {"ok": False, "sentence": "no manifest.json; expected a checkpoint"}


@pytest.mark.parametrize(
    "path",
    [
        "/checkpoints/../secret",
        "/checkpoints/%2e%2e/secret",
        f"/checkpoints/{CHECKPOINT}/..%2f..%2fsecret",
        f"/checkpoints/{CHECKPOINT}/%2e%2e%2fsecret",
        "/checkpoints/unlisted/manifest.json",
        "/api/checkpoints/unlisted/files",
        "/api/checkpoints/..%2f/verify",
        "/web/../status_page.py",
    ],
)
async def test_nothing_beside_the_listed_checkpoints_can_be_fetched(source: Source, path: str) -> None:
    (source.picture.checkpoint_folder / "unlisted").mkdir()
    async with serving(source) as url:
        code, _, text = await get(url + path)
    assert (code, b"not for you" in text) == (404, False)


async def test_a_listed_checkpoint_that_is_gone_is_missing_and_no_crash(source: Source) -> None:
    folder = source.picture.checkpoint_folder / CHECKPOINT
    (folder / "manifest.json").unlink()
    folder.rmdir()
    async with serving(source) as url:
        codes = [
            (await get(url + path))[0]
            for path in (f"/api/checkpoints/{CHECKPOINT}/files", f"/checkpoints/{CHECKPOINT}/manifest.json", "/healthz")
        ]
    assert codes == [404, 404, 200]


def test_the_page_needs_nothing_from_outside_and_writes_strangers_words_as_text() -> None:
    own = {name: (WEB_FOLDER / name).read_text(encoding="utf8") for name in PAGE_FILES.values() if "uPlot" not in name}
    for name, text in own.items():
        assert not re.search(r"(?<!xmlns=\")https?://", text), name
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(", text), name
        assert not re.search(r"<script>|style=\"|onclick=\"", text), name


def test_the_page_shows_stages_lanes_and_rounds_of_lanes_that_a_stage_has_no_part_of(source: Source) -> None:
    script, page = ((WEB_FOLDER / name).read_text(encoding="utf8") for name in ("page.js", "index.html"))
    status = now_json(source.look().picture, source.look().now_s)
    for key, place in (("stages", "experts"), ("lanes", "lanes"), ("partial_lanes", "partial-lanes")):
        assert key in status
        assert f"now.{key}" in script
        assert f'"{place}"' in script
        assert f'id="{place}"' in page


def test_port_in_use_is_one_clear_error() -> None:
    with bind_http("127.0.0.1", 0) as taken, pytest.raises(MachineError, match="cannot listen on"):
        bind_http("127.0.0.1", taken.getsockname()[1])
