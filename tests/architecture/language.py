"""Measures of the language: sentences, paragraphs, figures, and links, in documents and in the prose of the source."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

from tests.architecture.source import ROOT, Module, modules

MEASUREMENTS = ("tests/benchmarks/RESULTS.md", "tests/benchmarks/LOG.md")
"""The only documents that hold figures of a machine."""

_FIGURE = re.compile(
    r"(?<![\w.`-])\d[\d,.]*(?: to \d[\d,.]*)?[ -]?"
    r"(?:s|ms|us|min|minutes?|seconds?|hours?|[kMGT]?i?B(?:/s)?|[kMG]bit(?:/s)?|nats|times|CPU s|%)(?![\w/])"
)
_LAB_WORDS = re.compile(
    r"\b(?:two cores|CPU s(?:econds)?|processor[- ]seconds?|measured (?:here|on|at|as)"
    r"|tried and left out|no longer|used to be)\b"
)
_RELATIVE_SUBJECT = re.compile(r"^(?:Who|Whom|Whose|What|Where|Whoever|Whatever)\b")
_PATH = re.compile(r"`([^`\s]*/[^`\s]*\.(?:py|md|toml)|[^`\s]*[^`\s/]/)`")
_PLACEHOLDER = re.compile(r"<\w+>|\*|(?:^|/)(?:NAME|FILE|FOLDER)\b|^(?:tests/)?a/")
NOT_IN_THE_TREE = {
    "averaging/arithmetic/outer/heavy_ball.py": "the example of CONTRIBUTING.md",
    "averaging/codecs/bf16.py": "the example of CONTRIBUTING.md",
    "units/": "in a host's state folder",
}
"""Paths that documents name though no such file is in the tree, and why."""

_ABBREVIATIONS = re.compile(r"\b(e\.g|i\.e|cf|vs|etc|Eq|Sec|Fig|No|al)\.")


@dataclass(frozen=True)
class Prose:
    """A piece of prose and the place where it stands."""

    where: str
    text: str


def documents() -> list[Path]:
    """Every Markdown file of the house."""
    hidden = ("/.", "/node_modules/")
    return [
        path for path in sorted(ROOT.rglob("*.md")) if not any(part in f"/{path.relative_to(ROOT)}" for part in hidden)
    ]


def name_of(path: Path) -> str:
    """The path from the root, with forward slashes."""
    return path.relative_to(ROOT).as_posix()


def _plain(markdown: str) -> str:
    """Markdown without code, tables, headings, links' targets and pictures."""
    text = re.sub(r"```.*?```", "", markdown, flags=re.DOTALL)
    text = re.sub(r"<[^>\n]+>", "", text)
    text = re.sub(r"^\s*(\||#|!\[).*$", "", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"`[^`\n]*`", "Code", text)


def paragraphs(markdown: str) -> list[str]:
    """Paragraphs and list items of a document, each on one line."""
    found: list[str] = []
    for block in re.split(r"\n\s*\n", _plain(markdown)):
        items = re.split(r"^\s*(?:[-*]|\d+\.)\s+", block, flags=re.MULTILINE)
        found += [" ".join(item.split()) for item in items if item.strip()]
    return found


def sentences(text: str) -> list[str]:
    """Sentences of a paragraph. A colon ends none."""
    guarded = _ABBREVIATIONS.sub(r"\1", text)
    return [part for part in re.split(r"(?<=[.!?])[)\"']?\s+(?=[A-Z\"'(`])", guarded) if part.strip()]


def _words(text: str) -> int:
    return len(re.findall(r"[A-Za-z][\w'/-]*", text))


@dataclass(frozen=True)
class DocumentCounts:
    """The measures of one document's style. Lengths of sentences and paragraphs are in words."""

    name: str
    lines: int
    words: int
    sentence_median: float
    sentence_p90: int
    longest_sentence: int
    longest_paragraph: int
    relative_subjects: tuple[str, ...]
    figures: tuple[str, ...]
    dead_links: tuple[str, ...]
    dead_paths: tuple[str, ...]


def _dead_links(path: Path, text: str) -> list[str]:
    targets = re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    found = []
    for target in targets:
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        linked = path.parent / file if file else path
        if not linked.exists() or (
            anchor and linked.suffix == ".md" and anchor not in anchors(linked.read_text("utf8"))
        ):
            found.append(target)
    return found


def _dead_paths(path: Path, text: str) -> list[str]:
    """Paths in backticks that exist neither from the root nor from the document's folder. Placeholders are none."""
    named = _PATH.findall(re.sub(r"```.*?```", "", text, flags=re.DOTALL))
    return [
        each
        for each in named
        if not (_PLACEHOLDER.search(each) or each in NOT_IN_THE_TREE)
        and not ((ROOT / each).exists() or (path.parent / each).exists())
    ]


def anchors(markdown: str) -> set[str]:
    """Anchors of a document's headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", markdown, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


def relative_subjects(text: str) -> list[str]:
    """Sentences that begin with Who, What or Where as a subject. Questions are none."""
    return [
        each for each in sentences(text) if _RELATIVE_SUBJECT.match(each.lstrip("(*_\"'")) and not each.endswith("?")
    ]


def counts_of(path: Path) -> DocumentCounts:
    """The counts of one document."""
    text = path.read_text(encoding="utf8")
    pieces = paragraphs(text)
    found = [sentence for piece in pieces for sentence in sentences(piece)]
    lengths = sorted(_words(sentence) for sentence in found if _words(sentence) > 2) or [0]
    name = name_of(path)
    return DocumentCounts(
        name=name,
        lines=len(text.splitlines()),
        words=sum(_words(piece) for piece in pieces),
        sentence_median=median(lengths),
        sentence_p90=lengths[int(len(lengths) * 0.9)],
        longest_sentence=lengths[-1],
        longest_paragraph=max((_words(piece) for piece in pieces), default=0),
        relative_subjects=tuple(each for piece in pieces for each in relative_subjects(piece)),
        figures=() if name in MEASUREMENTS else tuple(match for piece in pieces for match in _FIGURE.findall(piece)),
        dead_links=tuple(_dead_links(path, text)),
        dead_paths=tuple(_dead_paths(path, text)),
    )


def _docstrings(module: Module) -> Iterator[Prose]:
    """Every bare string of a module: docstrings of modules, classes, functions, attributes and constants."""
    for node in module.nodes:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield Prose(f"{module.path}:{node.lineno}", node.value.value)


def _comments(module: Module) -> Iterator[Prose]:
    """Comments, those on lines one after another as one."""
    start, last, parts = 0, -1, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(module.text).readline):
        if token.type == tokenize.COMMENT:
            line, text = token.start[0], token.string.lstrip("# ")
            if line != last + 1 and parts:
                yield Prose(f"{module.path}:{start}", " ".join(parts))
                parts = []
            start = start if parts else line
            parts.append(text)
            last = line
    if parts:
        yield Prose(f"{module.path}:{start}", " ".join(parts))


def _messages(module: Module) -> Iterator[Prose]:
    """Strings that a person may read: those with at least three words, outside docstrings."""
    bare = {id(node.value) for node in module.nodes if isinstance(node, ast.Expr)}
    inside = {id(part) for node in module.nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in module.nodes:
        if id(node) in bare or id(node) in inside:
            continue
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and node.value.count(" ") >= 2:
            yield Prose(f"{module.path}:{node.lineno}", node.value)
        elif isinstance(node, ast.JoinedStr):
            parts = [each.value if isinstance(each, ast.Constant) else "N" for each in node.values]
            yield Prose(f"{module.path}:{node.lineno}", "".join(str(part) for part in parts))


@cache
def commentary(*folders: str) -> tuple[Prose, ...]:
    """Docstrings and comments, without messages."""
    return tuple(prose for module in modules(*folders) for prose in (*_docstrings(module), *_comments(module)))


@cache
def source_prose(*folders: str) -> tuple[Prose, ...]:
    """Docstrings, comments and messages of the source."""
    return (*commentary(*folders), *(prose for module in modules(*folders) for prose in _messages(module)))


def _flat(text: str) -> list[str]:
    return [" ".join(block.split()) for block in re.split(r"\n\s*\n|\n(?=\s+[\w ,]+: )", text)]


def relative_subjects_in(pieces: Iterable[Prose]) -> list[str]:
    """Sentences that begin with Who, What or Where as a subject, each with its place."""
    return [
        f"{prose.where} {sentence[:90]}"
        for prose in pieces
        for block in _flat(prose.text)
        for sentence in relative_subjects(block)
    ]


def source_lab_notes(*folders: str) -> list[str]:
    """Places of the source that tell of a machine or of what was tried: they belong into the log of measurements."""
    return [
        f"{prose.where} {match.group(0)}"
        for prose in source_prose(*folders)
        for match in _LAB_WORDS.finditer(" ".join(prose.text.split()))
    ]


def sentence_lengths(pieces: Iterable[Prose]) -> list[int]:
    """Words of each sentence of three words or more, sorted."""
    texts = (sentence for prose in pieces for block in _flat(prose.text) for sentence in sentences(block))
    return sorted(count for count in map(_words, texts) if count > 2)
