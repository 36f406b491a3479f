import pytest
from pydantic import ValidationError

from protocol.run.data_section import DataSection, data_contradiction


def test_a_section_that_says_nothing_is_pythons_library_and_writes_only_its_first_keys() -> None:
    assert sorted(DataSection().model_dump()) == ["glob", "heldout_every", "shard_bytes", "source"]
    assert sorted(DataSection().model_dump(mode="json")) == ["glob", "heldout_every", "shard_bytes", "source"]
    assert DataSection(prose="help/*.txt").model_dump()["prose"] == "help/*.txt"


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"source": "text"}, r'source = "text" needs glob = "corpus/\*\*/\*\.txt" below \[data\]'),
        ({"source": "jsonl"}, r'needs glob = "corpus/\*\*/\*\.jsonl" below'),
        ({"glob": "corpus/*.txt"}, "a glob belongs to the sources"),
        ({"source": "hf"}, 'a dataset belongs to the source "hf"'),
        ({"source": "hf", "dataset": "hf://nobody"}, "is no name on the Hub"),
        ({"configuration": "en"}, "belongs to a dataset on the Hub"),
        ({"split": "test"}, 'does not belong to source = "python-stdlib"'),
        ({"field": "body"}, 'does not belong to source = "python-stdlib"'),
        ({"source": "domains"}, 'domains belong to the source "domains"'),
        ({"domains": "python"}, 'domains belong to the source "domains"'),
        (
            {"source": "domains", "domains": "python, latin"},
            r"expected some of python, english, c\+\+, stubs, each once",
        ),
        ({"source": "domains", "domains": "python, python"}, "each once"),
        ({"end_token": "<end>"}, "belongs to a tokenizer.json"),
    ],
)
def test_keys_of_another_source_are_refused(values: dict[str, str], reported: str) -> None:
    with pytest.raises(ValidationError, match=reported):
        DataSection.model_validate(values)


def test_domains_are_named_by_commas() -> None:
    assert DataSection(source="domains", domains="c++,stubs , python").domain_names == ("c++", "stubs", "python")
    assert DataSection().domain_names == ()


def test_shapes_of_names_are_told_in_words() -> None:
    for values, said in (({"split": "../b"}, "the name of a split"), ({"tokenizer": "gpt2"}, "path of a tokenizer")):
        with pytest.raises(ValidationError, match=said):
            DataSection.model_validate(values)


HF = {"kind": "hf", "dataset": "hf://owner/name"}
PARTS = ["train", "train-2.x", "train[:1%]", "train[10%:]", "train[-5:]", "train[1000:2000]", "train[:]"]
NO_PARTS = ["", "../b", "train+test", "train[1]", "train[:1%](closest)", "train[a:b]", "train[:1%", "a/b[:1]", "[:1%]"]


@pytest.mark.parametrize("split", PARTS)
def test_a_split_or_a_part_of_it_is_taken_of_one_source_and_of_several(split: str) -> None:
    (mixed,) = DataSection.model_validate({"source": [{**HF, "split": split}]}).parts
    assert mixed.split == DataSection(source="hf", dataset="hf://owner/name", split=split).split == split


@pytest.mark.parametrize("split", NO_PARTS)
def test_another_pattern_of_splits_is_refused_with_what_works_of_one_source_and_of_several(split: str) -> None:
    for values in ({"source": [{**HF, "split": split}]}, {"source": "hf", "dataset": "hf://a/b", "split": split}):
        with pytest.raises(
            ValidationError, match=r"the name of a split, such as train, or a part of one, such as train\[:1%\]"
        ):
            DataSection.model_validate(values)


CHAT = {"kind": "jsonl", "glob": "*.jsonl", "format": "chat", "weight": 3.0, "name": "talk"}
BOOKS = {"kind": "text", "glob": "*.txt"}


def test_a_mixture_has_its_sources_as_sections_of_their_own() -> None:
    section = DataSection.model_validate({"source": [CHAT, BOOKS], "chat_template": "t.jinja", "isolate": True})
    assert [(part.source, part.format, part.columns) for part in section.parts] == [
        ("jsonl", "chat", ("messages",)),
        ("text", "text", ("text",)),
    ]
    assert all(part.isolate for part in section.parts)
    assert (section.weights, section.source_names) == ((3.0, 1.0), ("talk", "source 2"))
    assert section.counts_some
    assert DataSection.model_validate_json(section.model_dump_json()) == section
    plain = DataSection()
    assert (plain.parts, plain.weights, plain.source_names, plain.counts_some) == ((plain,), (1.0,), (), False)


@pytest.mark.parametrize(
    ("values", "reported"),
    [
        ({"source": []}, "a mixture has sections"),
        ({"source": "mixture"}, "a mixture has sections"),
        ({"source": [CHAT, {"kind": "text"}]}, 'source 2: source = "text" needs glob'),
        ({"source": [{**CHAT, "weight": 0.0}]}, "greater than 0"),
        ({"source": [{**BOOKS, "format": "chat"}]}, 'format = "chat" belongs to the sources'),
        ({"source": [CHAT], "glob": "*.txt"}, "stand in the sections"),
        ({"source": [{**CHAT, "path": "x"}]}, "Extra inputs"),
        ({"source": "jsonl", "glob": "*", "format": "completion", "field": "a"}, "expected none"),
        ({"source": "jsonl", "glob": "*", "chat_template": "t"}, "belongs to format"),
    ],
)
def test_sources_and_formats_that_do_not_fit_are_refused(values: dict[str, object], reported: str) -> None:
    with pytest.raises(ValidationError, match=reported):
        DataSection.model_validate(values)


def test_data_that_a_kind_of_run_cannot_have_is_refused_in_a_line() -> None:
    isolated = DataSection(isolate=True)
    assert "expected false" in data_contradiction(isolated, "pipeline")
    assert "expected one source" in data_contradiction(DataSection.model_validate({"source": [CHAT]}), "expert")
    assert [data_contradiction(isolated, kind) for kind in ("data", "expert")] == ["", ""]
