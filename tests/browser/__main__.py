"""`python -m tests.browser --out DIR`: the status pages in headless Chromium, looked at by a program and then by eye.

Needs the extra `browser` and a chromium (`--chromium`). Every look fails on an error in the page's console, on a request that leaves
this machine, on markup of a stranger that became an element, and on a page wider than its window.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import trio
from playwright.sync_api import Page, sync_playwright

from averaging.network.http import bind_http, serve_http
from coordinator.run_events import RunEvent
from coordinator.status_page import RunSource, status_app
from tests.browser.runs import events, moment

VIEWS: Final = {"desktop": (1280, 900), "phone": (390, 844)}
SETTLE_MS: Final = 1500


@contextmanager
def served(folder: Path) -> Iterator[tuple[str, str]]:
    """The host's view and the public one, by URL."""
    import threading

    unix_s = int(time.time())
    book = events(folder, unix_s)

    def newest(most: int) -> tuple[RunEvent, ...]:
        return tuple(book.newest(most))

    source = RunSource(partial(moment, folder, unix_s), newest, lambda path: f"verified: {path.name}")
    listeners = bind_http("127.0.0.1", 0), bind_http("127.0.0.1", 0)
    urls = [f"http://127.0.0.1:{listener.getsockname()[1]}/" for listener in listeners]
    tokens: list[trio.lowlevel.TrioToken] = []
    scopes: list[trio.CancelScope] = []

    async def serve() -> None:
        async with trio.open_nursery() as nursery:
            tokens.append(trio.lowlevel.current_trio_token())
            scopes.append(nursery.cancel_scope)
            for listener, is_public in zip(listeners, (False, True), strict=True):
                nursery.start_soon(serve_http, listener, status_app(source, is_public=is_public))

    thread = threading.Thread(target=trio.run, args=(serve,))
    thread.start()
    try:
        yield urls[0], urls[1]
    finally:
        trio.from_thread.run_sync(scopes[0].cancel, trio_token=tokens[0])
        thread.join()


def look(page: Page, url: str, out: Path, name: str) -> list[str]:
    """One page in one window; what is wrong with it."""
    wrong: list[str] = []
    page.on("console", lambda m: wrong.append(f"{name}: console: {m.text}") if m.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(f"{name}: {error}"))
    page.on("request", lambda r: None if r.url.startswith(url) else wrong.append(f"{name}: request to {r.url}"))
    page.on("dialog", lambda dialog: (wrong.append(f"{name}: a stranger's script ran"), dialog.dismiss()))
    page.goto(url)
    page.wait_for_selector("#timeline .cell", timeout=10_000)
    page.wait_for_timeout(SETTLE_MS)
    page.screenshot(path=out / f"{name}.png", full_page=True)
    if page.locator("img").count():
        wrong.append(f"{name}: markup of a stranger became an element")
    too_wide = page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth")
    if too_wide > 0:
        wrong.append(f"{name}: {too_wide} pixels wider than the window")
    for what, least in (("#peers tr", 5), ("#events li", 10), ("#checkpoints details", 4), ("canvas", 2), (".card", 6)):
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
    with served(options.out) as (own, public), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=["--no-sandbox"])
        for view, (width, height) in VIEWS.items():
            for scheme in ("light", "dark"):
                for kind, url in (("host", own), ("public", public)):
                    page = browser.new_page(
                        viewport={"width": width, "height": height},
                        color_scheme="dark" if scheme == "dark" else "light",
                    )
                    wrong += look(page, url, options.out, f"{kind}-{view}-{scheme}")
                    page.close()
        browser.close()
    for line in wrong:
        print(line)
    print(f"{len(wrong)} wrong; screenshots in {options.out}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
