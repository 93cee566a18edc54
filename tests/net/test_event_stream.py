from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.net.event_stream import MOST_EVENT_BYTES, EventStream, EventTooLong

data_lines = st.binary(max_size=12).filter(lambda line: b"\n" not in line and b"\r" not in line)
events = st.lists(st.lists(data_lines, min_size=1, max_size=3), max_size=5)


def pieces(whole: bytes, cuts: list[int]) -> list[bytes]:
    bounds = sorted({0, len(whole), *(cut % (len(whole) + 1) for cut in cuts)})
    return [whole[a:b] for a, b in pairwise(bounds)]


@given(events, st.sampled_from([b"\n", b"\r\n", b"\r"]), st.lists(st.integers(0, 1 << 16), max_size=20))
def test_events_come_out_whole_wherever_the_network_cut_them(
    sent: list[list[bytes]], line_end: bytes, cuts: list[int]
) -> None:
    whole = b"".join(
        b": a comment" + line_end + b"".join(b"data: " + line + line_end for line in lines) + line_end
        for lines in sent
    )
    stream = EventStream()

    received = [event for piece in pieces(whole, cuts) for event in stream.push(piece)]

    assert received == [b"\n".join(lines) for lines in sent]


@given(st.lists(st.sampled_from([b"data: a", b"data: ", b"data:b", b": c", b"", b"\rdata: d"]), max_size=12))
def test_whole_reads_say_what_single_bytes_say(lines: list[bytes]) -> None:
    """The short way for reads of whole events must not see others than the long one."""
    at_once, bit_by_bit = EventStream(), EventStream()
    whole = b"".join(line + b"\n\n" for line in lines)
    for stream in (at_once, bit_by_bit):
        assert stream.push(b"data: first\n\n") == [b"first"]

    assert at_once.push(whole) == [
        event for place in range(len(whole)) for event in bit_by_bit.push(whole[place : place + 1])
    ]


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        (b"data:no space\n\n", [b"no space"]),
        (b"data:  two spaces\n\n", [b" two spaces"]),
        (b"data\n\n", [b""]),
        (b"\n\n\n", []),
        (b"event: ping\nid: 7\nretry: 10\n\n", []),
        (b"database: no\ndata: yes\n\n", [b"yes"]),
        (b"\xef\xbb\xbfdata: after a byte order mark\n\n", [b"after a byte order mark"]),
        (b"data: unfinished\n", []),
        (b"data: mixed\r\n\r\ndata: ends\r\rdata: here\n\n", [b"mixed", b"ends", b"here"]),
    ],
)
def test_the_rules_of_the_standard_hold(sent: bytes, received: list[bytes]) -> None:
    assert EventStream().push(sent) == received


@pytest.mark.parametrize("start", [b"", b"data: ", b": comment "])
def test_a_line_without_end_is_given_up_before_it_fills_the_memory(start: bytes) -> None:
    stream = EventStream()
    stream.push(start)

    for _ in range(MOST_EVENT_BYTES // 65536 - 1):
        stream.push(b"x" * 65536)

    with pytest.raises(EventTooLong, match=str(MOST_EVENT_BYTES)):
        stream.push(b"x" * 65537)


def test_comments_between_events_may_go_on_for_ever() -> None:
    stream = EventStream()

    for _ in range(2 * MOST_EVENT_BYTES // 65536):
        assert stream.push(b": still here" * 5461 + b"\n\n") == []

    assert stream.push(b"data: at last\n\n") == [b"at last"]
