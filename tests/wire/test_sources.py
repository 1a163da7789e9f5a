"""The header `Dualstream-Source`: what is serialized is parsed to the same, and nothing else is."""

import pytest
from hypothesis import given, strategies as st

from dualstream.wire.sources import MAX_OFFSET, Source, parse_source

texts = st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=256)
lags = st.none() | st.integers(0, MAX_OFFSET)


@st.composite
def some_sources(draw: st.DrawFn) -> Source:
    name, lag, first = draw(texts), draw(lags), draw(st.booleans())
    if draw(st.booleans()):
        start = draw(st.integers(0, MAX_OFFSET - 1))
        return Source(name, start, draw(st.integers(start, MAX_OFFSET - 1)), lag=lag, first=first)
    start_text = draw(texts)
    next_text = draw(texts.filter(lambda t: t != start_text))
    return Source(name, start_text, next=next_text, lag=lag, first=first)


@given(some_sources())
def test_a_header_is_parsed_to_what_it_was_made_of(source: Source):
    assert parse_source(source.header().encode()) == source


def test_headers_as_others_write_them():
    """Tokens, spaces and any order of parameters, as RFC 8941 permits."""
    expected = Source("kafka/clicks:0", 1, 2, lag=3)
    for text in (
        "kafka/clicks:0;from=1;to=2;lag=3",
        '  "kafka/clicks:0"; lag=3;  to=2; from=1 ',
        "kafka/clicks:0; from=001; to=2; lag=3",
        "kafka/clicks:0; from=1; to=2; first=?0; lag=3",
    ):
        assert parse_source(text.encode()) == expected
    assert parse_source(b'*; from="a"; next="b"') == Source("*", "a", next="b")
    for text in ("s;first;from=1;to=2", "s; from=1; to=2; first=?1"):
        assert parse_source(text.encode()) == Source("s", 1, 2, first=True)
    assert expected.following == 3
    assert Source("s", "a", next="b").following == "b"


@pytest.mark.parametrize(
    "text",
    [
        "s ;from=1;to=2",  # RFC 8941 allows no space in front of a semicolon
        "s;from =1;to=2",
        "s;from= 1;to=2",
        "s;from=1.5;to=2",
        "s;from=-1;to=2",
        "s;from=1;to=2;",
        "s;from=1;to=2;lag",
        "s;from=1;to=2;lag=?1",
        "s;from=token;next=other",
        "s;from;to=2",
        "s;from=1;to",
        "s;from=?1;to=2",
        "s;from=1;to=?1",
        's;from="a";next=?1',
        "s;from=1;to=2;first=1",
        's;from=1;to=2;first="?1"',
        "s;from=1;to=2;first=?2",
        "s;from=1;to=2;first;first",
        's;from="a;next="b"',
        's;from="\\a";next="b"',
        's;from="";next="b"',
        "s;From=1;to=2",
        "s from=1;to=2",
        '"s;from=1;to=2',
        ":YWJj:;from=1;to=2",
        "s\t;from=1;to=2",
        "é;from=1;to=2",
        f"s;from=1;to={MAX_OFFSET}",
    ],
)
def test_other_headers_are_refused(text: str):
    with pytest.raises(ValueError):
        parse_source(text.encode())


@pytest.mark.parametrize(
    "source",
    [
        Source("", 1, 2),
        Source("é", 1, 2),
        Source("a\nb", 1, 2),
        Source("s", True, 2),
        Source("s", 1, 2, next="3"),
        Source("s", 1),
        Source("s", "1", 2),
        Source("s", "1"),
        Source("s", 1, 2, lag=-1),
        Source("s", 2, 1),
        Source("s", 1, 2, first=1),
    ],
)
def test_invalid_sources_have_no_header(source: Source):
    with pytest.raises(ValueError):
        source.header()
