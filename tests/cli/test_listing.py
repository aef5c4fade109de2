"""Lists in a format of the user's, as ``flux jobs -o`` prints them."""

from __future__ import annotations

import argparse
import io
import json
from argparse import Namespace

import pytest
from rich.console import Console
from rich.text import Text

from nodemanager.cli import listing, main, tables
from nodemanager.cli.listing import Listing, read_format
from nodemanager.cli.parsing.verb import Verb
from nodemanager.cli.verbs.service_call import print_listing
from tests.paths import ROOT

EC2 = ROOT / "config" / "ec2.ini"
ROW = {"type": "small", "slots": "2", "online": "1", "leased": "0", "movable": "1", "names": "n[1-2]"}
TWO = Listing(listing.SLOTS, [ROW, {**ROW, "type": Text("large", style="red")}], ["a note"])


def printed(made: Listing, capsys: pytest.CaptureFixture[str], **chosen: object) -> tuple[str, str]:
    console = Console(file=io.StringIO(), width=80)
    print_listing(made, Namespace(**{"format": None, "no_headers": False, **chosen}), console)
    said = capsys.readouterr()
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue() + said.out, said.err


def test_a_format_prints_a_line_of_headers_and_one_for_each_row(capsys: pytest.CaptureFixture[str]) -> None:
    row_format = read_format(listing.SLOTS)("{type:<6}{online:>6} {{names}}={names}")
    assert printed(TWO, capsys, format=row_format) == (
        "type  online {names}=names\nsmall      1 {names}=n[1-2]\nlarge      1 {names}=n[1-2]\n",
        "a note\n",
    )
    assert printed(TWO, capsys, format="{type}", no_headers=True) == ("small\nlarge\n", "a note\n")
    assert printed(Listing(listing.SLOTS, ()), capsys, format="{type}", no_headers=True) == ("", "")


def test_rows_alone_are_a_table_without_headers_and_lines(capsys: pytest.CaptureFixture[str]) -> None:
    out, err = printed(TWO, capsys, no_headers=True)
    assert [line.split() for line in out.splitlines()] == [
        ["small", "2", "1", "0", "1", "n[1-2]"],
        ["large", "2", "1", "0", "1", "n[1-2]"],
    ]
    assert err == "a note\n"
    hidden = Listing(listing.SLOTS, (), ["only the owner may see them"])
    assert printed(hidden, capsys, no_headers=True) == ("", "only the owner may see them\n")
    assert printed(hidden, capsys, format="{type}") == ("type\n", "only the owner may see them\n")
    assert printed(hidden, capsys) == ("only the owner may see them\n", "")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{kind}", 'no column "kind": give type, slots'),
        ("{type.__class__}", 'no column "type.__class__"'),
        ("{type[0]}", "no column"),
        ("{}", 'no column ""'),
        ("type", r"braces, such as '\{type:<10\} \{slots\}'"),
        ("", "braces"),
        ("{type:{slots}}", "braces"),
        ("{type:.2f}", "no format for text: Unknown format code 'f'"),
        ("{type", "no format for text"),
        ("{type!x}", "no format for text"),
        ("{type:<" + "9" * 18 + "}", "no format for text: too wide"),
        ("{type:<" + "9" * 40 + "}", "no format for text: Too many decimal digits"),
    ],
)
def test_a_format_that_is_none_is_refused(text: str, problem: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError, match=problem):
        read_format(listing.SLOTS)(text)


@pytest.mark.parametrize("verb", [verb for verb in main.VERBS.values() if verb.columns], ids=lambda it: it.name)
def test_the_help_names_every_column(verb: Verb, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main([verb.name, "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert ", ".join(column.key for column in verb.columns) in said
    assert verb.prints_json


def test_an_order_is_shown_in_words() -> None:
    assert tables.words("CreateNode") == "create node"
    assert tables.words("begins") == "begins"


def test_prices_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["prices", "--config", str(EC2), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["price_list"]["currency"] == "USD"
    assert [(row["node_type"], row["site"], row["list"], row["result"]) for row in document["prices"]] == [
        ("small", 0.1785, 0.1785, "same"),
        ("large", 1.428, 1.428, "same"),
        ("gpu", 0.4, None, "spot: in no list"),
    ]
    assert main.main(["prices", "--config", str(EC2), "-n", "-o", "{node_type} {size}"]) == 0
    assert capsys.readouterr().out.splitlines()[0] == "small c7i.xlarge"


def test_a_usage_error_is_two_lines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["nodes", "--colour"]) == 2
    assert capsys.readouterr().err.splitlines() == [
        "flux-node-manager nodes: there is no option --colour",
        "Read more: flux-node-manager nodes --help",
    ]
    assert main.main(["nodes", "--colour", "--json"]) == 2
    assert json.loads(capsys.readouterr().err)["exit_status"] == 2


def test_the_help_lists_every_verb_in_a_group(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main.main(["--help"])
    lines = capsys.readouterr().out.partition("verbs:\n")[2].partition("\n\n")[0].splitlines()
    titles = [line.strip(" :") for line in lines if line.startswith("  ") and line[2] != " "]
    assert titles == ["look", "steer", "set up", "what if", "in jobs"]
    listed = [line.split()[0] for line in lines if line.startswith("    ") and line[4] != " "]
    assert listed == list(main.VERBS)
