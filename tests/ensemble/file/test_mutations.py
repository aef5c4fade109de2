"""Damaged ensemble files: each is read, or refused with a list of faults. A seed determines each file."""

from __future__ import annotations

import random
import re
from pathlib import Path

import pytest

from nodemanager.ensemble.file.schema import EnsembleError, SchemaFault, read_ensemble
from tests.paths import ROOT

FILES = sorted((ROOT / "tests" / "data" / "ensembles").glob("*.yaml"))
FILES_PER_RUN = 300
PIECES = (
    *("[", "]", "{", "}", ":", "- ", "*a ", "&a ", "<<: ", "? ", "| ", "> ", "'", '"', "\\", "\t", "\0", "\u0085"),
    *("!!int ", "!!float ", "!!timestamp ", "!!bool ", "!!binary ", "!!set ", "!!omap ", "!!python/object:x "),
    *("%YAML 9.9\n", "---\n", "...\n", "1e999", "-.inf", ".nan", "0x", "1:60:60", "2026-13-01", "\ud800"),
    *("9" * 400, "9" * 5_000, "[" * 400, "- " * 500, "{a: " * 300, "\n", "  ", "true", "null", "> 5", "-1", "1.5"),
)
_VALUE = re.compile(r":[ ]+\S.*")


def damaged(seed: int) -> str:
    chance = random.Random(seed)
    text = chance.choice(FILES).read_text(encoding="utf-8")
    for _ in range(chance.randint(1, 6)):
        begin = chance.randrange(len(text) + 1)
        end = min(len(text), begin + chance.randint(0, 12))
        values = list(_VALUE.finditer(text))
        match chance.randrange(3 if values else 2):
            case 0:
                text = text[:begin] + chance.choice(PIECES) + text[begin:]
            case 1:
                text = text[:begin] + chance.choice(PIECES) + text[end:]
            case _:
                value = chance.choice(values)
                text = f"{text[: value.start()]}: {chance.choice(PIECES)}{text[value.end() :]}"
    return text


def test_a_damaged_file_is_refused_with_its_faults() -> None:
    faults = [_faults(damaged(seed)) for seed in range(FILES_PER_RUN)]
    assert sum(map(bool, faults)) > FILES_PER_RUN // 2


def _faults(text: str) -> tuple[SchemaFault, ...]:
    try:
        return read_ensemble(text)[1]
    except EnsembleError as error:
        return error.faults


@pytest.mark.parametrize(
    "value",
    ["!!bool start", "!!timestamp noon", '!!int ""', "!!bool ''", "[" * 400, "{a: " * 300, "9" * 400],
)
def test_a_value_that_yaml_cannot_make_is_a_fault(value: str) -> None:
    text = Path(FILES[0]).read_text(encoding="utf-8")
    with pytest.raises(EnsembleError):
        read_ensemble(text + f"\nodd: {value}\njobs: 7\n")


def test_a_source_that_nests_too_deep_for_python_is_a_fault() -> None:
    text = "custom: " + "(" * 5_000 + "\njobs: [{name: a, command: b}]\nrules: []\n"
    with pytest.raises(EnsembleError, match="custom"):
        read_ensemble(text)
