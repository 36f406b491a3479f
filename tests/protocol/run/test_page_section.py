"""The host's words about the run."""

from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.identity.identity import Identity
from protocol.run.default_run import DEFAULT_TOML
from protocol.run.manifest import RunFile, RunManifest, default_run_toml, parse_run_config
from tests.protocol.run.made_manifest import manifest_of

HOST = Identity(b"h" * 32)
WORDS = '[page]\ndescription = "Our letters"\ncontact = "host@example.org"\njoin = "ask at https://example.org/chat"\n'


def _run(words: str) -> RunFile:
    return parse_run_config(default_run_toml() + words)


def _manifest(config: RunFile) -> RunManifest:
    return manifest_of(config, host_public_key=HOST.public_key.hex())


def test_words_about_the_run_are_in_no_manifest_and_leave_the_runs_id_as_it_is() -> None:
    told, plain = _manifest(_run(WORDS)), _manifest(_run(""))
    assert told.canonical_bytes() == plain.canonical_bytes()
    assert b"page" not in told.canonical_bytes()
    assert told.run_id == plain.run_id
    assert _run(WORDS) == _run("")


def test_a_manifest_with_words_of_a_host_is_none_of_this_release() -> None:
    text = _manifest(_run("")).canonical_bytes().replace(b'"config":{', b'"config":{"page":{},', 1)
    with pytest.raises(ValueError, match="Extra inputs are not permitted"):
        RunManifest.model_validate_json(text)


def test_words_are_kept_by_their_keys_and_those_left_out_are_not() -> None:
    assert _run(WORDS).page.as_json() == {
        "description": "Our letters",
        "contact": "host@example.org",
        "join": "ask at https://example.org/chat",
    }
    assert _run('[page]\ndescription = """\nTwo\nlines\n"""\n').page.as_json() == {"description": "Two\nlines"}
    assert _run("").page.as_json() == {}


def test_the_template_has_the_words_as_comments_that_work() -> None:
    lines = DEFAULT_TOML[DEFAULT_TOML.index("# [page]") :].split("\n\n")[0].splitlines()
    assert set(_run("\n" + "\n".join(line.removeprefix("# ") for line in lines)).page.as_json()) == {
        "description",
        "contact",
        "join",
    }


@pytest.mark.parametrize("contact", ["a.b+c@example.org", "https://example.org", "https://example.org:8443/a?b=c#d"])
def test_a_contact_is_a_mail_address_or_a_link(contact: str) -> None:
    assert _run(f'[page]\ncontact = "{contact}"\n').page.contact == contact


@pytest.mark.parametrize(
    "contact",
    [
        "http://example.org",
        "https://",
        "https://user:word@example.org",
        "https://example.org/a b",
        "https://example.org:port",
        "https://[example",
        "javascript:alert(1)",
        "me@example",
        "me@example.org?subject=x",
        "ask me",
    ],
)
def test_any_other_contact_is_refused(contact: str) -> None:
    with pytest.raises(ConfigError, match=r"page\.contact: neither a mail address nor a link"):
        _run(f'[page]\ncontact = "{contact}"\n')


@pytest.mark.parametrize("key", ["description", "contact", "join"])
def test_an_invite_is_refused_in_all_words_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match=rf"page\.{key}: an invite") as caught:
        _run(f'[page]\n{key} = "potluck join potluck1:c2VjcmV0"\n')
    assert "c2VjcmV0" not in str(caught.value)


def test_too_long_a_description_and_letters_that_cannot_be_shown_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"page\.description .* at most 500 characters"):
        _run(f'[page]\ndescription = "{"a" * 501}"\n')
    with pytest.raises(ConfigError, match=r"page\.join: a letter that cannot be shown"):
        _run('[page]\njoin = "a\\u202eb"\n')
