import pytest

from pipeline.sources.json_files import parse_object
from pipeline.store.errors import DataFormatError


@pytest.mark.parametrize("text", ["[" * 100_000, "[1]", "x", b"\xff", '{"a": '])
def test_what_is_no_object_is_refused(text):
    with pytest.raises(DataFormatError, match=r"^a\.json: "):
        parse_object(text, "a.json")


def test_halves_of_characters_are_refused():
    assert parse_object('{"a": "\\ud83d\\ude00"}', "a.json") == {"a": "\U0001f600"}
    for text in ('{"a": "\\ud83d"}', '{"\\ud83d": 1}'):
        with pytest.raises(DataFormatError, match="surrogates"):
            parse_object(text, "a.json")
