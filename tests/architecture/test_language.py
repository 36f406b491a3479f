"""Documents and the prose of the source can be read by a tired reader: short sentences, no riddles, no laboratory notes."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.architecture.language import (
    MEASUREMENTS,
    NOT_IN_THE_TREE,
    DocumentCounts,
    commentary,
    counts_of,
    documents,
    name_of,
    relative_subjects,
    relative_subjects_in,
    sentence_lengths,
    sentences,
    source_lab_notes,
    source_prose,
)
from tests.architecture.source import ROOMS, ROOT

README_LINES = 150
ROOT_README_LINES = 200
SENTENCE_MEDIAN = 18
SENTENCE_P90 = 29
LONGEST_SENTENCE = 50
LONGEST_PARAGRAPH = 110
SOURCE_P90 = 26

DOCUMENTS = [counts_of(path) for path in documents()]


def _named(counts: DocumentCounts) -> str:
    return counts.name


def test_there_are_documents_to_look_at() -> None:
    assert {"README.md", "CONTRIBUTING.md", "protocol/rounds/RULES.md", *MEASUREMENTS} <= {
        each.name for each in DOCUMENTS
    }


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_a_document_has_short_sentences_and_paragraphs_and_links_that_lead_somewhere(document: DocumentCounts) -> None:
    assert document.sentence_median <= SENTENCE_MEDIAN
    assert document.sentence_p90 <= SENTENCE_P90
    assert document.longest_sentence <= LONGEST_SENTENCE
    assert document.longest_paragraph <= LONGEST_PARAGRAPH
    assert document.dead_links == ()


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_a_document_names_paths_that_are_in_the_tree(document: DocumentCounts) -> None:
    assert document.dead_paths == ()


def test_paths_that_are_let_off_are_still_not_in_the_tree() -> None:
    assert [path for path in NOT_IN_THE_TREE if (ROOT / path).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_no_sentence_of_a_document_has_a_relative_clause_as_its_subject(document: DocumentCounts) -> None:
    assert document.relative_subjects == ()


@pytest.mark.parametrize("document", DOCUMENTS, ids=_named)
def test_figures_with_units_stand_in_the_results_and_the_log_alone(document: DocumentCounts) -> None:
    assert document.figures == ()


@pytest.mark.parametrize("document", [each for each in DOCUMENTS if each.name.endswith("README.md")], ids=_named)
def test_a_readme_fits_on_a_few_screens(document: DocumentCounts) -> None:
    assert document.lines <= (ROOT_README_LINES if document.name == "README.md" else README_LINES)


@pytest.mark.parametrize("room", ROOMS)
def test_no_sentence_of_the_source_has_a_relative_clause_as_its_subject(room: str) -> None:
    assert relative_subjects_in(source_prose(room)) == []


def test_no_docstring_or_comment_of_the_tests_has_a_relative_clause_as_its_subject() -> None:
    assert relative_subjects_in(commentary("tests")) == []


@pytest.mark.parametrize("room", ROOMS)
def test_the_source_tells_no_figures_of_a_machine_and_no_history(room: str) -> None:
    assert source_lab_notes(room) == []


@pytest.mark.parametrize("room", ROOMS)
def test_nine_in_ten_sentences_of_the_source_are_short(room: str) -> None:
    lengths = sentence_lengths(source_prose(room))
    assert lengths[int(len(lengths) * 0.9)] <= SOURCE_P90


def test_a_relative_clause_as_a_subject_is_found_and_a_question_is_none() -> None:
    text = "Who answers pings tells nothing. Peers answer. What now? Where it stands is said."
    assert relative_subjects(text) == ["Who answers pings tells nothing.", "Where it stands is said."]
    assert len(sentences(text)) == 4


def test_a_path_that_leads_nowhere_is_found_and_a_placeholder_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.architecture.language.ROOT", tmp_path)
    (tmp_path / "room").mkdir()
    page = tmp_path / "room" / "PAGE.md"
    page.write_text(
        "Read `room/PAGE.md` in `room/`, `gone/x.py`, `lost/`, `<name>/y.py`, `NAME/y.py`, `3/4` and `/`.\n"
    )
    assert counts_of(page).dead_paths == ("gone/x.py", "lost/")


def test_a_link_that_leads_nowhere_and_a_figure_with_a_unit_are_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.architecture.language.ROOT", tmp_path)
    page = tmp_path / "PAGE.md"
    page.write_text("# A title\n\nA round took 1.2 s. See [there](#a-title), [here](#nowhere) and [this](gone.md).\n")
    counts = counts_of(page)
    assert name_of(page) == counts.name
    assert counts.figures == ("1.2 s",)
    assert counts.dead_links == ("#nowhere", "gone.md")
