"""``support-bundle``: what it has, and that no secret is in it, wherever there is one."""

from __future__ import annotations

import gzip
import json
import stat
import tarfile
from pathlib import Path

import pytest

from nodemanager.cli import main, support
from nodemanager.cli.support import Secrets
from nodemanager.config.text.ini import read_ini
from tests.paths import CONFIG

TEXT = (CONFIG / "embedded.ini").read_text(encoding="utf-8")
MEMBERS = {
    *("README.txt", "site.ini", "check.txt", "status.json", "nodes.json"),
    *("decisions.jsonl", "log.txt", "versions.txt"),
}

# A secret for each place. None is part of another, and all have the word that the test looks for.
PLACES = (
    *("comment", "credential", "variable", "file", "command", "key", "unknown", "section", "header", "webhook"),
    *("account", "token", "team", "log", "json", "option", "bearer", "pem", "environment", "cloud", "misspelt"),
)
SECRET = {place: f'hush-{place}\u00e4"x9' if place == "file" else f"hush-{place}-x9" for place in PLACES}


def bundle(site: Path, output: Path, *options: str) -> dict[str, str]:
    assert main.main(["support-bundle", "--config", str(site), "--output", str(output), *options]) == 0
    with tarfile.open(output) as found:
        files = {Path(it.name).name: found.extractfile(it) for it in found.getmembers()}
        assert len({Path(it.name).parent for it in found.getmembers()}) == 1
        return {name: file.read().decode() for name, file in files.items() if file is not None}


@pytest.fixture
def full_of_secrets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("MY_SECRET_KEY", SECRET["environment"])
    monkeypatch.setenv("CLOUD_PW", SECRET["variable"])
    state = tmp_path / "s"
    state.mkdir()
    (state / "token").write_text(SECRET["token"] + "\n")
    (tmp_path / "tokens").write_text(f"ada view {SECRET['team']}\n")
    (tmp_path / "secret").write_text(SECRET["file"] + "\n")
    for file in (state / "token", tmp_path / "tokens", tmp_path / "secret"):
        file.chmod(0o600)
    text = TEXT.replace("../state/embedded", str(state)).replace("127.0.0.1:8080", "off")
    text = text.replace(
        "provider = simulated", f"provider = simulated\nendpoint = https://me:{SECRET['account']}@h/p"
    )
    text = text.replace("[Web]\n", "[Web]\ntokens_file = tokens\n")
    text += f"""
# {SECRET["comment"]}
[Cloud Credentials]
user = {SECRET["credential"]}
password = ${{CLOUD_PW}}
secret_file = secret
[Cloud east]
provider = static
wake = ipmitool -P {SECRET["cloud"]}
[Notify]
command = curl https://hooks.example/services/{SECRET["webhook"]} --token {SECRET["command"]}
[Flux east]
note = {SECRET["section"]}
[Cloud Credentails]
id = {SECRET["misspelt"]}
[{SECRET["header"]}]
a = b
[Timing]
api_key = {SECRET["key"]}
pasphrase_of_mine = {SECRET["unknown"]}
"""
    site = tmp_path / "site.ini"
    site.write_text(text)
    site.chmod(0o600)
    return site


def test_no_secret_is_in_it_wherever_there_is_one(full_of_secrets: Path, tmp_path: Path) -> None:
    log = tmp_path / "log"
    others = ("credential", "variable", "token", "team", "environment", "section", "misspelt")
    log.write_text(
        "".join(f"it has {SECRET[place]} in it\n" for place in others)
        + json.dumps({"client_secret": SECRET["json"], "nested": SECRET["file"], "nodes_max": 8})
        + f"\npassword={SECRET['log']} and --api-key {SECRET['option']}, Authorization: Bearer {SECRET['bearer']}\n"
        + f"-----BEGIN EC PRIVATE KEY-----\n{SECRET['pem']}\n-----END EC PRIVATE KEY-----\n"
        + f"PUT https://hooks.example/services/{SECRET['webhook']}: kept ssh://me:{SECRET['account']}@host/p\n"
        + "the last line\n"
    )
    output = tmp_path / "b.tar.gz"
    files = bundle(full_of_secrets, output, "--log", str(log))
    assert files.keys() == MEMBERS
    for name, text in files.items():
        assert "hush" not in text, f"{name}: {text}"
    assert b"hush" not in gzip.decompress(output.read_bytes())
    assert "the last line" in files["log.txt"]
    assert '"nodes_max": 8' in files["log.txt"]
    assert "nodes_max = 8" in files["site.ini"], "what is no secret is there"
    assert "password" not in files["site.ini"]
    assert "command = (left out)" in files["site.ini"]
    assert "exit status 78" in files["check.txt"], "a site with faults has a bundle too"
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_the_log_of_the_test_has_every_secret_that_the_rules_must_find(full_of_secrets: Path) -> None:
    """Without the rules each of them would be in the bundle: the test above can fail."""
    written = full_of_secrets.read_text()
    document = read_ini(full_of_secrets, {})
    assert sum(secret in written for secret in SECRET.values()) >= 11
    assert SECRET["comment"] not in support.site_text(document)
    remove = Secrets(document, {}).remove
    assert remove(f"x {SECRET['token']} y") == "x (left out) y"
    assert remove(json.dumps(SECRET["file"])) == '"(left out)"'
    assert remove("AWS_ACCESS_KEY_ID and others are not set") == "AWS_ACCESS_KEY_ID and others are not set"


@pytest.mark.parametrize(
    "character", ["a", "-", ":", '"', "=", " ", "a:", "token", "://", "x:y@", "token=", "-----BEGIN KEY"]
)
def test_a_long_line_of_a_log_is_read_in_linear_time(tmp_path: Path, character: str) -> None:
    """A line of a megabyte would take hours otherwise."""
    remove = Secrets(read_ini(tmp_path / "none", {}), {"A_TOKEN": "hush-hush"}).remove
    assert remove(f"{character * 200_000} hush-hush").endswith("(left out)")


def test_it_has_the_decisions_and_versions_and_overwrites_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    site.write_text(TEXT.replace("../state/embedded", str(tmp_path / "s")).replace("127.0.0.1:8080", "unix"))
    files = bundle(site, tmp_path / "b.tar.gz", "--log", str(tmp_path / "none"))
    assert "good; 3 node types" in files["check.txt"]
    assert "there is no history" in files["decisions.jsonl"]
    assert "No such file" in files["log.txt"]
    assert "pydantic " in files["versions.txt"]
    assert "exit status 69" in files["status.json"]
    capsys.readouterr()
    arguments = ["support-bundle", "--config", str(site), "--output", str(tmp_path / "b.tar.gz")]
    assert main.main(arguments) == 1
    assert "b.tar.gz cannot be written: File exists" in capsys.readouterr().err


def test_a_site_that_cannot_be_read_has_a_bundle_too(tmp_path: Path) -> None:
    files = bundle(tmp_path / "none.ini", tmp_path / "b.tar.gz", "--log", "/dev/null")
    assert "cannot be read" in files["check.txt"]
