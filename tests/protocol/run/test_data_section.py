import pytest
from pydantic import ValidationError

from protocol.run.data_section import DataSection


def test_a_section_that_says_nothing_is_pythons_library_and_writes_only_its_first_keys() -> None:
    assert sorted(DataSection().model_dump()) == ["glob", "heldout_every", "shard_bytes", "source"]
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
