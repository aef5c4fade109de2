"""The log of a run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nodemanager.ensemble.inputs import Answered, Begun, Input, JobEvent, Refused, Tick, read_inputs, write_inputs

TIMES = st.floats(0, 4e9)
TEXTS = st.text(max_size=20)
INPUTS: st.SearchStrategy[Input] = st.one_of(
    st.builds(Begun, TIMES),
    st.builds(Tick, TIMES),
    st.builds(Refused, TEXTS, TIMES, TEXTS),
    st.builds(Answered, TEXTS, TIMES, TEXTS, st.none() | st.dictionaries(TEXTS, TEXTS)),
    st.builds(
        JobEvent,
        st.integers(0, 2**63),
        TEXTS,
        TIMES,
        group=TEXTS,
        key=TEXTS,
        status=st.integers(0, 65535),
        kind=TEXTS,
        severity=st.integers(0, 7),
    ),
)


@given(st.lists(INPUTS))
def test_what_is_written_is_read_again(inputs: list[Input]) -> None:
    assert read_inputs(write_inputs(inputs)) == inputs


@pytest.mark.parametrize("line", ["[]", "5", '["job", 1]', '["dance", 1.0]', "[", '["tick", 1, 2]'])
def test_a_damaged_log_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        read_inputs(line + "\n")
