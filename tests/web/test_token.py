"""The tokens of a team: read from a private file, with every fault named and no secret shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from nodemanager.web.state.token import NamedToken, Role, TokenError, read_named_tokens

ADA, BOB = "a" * 32, "b" * 32


def a_file(folder: Path, text: str, mode: int = 0o600) -> Path:
    path = folder / "tokens"
    path.write_text(text)
    path.chmod(mode)
    return path


def test_each_line_is_a_name_a_role_and_a_token(tmp_path: Path) -> None:
    text = f"# the team\n\nada operate {ADA}\n  bob\tview {BOB}  # until June\n"
    assert read_named_tokens(a_file(tmp_path, text)) == (
        NamedToken("ada", Role.OPERATE, ADA),
        NamedToken("bob", Role.VIEW, BOB),
    )


def test_an_empty_file_has_no_tokens(tmp_path: Path) -> None:
    assert read_named_tokens(a_file(tmp_path, "")) == ()


FAULTS = {
    f"ada {ADA}": "line 1: NAME ROLE TOKEN is needed, not 2 words",
    f"ada admin {ADA}": "line 1: the role is view or operate, not 'admin'",
    f"a/b view {ADA}": "line 1: a name is up to 63",
    "ada view short": "line 1: a token has at least 24 characters",
    f"ada view {ADA}\nada view {BOB}": "line 2: ada has a token already",
    f"ada view {ADA}\nbob view {ADA}": "line 2: ada has the same token",
}


@pytest.mark.parametrize("text", FAULTS)
def test_a_fault_is_named_without_the_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(TokenError) as failed:
        read_named_tokens(a_file(tmp_path, text))
    assert FAULTS[text] in str(failed.value)
    assert not any(secret in str(failed.value) for secret in (ADA, BOB))


def test_all_faults_are_named_at_once(tmp_path: Path) -> None:
    with pytest.raises(TokenError) as failed:
        read_named_tokens(a_file(tmp_path, "ada\nbob view short\n", 0o640))
    assert len(str(failed.value).splitlines()) == 3
    assert "chmod 600" in str(failed.value)


def test_a_file_that_is_missing_or_not_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(TokenError, match="nowhere: the tokens cannot be read"):
        read_named_tokens(tmp_path / "nowhere")
    path = a_file(tmp_path, "")
    path.write_bytes(b"ada view \xff")
    with pytest.raises(TokenError, match="cannot be read"):
        read_named_tokens(path)
