"""The section [page] of run.toml: the host's words to people about the run.

They are the host's and not the run's: no manifest has them, so they may change at a restart and leave the run's id as it is.
"""

from __future__ import annotations

import re
from typing import Annotated, Final

from pydantic import AfterValidator, Field

from protocol.run.section import Section

MAX_LETTERS: Final = 500
_MAX_CONTACT: Final = 254
"""As long as a mail address may be."""

_MAIL: Final = re.compile(r"[A-Za-z0-9._%+-]{1,64}@[A-Za-z0-9-]+(\.[A-Za-z0-9-]+)+")
_INVITE: Final = re.compile(r"potluck\d+:")
_LINK: Final = re.compile(r"https://[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?(?::\d{1,5})?(?:[/?#][!-~]*)?")


def _checked_text(text: str) -> str:
    text = text.strip()
    if not all(letter.isprintable() or letter == "\n" for letter in text):
        raise ValueError("a letter that cannot be shown; expected plain text, of one or more lines")
    if _INVITE.search(text):
        raise ValueError(
            "an invite, which would admit whoever reads the public page; expected how to ask for one, or a link"
        )
    return text


def _checked_contact(text: str) -> str:
    text = _checked_text(text)
    if text and not _MAIL.fullmatch(text) and not _LINK.fullmatch(text):
        raise ValueError("neither a mail address nor a link; expected name@example.org or https://example.org/about")
    return text


class PageSection(Section):
    """The host's words on the pages of the run. Peers do not get them, and they may change at any start of the host."""

    description: Annotated[str, Field(max_length=MAX_LETTERS), AfterValidator(_checked_text)] = ""
    """The purpose of the run, in at most 500 letters of plain text."""

    contact: Annotated[str, Field(max_length=_MAX_CONTACT), AfterValidator(_checked_contact)] = ""
    """A way to reach the host: a mail address, or a link that begins with https."""

    join: Annotated[str, Field(max_length=MAX_LETTERS), AfterValidator(_checked_text)] = ""
    """How to get an invite: a sentence, a link or both. Never an invite itself, which everybody could read and use."""

    def as_json(self) -> dict[str, str]:
        """The words that are given, by their keys."""
        return {key: text for key, text in self.model_dump().items() if text}


NO_WORDS: Final = PageSection()
