"""`python -m tests.browser --out DIR`: the status pages in headless Chromium, looked at by a program and then by eye.

Needs the extra `browser` and a chromium (`--chromium`). Every look fails on an error in the page's console, on a request that leaves
this machine, on markup of a stranger that became an element, and on a page wider than its window.
"""

from __future__ import annotations

import argparse
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import trio
from playwright.sync_api import Page, sync_playwright

from averaging.host.http import bind_http, serve_http
from coordinator.progress.run_events import RunEvent
from coordinator.status.status_page import RunSource, status_app
from peer.status.status_http import peer_app
from tests.browser.runs import PAGE, after_outage, events, moment, volunteer

VIEWS: Final = {"desktop": (1280, 900), "phone": (390, 844)}
SETTLE_MS: Final = 1500
PATIENCE_MS: Final = 120_000


@contextmanager
def served(folder: Path) -> Iterator[dict[str, str]]:
    """The URLs: the host's view, the public one, those of a host that was away and of a new run, and a volunteer's panel."""
    unix_s = int(time.time())
    book = events(folder, unix_s)
    for row in moment(folder, unix_s).picture.checkpoints[1:]:  # the oldest one's files are gone
        (folder / row.path).mkdir(parents=True, exist_ok=True)
        (folder / row.path / "fragment-0.safetensors").write_bytes(b"weights")

    def newest(most: int) -> tuple[RunEvent, ...]:
        return tuple(book.newest(most))

    source = RunSource(partial(moment, folder, unix_s), newest, lambda path: f"verified: {path.name}", page=PAGE)
    away = status_app(replace(source, snapshot=partial(after_outage, folder, unix_s)))
    new = status_app(replace(source, snapshot=partial(moment, folder, unix_s, 0)))
    public = status_app(source, is_public=True)
    apps = {"host": status_app(source), "public": public, "away": away, "new": new, "panel": peer_app(volunteer)}
    listeners = {kind: bind_http("127.0.0.1", 0) for kind in apps}
    urls = {kind: f"http://127.0.0.1:{listener.getsockname()[1]}/" for kind, listener in listeners.items()}
    tokens: list[trio.lowlevel.TrioToken] = []
    scopes: list[trio.CancelScope] = []

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            tokens.append(trio.lowlevel.current_trio_token())
            scopes.append(nursery.cancel_scope)
            for kind, app in apps.items():
                nursery.start_soon(serve_http, listeners[kind], app)

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield urls
    finally:
        trio.from_thread.run_sync(scopes[0].cancel, trio_token=tokens[0])
        thread.join()


RUN_PARTS: Final = {
    "#timeline .cell": 200,
    "#peers tr": 5,
    "#order option": 3,
    "#events li": 10,
    "#checkpoints details": 4,
    "canvas": 2,
    ".card": 6,
    "#description": 1,
    "#join a": 1,
    "#contact a": 1,
}
NEW_PARTS: Final = {".card": 6, "#peers tr": 5, "#events li": 10}
PANEL_PARTS: Final = {".card": 6, "#speed path": 1, "#ready": 1, "#run dd": 8, "#machine dd": 7}


PARTS: Final = {"host": RUN_PARTS, "public": RUN_PARTS, "away": RUN_PARTS, "new": NEW_PARTS, "panel": PANEL_PARTS}

HOLLOW: Final = """[...document.querySelectorAll(".chart:not(:has(canvas))")].filter(box => box.clientHeight > 60).map(box => box.id)
  .concat(document.querySelector(".cell") || !document.querySelector("#round")?.offsetParent ? [] : ["#round"])"""
"""Charts of nothing that take the room of a chart, and the word to point at rounds where there is none."""

SPILT: Final = """Math.max(...Array.from(document.querySelectorAll("section"), s => s.scrollHeight - s.clientHeight))"""


NARROW: Final = """Object.entries(charts).flatMap(([id, u]) => {
  const axis = u.axes[1], labels = axis.values(u, axis._splits);
  u.ctx.font = axis.font[0];
  const widest = Math.max(...labels.map(text => u.ctx.measureText(text).width / devicePixelRatio));
  return axis._size < widest + axis.gap + axis.ticks.size ? [`${id}: ${labels.join(", ")}`] : [];
})"""
"""Charts whose labels beside the axis are wider than their room, so that they would lose a digit."""

LONG: Final = (
    """Array.from(document.querySelectorAll("#peers td"), cell => cell.innerText).filter(text => text.length > 30)"""
)
"""Cells of the peers' table with a sentence instead of a word."""

ALIKE: Final = """now.peers.slice(0, FEW_HUES / 2).flatMap((one, i, all) => all.slice(0, i).filter(other => {
  const apart = Math.abs(hueOf(one.peer) - hueOf(other.peer));
  return Math.min(apart, 360 - apart) < NEAR_HUE;
}).map(other => `${one.name} and ${other.name}`))"""
"""Peers whose colours cannot be told apart though there are few."""

UNSTYLED: Final = """Array.from(document.querySelectorAll(".scroll td.n"), cell => getComputedStyle(cell).textAlign)
  .filter(side => side !== "right").length"""
"""Numbers of tables that are not aligned."""

EMPTY: Final = """Object.entries(charts).flatMap(([id, u]) =>
  Array.from(u.root.querySelectorAll(".u-series")).filter(row => !row.querySelector(".u-value").innerText.trim())
    .map(row => `${id}: ${row.innerText}`))"""
"""Curves that have points and no value in the legend."""

TRUE_SPEED: Final = 25_000.0


def read(page: Page, name: str) -> list[str]:
    """The labels, words and speeds of the page after an outage of the host, or of any other; what is wrong with them."""
    wrong = [f"{name}: labels without room in {chart}" for chart in page.evaluate(NARROW)]
    wrong += [f"{name}: a sentence in the peers' table: {text}" for text in page.evaluate(LONG)]
    wrong += [f"{name}: no value in the legend of {curve}" for curve in page.evaluate(EMPTY)]
    wrong += [f"{name}: the colours of {pair} are alike" for pair in page.evaluate(ALIKE)]
    if loose := page.evaluate(UNSTYLED):
        wrong.append(f"{name}: {loose} numbers of tables are not aligned")
    if name.startswith("away"):
        speeds = page.evaluate("charts.speed.data[1]")
        if not speeds or max(abs(speed / TRUE_SPEED - 1) for speed in speeds) > 0.05:
            wrong.append(f"{name}: speeds from {min(speeds, default=0):.0f} to {max(speeds, default=0):.0f} tokens/s")
        labels = page.evaluate("charts.speed.axes[1].values(charts.speed, charts.speed.axes[1]._splits)")
        if not {"10 k", "20 k"} <= set(labels):
            wrong.append(f"{name}: labels of the speed are {labels}")
    return wrong


def use(page: Page, name: str) -> list[str]:
    """Everything on the run's page that can be used: a round, a checkpoint, its files, its verification; what is wrong with it."""
    wrong: list[str] = []
    page.locator("#timeline .cell").first.click()
    if "% covered" not in page.locator("#round").inner_text():
        wrong.append(f"{name}: the round that was pointed at is not read out")
    newest, oldest = page.locator("#checkpoints details").first, page.locator("#checkpoints details").last
    newest.locator("summary").click()
    if name.startswith("public"):
        if newest.locator("a, button").count():
            wrong.append(f"{name}: a checkpoint's files are given to anybody")
        return wrong
    with page.expect_download() as download:
        newest.locator("a").first.click()
    if not download.value.suggested_filename.endswith("-fragment-0.safetensors"):
        wrong.append(f"{name}: a checkpoint's file is saved as {download.value.suggested_filename}")
    newest.locator("button").first.click()
    newest.locator(".good", has_text="verified").wait_for()
    oldest.locator("summary").click()
    oldest.locator("p", has_text="are gone").wait_for()
    return wrong


def look(page: Page, url: str, parts: Mapping[str, int], file: Path) -> list[str]:
    """One page in one window; what is wrong with it. `parts` are how many of each it has at least, by selector."""
    name = file.stem
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(f"{name}: console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"{name}: {error}"))
    page.on("request", lambda r: None if r.url.startswith(url) else wrong.append(f"{name}: request to {r.url}"))
    page.on("dialog", lambda dialog: (wrong.append(f"{name}: a stranger's script ran"), dialog.dismiss()))
    page.goto(url)
    page.wait_for_selector(".card", timeout=PATIENCE_MS)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=file, full_page=True)
    if page.locator("img").count():
        wrong.append(f"{name}: markup of a stranger became an element")
    too_wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if too_wide > 0:
        wrong.append(f"{name}: {too_wide} pixels wider than the window")
    spilt = page.evaluate(SPILT)
    wrong += [f"{name}: {place} has nothing to show" for place in page.evaluate(HOLLOW)]
    if spilt:
        wrong.append(f"{name}: {spilt} pixels lie below the section that they belong to")
    if "#checkpoints details" in parts:
        errors_before = len(wrong)
        wrong += read(page, name) + use(page, name)
        # Chromium itself writes the refused request of the checkpoint that is gone into the console.
        wrong[errors_before:] = [line for line in wrong[errors_before:] if "404" not in line]
        page.screenshot(path=file.with_stem(f"{name}-used"), full_page=True)
    for what, least in parts.items():
        if page.locator(what).count() < least:
            wrong.append(f"{name}: {page.locator(what).count()} of {what}, expected at least {least}")
    return wrong


def main() -> int:
    """Exit code 1 when anything is wrong."""
    parser = argparse.ArgumentParser(prog="python -m tests.browser", description=__doc__)
    parser.add_argument("--out", type=Path, required=True, help="folder for the screenshots")
    parser.add_argument("--chromium", default="/usr/bin/chromium")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    wrong: list[str] = []
    with served(options.out / "checkpoints") as urls, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for view, (width, height) in VIEWS.items():
            for scheme in ("light", "dark"):
                for kind, url in urls.items():
                    page = browser.new_page(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if scheme == "dark" else "light",
                    )
                    page.set_default_timeout(PATIENCE_MS)
                    wrong += look(page, url, PARTS[kind], options.out / f"{kind}-{view}-{scheme}.png")
                    page.close()
        browser.close()
    for line in wrong:
        print(line)
    print(f"{len(wrong)} wrong; screenshots in {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
