"""What the verbs of operators send: who asks, why, and until when."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from nodemanager.cli.main import main, make_parser
from nodemanager.cli.service_client import TOKEN_FILE_VARIABLE, Client, make_client
from nodemanager.cli.terminal import make_console
from nodemanager.cli.verbs import steering
from nodemanager.cli.verbs.service_call import UsageError
from nodemanager.config.load import load_site
from nodemanager.web.listen import UnixSocket
from tests.paths import CONFIG

SITE = CONFIG / "embedded.ini"
NOW_AT = 1_800_000_000.0


@dataclass(frozen=True)
class Noting(Client):
    """A service that notes what is posted."""

    posted: list[tuple[str, Any]] = field(default_factory=list)

    def status(self) -> Any:
        return {"at": NOW_AT}

    def post(self, path: str, body: bytes | dict[str, object]) -> Any:
        self.posted.append((path, body))
        return {"on_record": True}


def posted(verb: str, *words: str) -> tuple[str, Any]:
    chosen = make_parser([verb]).parse_args([verb, "--config", str(SITE), *words])
    service = Noting(UnixSocket(Path("/nonexistent")), Path("/nonexistent"))
    getattr(steering, verb)(service, load_site(SITE), chosen, make_console(width=400))
    return service.posted[0]


@pytest.mark.parametrize("words", [("hold", "cloud1"), ("retire", "cloud1"), ("pause",)])
def test_an_order_carries_its_reason_and_its_end(monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]) -> None:
    monkeypatch.setenv("LOGNAME", "ada")
    assert posted(*words)[1] == {"by": "ada"}
    assert posted(*words, "--reason", "its disk", "--until", "8h")[1] == {
        "by": "ada",
        "reason": "its disk",
        "until_at": NOW_AT + 8 * 3600,
    }


def test_an_end_may_be_a_local_time() -> None:
    until = posted("pause", "--until", "2027-01-15T08:00")[1]["until_at"]
    assert until == datetime(2027, 1, 15, 8, 0).timestamp()


def test_an_end_that_is_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--until: .* is needed, not .soon."):
        posted("hold", "cloud1", "--until", "soon")


def test_the_operators_own_token_comes_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    site = load_site(SITE)
    assert make_client(site).token_file == site.web.token_file
    monkeypatch.setenv(TOKEN_FILE_VARIABLE, str(tmp_path / "mine"))
    assert make_client(site).token_file == tmp_path / "mine"


def test_check_names_every_fault_of_the_tokens(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.ini"
    site.write_text(SITE.read_text().replace("[Web]", "[Web]\ntokens_file = tokens"))
    tokens = tmp_path / "tokens"
    tokens.write_text("ada operate short\nbob\n")
    tokens.chmod(0o600)
    assert main(["check", "--config", str(site)]) == 78
    shown = capsys.readouterr().err.splitlines()
    assert [line.partition("tokens, ")[2][:6] for line in shown] == ["line 1", "line 2"]
    tokens.write_text(f"ada operate {'a' * 32}\n")
    assert main(["check", "--config", str(site)]) == 0
