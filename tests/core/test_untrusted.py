"""JSON and YAML of strangers: whatever the text is, plain values or one kind of error."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.core.untrusted import (
    DEPTH_MAX,
    TOO_DEEP,
    YAML_BYTES_MAX,
    TooDeep,
    UnreadableText,
    read_json,
    read_message,
    read_object,
    read_yaml,
)

PIECES = (
    "[",
    "]",
    "{",
    "}",
    '"',
    "\\",
    ",",
    ":",
    "1",
    "e999",
    "-",
    "null",
    "a",
    " ",
    "\\ud800",
    "\ud800",
    "[" * 70,
)
VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
)


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


@given(VALUES)
def test_what_json_writes_is_read_as_json_reads_it(value: Any) -> None:
    try:
        text = json.dumps(value, ensure_ascii=False)
        text.encode()
    except UnicodeError:
        return
    assert read_json(text) == read_json(text.encode()) == read_message(text) == value


@given(st.lists(st.sampled_from(PIECES), max_size=40).map("".join) | st.text())
def test_any_text_is_read_or_refused(text: str) -> None:
    for read in (read_json, read_message, read_yaml):
        with suppress(UnreadableText):
            read(text)


@pytest.mark.parametrize(
    "text",
    [
        nested(DEPTH_MAX + 1),
        nested(1_500),
        "[" * 1_000_000,
        '{"a":' * 982 + "1" + "}" * 982,
        '"\\"' + '[{"a": "\\\\"},' * 2_000,
        "NaN",
        "-Infinity",
        "1e999",
        "-1.5E+400",
        "9" * 21,
        "-" + "9" * 5_000,
        '"\\ud800"',
        '"\\udc00\\ud800"',
        '"\ud800"',
        b"\xff",
        "",
        "{",
    ],
)
def test_what_exceeds_a_bound_is_refused(text: str | bytes) -> None:
    with pytest.raises(UnreadableText):
        read_json(text)


@pytest.mark.parametrize("text", ["1e300", str(2**64 - 1), '"\\ud83d\\ude00"', '"\\\\ud800"', nested(DEPTH_MAX)])
def test_what_is_within_the_bounds_is_read(text: str) -> None:
    assert read_json(text) == json.loads(text)


def test_brackets_in_strings_are_no_depth() -> None:
    value = ["[" * 100, '"' + "{" * 100, "\\", '\\"[[[' * 50]
    assert read_json(json.dumps(value)) == value


def test_of_a_key_that_occurs_twice_the_last_counts() -> None:
    assert read_json('{"a": 1, "a": 2}') == {"a": 2}


def test_a_text_beyond_the_size_is_refused() -> None:
    assert read_json("[1]", size_max=3) == [1]
    with pytest.raises(UnreadableText, match="more than 3 bytes"):
        read_json("[1] ", size_max=3)


def test_an_object_is_needed() -> None:
    with pytest.raises(UnreadableText, match="object"):
        read_object("[]")


def test_one_deep_value_of_a_message_hides_no_other() -> None:
    deep_memo = {"name": "memo", "context": "DEEP"}
    message = {
        "id": 7,
        "events": [deep_memo, {"name": "start", "context": {"a": "[[{"}}],
        "jobspec": {"version": 1, "attributes": {"user": "DEEP"}},
        "R": {"execution": {}},
    }
    text = json.dumps(message).replace('"DEEP"', nested(1_900))
    read = read_message(text)
    assert read["id"] == 7
    assert [event["name"] for event in read["events"]] == ["memo", "start"]
    assert read["events"][0]["context"] is TOO_DEEP
    assert read["events"][1]["context"] == {"a": "[[{"}
    assert read["jobspec"] is TOO_DEEP
    assert read["R"] == {"execution": {}}


@given(st.integers(1, 2_000), st.sampled_from(["[", "{"]))
def test_a_message_is_cut_only_beyond_the_bound(depth: int, bracket: str) -> None:
    value = nested(depth) if bracket == "[" else '{"a":' * depth + "1" + "}" * depth
    read = read_message(f'{{"a": {value}, "b": [{{"c": {value}}}], "d": 1}}')
    assert read["d"] == 1
    assert isinstance(read["b"][0]["c"], TooDeep) == (depth + 3 > DEPTH_MAX)


@pytest.mark.parametrize(
    "text",
    [
        "[" * 400,
        "- " * 1_000,
        "!!bool perhaps",
        '!!int ""',
        "!!timestamp noon",
        "a: &a [*a]\n? *a\n: 1",
        "\0",
        "x" * (YAML_BYTES_MAX + 1),
        "a0: &a0 {k: 1}\n" + "".join(f"a{i}: &a{i} {{<<: [*a{i - 1}, *a{i - 1}]}}\n" for i in range(1, 40)),
    ],
)
def test_yaml_beyond_a_bound_is_refused(text: str) -> None:
    with pytest.raises(UnreadableText):
        read_yaml(text)


def test_yaml_within_the_bounds_is_read() -> None:
    assert read_yaml("a: &a {b: 1}\nc: {<<: *a, d: [1, 2]}") == {"a": {"b": 1}, "c": {"b": 1, "d": [1, 2]}}
