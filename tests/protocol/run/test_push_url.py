from __future__ import annotations

import pytest

from protocol.errors import ConfigError
from protocol.run.manifest import default_run_toml, parse_run_config
from protocol.run.push_url import url_problem
from tests.protocol.run.made_manifest import manifest_of


@pytest.mark.parametrize(
    "url", ["file:///mnt/models", "s3://bucket/a/b", "gs://bucket/a", "hf://me/model", "hf://datasets/me/runs/one"]
)
def test_an_address_of_a_known_kind_works(url: str) -> None:
    assert url_problem(url) == ""


@pytest.mark.parametrize(
    ("url", "found"),
    [
        ("s3://AKIAKEY:verysecret@bucket/a", "credentials or options"),
        ("s3://verysecret@bucket/a", "credentials or options"),
        ("s3://bucket/a?secret=verysecret", "credentials or options"),
        ("s3://bucket/a#verysecret", "credentials or options"),
        ("s3://key%40verysecret/a", "credentials or options"),
        ("ftp://host/verysecret", "an address of ftp; expected file://"),
        ("verysecret", "an address of no kind that is known"),
        ("verysecret://x", "an address of verysecret"),
        ("file://verysecret/folder", "without a whole path"),
        ("s3://", "without a path"),
        ("s3://bucket/verysecret folder", "a space or a control character"),
        ("s3://bucket/\x1b[2J", "a space or a control character"),
    ],
)
def test_an_address_that_cannot_be_is_refused_and_never_repeated(url: str, found: str) -> None:
    toml = default_run_toml().replace("keep = 3 ", f"push = {_quoted(url)}\nkeep = 3 ")
    with pytest.raises(ConfigError) as caught:
        parse_run_config(toml)
    line = caught.value.one_line()
    assert "checkpoint.push" in line
    assert found in line
    assert "://x" in url or "verysecret" not in line


def _quoted(url: str) -> str:
    return '"' + url.replace("\x1b", "\\u001b") + '"'


def test_the_address_is_the_host_s_alone_and_no_part_of_the_run() -> None:
    plain = parse_run_config(default_run_toml())
    pushed = parse_run_config(default_run_toml().replace("keep = 3 ", 'push = "file:///mnt/models"\nkeep = 3 '))
    assert pushed.checkpoint.push == "file:///mnt/models"
    assert pushed == plain
    assert manifest_of(plain).run_id == manifest_of(pushed).run_id
