"""What ``retire`` sends to the service, and which words it refuses."""

from __future__ import annotations

from argparse import Namespace
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from nodemanager.cli.main import make_parser
from nodemanager.cli.parsing.parser import WrongUse
from nodemanager.cli.service_client import Client
from nodemanager.cli.terminal import make_console
from nodemanager.cli.verbs import steering
from nodemanager.config.load import load_site
from nodemanager.web.listen import UnixSocket
from tests.paths import CONFIG

SITE = CONFIG / "embedded.ini"


@dataclass(frozen=True)
class Noting(Client):
    """A service that notes what is posted."""

    posted: list[str] = field(default_factory=list)

    def post(self, path: str, body: bytes | dict[str, object]) -> Any:
        del body
        self.posted.append(path)
        return {"on_record": True, "nodes": ["a-1", "b-1"]}


def retired(*words: str) -> list[str]:
    chosen: Namespace = make_parser(["retire"]).parse_args(["retire", "--config", str(SITE), *words])
    service = Noting(UnixSocket(Path("/nonexistent")), Path("/nonexistent"))
    steering.retire(service, load_site(SITE), chosen, make_console(width=400))
    return service.posted


def test_a_node_is_retired_now_or_in_its_turn_and_all_nodes_in_turns(capsys: pytest.CaptureFixture[str]) -> None:
    assert retired("cloud1") == ["/retire/cloud1"]
    assert retired("cloud1", "--rolling") == ["/replace/cloud1"]
    assert retired("--all", "--rolling") == ["/replace-all"]
    assert retired("--all", "--type", "large", "--rolling") == ["/replace-all/large"]
    assert "2 nodes will be replaced in turns" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", ["", "--all", "--rolling", "cloud1 --all --rolling", "cloud1 --type large --rolling"]
)
def test_anything_else_is_refused_with_what_to_give(words: str) -> None:
    with pytest.raises(WrongUse, match="give NODE, NODE --rolling, or --all --rolling"):
        retired(*words.split())
