"""Which requests with a key stand in a body: in columns, against one header after the other."""

from hypothesis import given, strategies as st

from dualstream.service.journal.record import (
    KeyKind,
    decode_merged,
    encode_control,
    encode_opening,
    encode_rows,
    make_key,
)
from dualstream.service.replica.first_responses import KeyedRequest, KeyedRequests

FIRST = 7
# A chunk of a long body is a request of its own.
OPENING = (KeyKind.REQUEST, KeyKind.CHUNK)


def part(count: int, key: bytes | None = None, continues: bool = False) -> bytes:
    """Rows, or the opening of a request that has none of its own."""
    if count == 0:
        return encode_opening(key)
    return encode_rows([0] * (count + 1), [], [], [1.0] * count, key=key, continues=continues)


@st.composite
def requests(draw) -> bytes:
    """The parts of one request, of any kind, some of whose rows have ids."""
    key = draw(st.none() | st.builds(make_key, st.sampled_from(KeyKind), st.sampled_from("kl")))
    counts = draw(st.lists(st.integers(1, 3), max_size=3))
    ids = draw(st.lists(st.none() | st.sampled_from("abc"), min_size=3, max_size=3))
    first = draw(st.integers(0 if key is not None and key[0] in OPENING else 1, 3))
    if key is None:
        return part(first)
    rest = zip(counts, ids, strict=False)
    return part(first, key) + b"".join(
        part(count, None if id_ is None else make_key(KeyKind.SAMPLE, id_), continues=True)
        for count, id_ in rest
    )


def one_by_one(headers, first_seq: int, seq: int, most: int) -> list[KeyedRequest]:
    results, opened, at = [], None, FIRST
    for header in headers:
        if not header.continues:
            is_request = header.key is not None and header.key[0] in OPENING
            opened = KeyedRequest(header.key, at, 0) if is_request else None
            results += [opened] if is_request else []
        elif opened is not None and header.key is not None and header.key[0] == KeyKind.SAMPLE:
            opened.ids += (header.key,)
        if opened is not None:
            opened.count += header.count
        at += header.count
    whole = [
        request
        for request in results
        if request.count
        and first_seq <= request.first_seq
        and request.first_seq + request.count <= seq + 1
    ]
    return whole[max(0, len(whole) - most) :]


control = st.just(encode_control("pause"))


@given(st.lists(requests() | control, min_size=1), st.integers(0, 9), st.integers(0, 30), st.data())
def test_the_requests_within_some_rows_are_those_of_the_headers(bodies, skipped, rows, data):
    parts, _ = decode_merged(b"".join(bodies))
    most = data.draw(st.integers(0, 5) | st.just(1000))
    first, last = FIRST + skipped, FIRST + skipped + rows
    assert KeyedRequests(parts, FIRST).within(first, last, most) == one_by_one(
        parts, first, last, most
    )
