"""Which identity tokens of Google's are believed, and where the keys come from."""

from __future__ import annotations

import errno
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nodemanager.core.nodes import JoinPhase, ProviderId, launch_id
from nodemanager.core.slots import DEFAULT_CLOUD, CloudName, SlotName
from nodemanager.join.admission import Answer
from nodemanager.join.flux_node_join import google_audience, purpose_of
from nodemanager.join.identity.google import GoogleNodes
from nodemanager.join.identity.google_keys import GoogleKeys, KeysUnusable
from nodemanager.join.identity.proof import IdentityUnproven, by_form
from nodemanager.join.tickets import hash_nonce
from tests.join.admission import KEY, NONCE, OTHER_NONCE, SOURCE, AdmissionRig, code, entry, granted
from tests.join.google_tokens import (
    ACCOUNT,
    NODES,
    NOW_AT,
    PIN,
    PURPOSE,
    ZONE,
    Wall,
    claims,
    encode,
    google,
    jwks,
    part,
    sign,
    token,
)
from tests.join.identities import identities, signer

BATCH = "19ab4c2f3d1"


def test_a_token_that_google_signed_names_its_instance(tmp_path: Path) -> None:
    assert google(tmp_path).instance_in(token(), PURPOSE) == (f"{ZONE}/n-1", [DEFAULT_CLOUD])


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"engine": {"project_id": "somebody-elses"}}, "of project somebody-elses"),
        ({"email": "robot@lab.iam.gserviceaccount.com"}, "with robot@lab"),
        ({"email_verified": False}, "no identity token"),
        ({"aud": "https://example.org"}, "for another request"),
        ({"aud": [google_audience(PIN, PURPOSE)]}, "for another request"),
        ({"purpose": f"{BATCH}/" + "cd" * 32}, "for another request"),
        ({"purpose": "19ab4c30000/" + "ab" * 32}, "for another request"),
        ({"aud": google_audience("0f" * 32, PURPOSE)}, "for another request"),
        ({"iss": "https://accounts.example.org"}, "not issued by Google"),
        ({"exp": int(NOW_AT) - 61}, "has expired"),
        ({"iat": int(NOW_AT) + 61}, "not valid yet"),
        ({"exp": float("nan")}, "no identity token"),
        ({"exp": "soon"}, "no identity token"),
        ({"exp": None}, "no identity token"),
        ({"exp": 10**400}, "no identity token"),
        ({"google": {}}, "no identity token"),
        ({"google": None}, "no identity token"),
        ({"engine": {"instance_name": ""}}, "no identity token"),
        ({"engine": {"instance_name": 7}}, "no identity token"),
        ({"engine": {"zone": None}}, "no identity token"),
    ],
    ids=str,
)
def test_a_token_that_says_anything_else_proves_nothing(tmp_path: Path, changed: dict[str, Any], why: str) -> None:
    with pytest.raises(IdentityUnproven, match=why):
        google(tmp_path).instance_in(token(**changed), PURPOSE)


@pytest.mark.parametrize("content", [[], None, "n-1", {}])
def test_a_signed_text_of_another_kind_proves_nothing(tmp_path: Path, content: object) -> None:
    with pytest.raises(IdentityUnproven, match="no identity token"):
        google(tmp_path).instance_in(sign(content), PURPOSE)


def test_clocks_may_differ_by_a_minute(tmp_path: Path) -> None:
    known = google(tmp_path)
    for changed in (token(iat=int(NOW_AT) + 59), token(exp=int(NOW_AT) - 59)):
        assert known.instance_in(changed, PURPOSE).id == f"{ZONE}/n-1"


def _unsigned(algorithm: object) -> str:
    return f"{part({'alg': algorithm, 'kid': 'google'})}.{part(claims())}."


def _signed_by_the_public_key() -> str:
    """The classic forgery: whoever lets the token choose takes the public key for a shared secret."""
    public = signer("google").key.public_key()
    secret = public.public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    signed = f"{part({'alg': 'HS256', 'kid': 'google'})}.{part(claims())}"
    return f"{signed}.{encode(hmac.new(secret, signed.encode(), hashlib.sha256).digest())}"


def _of_a_key_in_its_header() -> str:
    return sign(claims(), "somebody else", {"kid": "google", "jwk": jwks("somebody else")["keys"][0]})


@pytest.mark.parametrize(
    ("forged", "why"),
    [
        (lambda: _unsigned("none"), "not signed by RS256"),
        (lambda: _unsigned("None"), "not signed by RS256"),
        (lambda: _unsigned(None), "not signed by RS256"),
        (lambda: _unsigned(["RS256"]), "not signed by RS256"),
        (lambda: _unsigned("RS256"), "not by Google's key"),
        (_signed_by_the_public_key, "not signed by RS256"),
        (lambda: sign(claims(), "somebody else", {"kid": "google"}), "not by Google's key"),
        (_of_a_key_in_its_header, "not by Google's key"),
        (lambda: sign(claims(), header={"crit": ["b64"], "b64": False}), "not signed by RS256"),
        (lambda: sign(claims(), "somebody else"), "by an unknown key"),
        (lambda: token().rsplit(".", 1)[0], "no identity token"),
        (lambda: token() + ".x", "no identity token"),
        (lambda: f"{part(['RS256'])}.{part(claims())}.x", "no identity token"),
        (lambda: f"{part({'alg': 'RS256'})}.{part(claims())}.x", "no identity token"),
        (lambda: f"{encode(b'[' * 9000)}.x.y", "no identity token"),
        (lambda: "..", "no identity token"),
        (lambda: "é.é.é", "no identity token"),
    ],
)
def test_a_forged_token_proves_nothing(tmp_path: Path, forged: Callable[[], str], why: str) -> None:
    with pytest.raises(IdentityUnproven, match=why):
        google(tmp_path).instance_in(forged(), PURPOSE)


def test_another_instance_in_a_signed_token_proves_nothing(tmp_path: Path) -> None:
    header, _, signature = token("n-1").split(".")
    with pytest.raises(IdentityUnproven, match="not by Google's key"):
        google(tmp_path).instance_in(f"{header}.{part(claims('n-2'))}.{signature}", PURPOSE)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.integers(0, 4000), st.characters(codec="ascii"))
def test_no_change_of_one_character_names_another_instance(tmp_path: Path, position: int, put: str) -> None:
    text = token()
    at = position % len(text)
    try:
        named = google(tmp_path).instance_in(text[:at] + put + text[at + 1 :], PURPOSE).id
    except IdentityUnproven:
        return
    assert named == f"{ZONE}/n-1"


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.text(max_size=200))
def test_any_text_is_refused_and_crashes_nothing(tmp_path: Path, text: str) -> None:
    with pytest.raises(IdentityUnproven):
        google(tmp_path).instance_in(text, PURPOSE)


def test_each_project_vouches_for_its_own_clouds(tmp_path: Path) -> None:
    mine, theirs = CloudName("mine"), CloudName("theirs")
    clouds = {mine: NODES, theirs: GoogleNodes("other", ACCOUNT), CloudName("two"): NODES}
    known = google(tmp_path, clouds=clouds)
    assert known.instance_in(token(), PURPOSE).clouds == [mine, "two"]
    assert known.instance_in(token(engine={"project_id": "other"}), PURPOSE).clouds == [theirs]


def test_a_site_with_ec2_and_google_reads_both_forms(tmp_path: Path) -> None:
    read = by_form(identities(signer().pem).instance_in, google(tmp_path).instance_in)
    assert read is not None
    assert read(signer().document("i-0123456789abcdef0"), PURPOSE).id == "i-0123456789abcdef0"
    assert read(token(), PURPOSE).id == f"{ZONE}/n-1"
    for foreign in (signer("somebody else").document("i-1"), sign(claims(), "somebody else", {"kid": "google"})):
        with pytest.raises(IdentityUnproven):
            read(foreign, PURPOSE)
    assert by_form(None, None) is None


# --- the keys ---------------------------------------------------------------------------------------------


def test_without_keys_nothing_is_proven_and_they_are_due(tmp_path: Path) -> None:
    wall = Wall()
    keys = GoogleKeys(tmp_path, wall.wall_at)
    assert keys.is_due()
    with pytest.raises(KeysUnusable, match="not fetched"):
        keys.find("google")
    keys.post(jwks("google"), "max-age=22000")
    assert not keys.is_due()
    assert keys.find("google") is not None
    assert (tmp_path / "google-keys.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize(
    ("cache_control", "lifetime_s"),
    [
        ("public, max-age=22000, must-revalidate", 22_000),
        ("", 3_600),
        ("no-store", 3_600),
        ("max-age=1", 600),
        ("max-age=999999999", 86_400),
        ("max-age=-5", 3_600),
    ],
)
def test_keys_are_fetched_again_after_half_their_lifetime_and_expire(
    tmp_path: Path, cache_control: str, lifetime_s: float
) -> None:
    wall = Wall()
    keys = GoogleKeys(tmp_path, wall.wall_at)
    keys.post(jwks("google"), cache_control)
    wall.advance(lifetime_s / 2 - 1)
    assert not keys.is_due()
    wall.advance(2)
    assert keys.is_due()
    wall.advance(lifetime_s / 2 - 2)
    assert keys.find("google") is not None
    wall.advance(1)
    with pytest.raises(KeysUnusable, match="have expired"):
        keys.find("google")


def test_an_unknown_key_makes_the_keys_due_until_they_are_fetched(tmp_path: Path) -> None:
    wall = Wall()
    service, manager = GoogleKeys(tmp_path, wall.wall_at), GoogleKeys(tmp_path, wall.wall_at)
    manager.post(jwks("google"), "max-age=22000")
    wall.advance(100)
    assert service.find("next") is None
    assert manager.is_due()
    wall.advance(1)
    manager.post(jwks("google", "next"), "max-age=22000")
    assert not manager.is_due()
    assert service.find("next") is not None


def test_a_flood_of_unknown_keys_asks_seldom(tmp_path: Path) -> None:
    wall = Wall()
    keys = GoogleKeys(tmp_path, wall.wall_at)
    keys.post(jwks("google"), "max-age=22000")
    asked_at: set[float] = set()
    for number in range(1000):
        wall.advance(0.1)
        assert keys.find(f"forged-{number}") is None
        asked_at.add((tmp_path / "google-keys.wanted").stat().st_mtime)
    assert len(asked_at) == 10, "in a hundred seconds"


@pytest.mark.parametrize(
    "document",
    [
        None,
        [],
        {},
        {"keys": []},
        {"keys": {}},
        {"keys": [{"kty": "EC", "kid": "a"}]},
        {"keys": [{"kty": "RSA", "kid": "a", "n": "AQAB"}]},
        {"keys": [{"kty": "RSA", "kid": "a", "n": "", "e": "AQAB"}]},
        {"keys": [{"kty": "RSA", "kid": "a", "n": 5, "e": 6}]},
        {"keys": [{"kty": "RSA", "kid": "a", "n": "-" * 342, "e": "Ag"}]},
    ],
    ids=str,
)
def test_what_is_no_set_of_keys_replaces_none(tmp_path: Path, document: object) -> None:
    keys = GoogleKeys(tmp_path, Wall().wall_at)
    keys.post(jwks("google"), "")
    with pytest.raises(ValueError, match=r"a set|no set|a key"):
        keys.post(document, "")
    assert keys.find("google") is not None


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    weak = rsa.generate_private_key(public_exponent=65537, key_size=1024)  # noqa: S505 - it must be refused
    numbers = weak.public_key().public_numbers()
    short = {"kty": "RSA", "kid": "short", "n": encode(numbers.n.to_bytes(128, "big")), "e": "AQAB"}
    with pytest.raises(ValueError, match="1024 bits"):
        GoogleKeys(tmp_path, Wall().wall_at).post({"keys": [short]}, "")


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"keys": [], "fetched_at": 1, "expires_at": 2}', "\x00"])
def test_a_damaged_file_proves_nothing_and_is_replaced(tmp_path: Path, text: str) -> None:
    (tmp_path / "google-keys.json").write_text(text)
    keys = GoogleKeys(tmp_path, Wall().wall_at)
    with pytest.raises(KeysUnusable):
        keys.find("google")
    assert keys.is_due()


def test_two_clouds_may_fetch_the_keys_at_the_same_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = GoogleKeys(tmp_path, Wall().wall_at), GoogleKeys(tmp_path, Wall().wall_at)
    dump = json.dump

    def meanwhile(*arguments: Any) -> None:
        monkeypatch.setattr(json, "dump", dump)
        second.post(jwks("second"), "")
        assert first.find("second") is not None
        dump(*arguments)

    monkeypatch.setattr(json, "dump", meanwhile)
    first.post(jwks("first"), "")
    assert second.find("first") is not None
    assert [it.name for it in tmp_path.iterdir()] == ["google-keys.json"]


def test_keys_that_cannot_be_written_leave_the_old_ones_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keys = GoogleKeys(tmp_path, Wall().wall_at)
    keys.post(jwks("google"), "")

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(json, "dump", full)
    with pytest.raises(OSError, match="No space left"):
        keys.post(jwks("next"), "")
    assert keys.find("google") is not None
    assert [it.name for it in tmp_path.iterdir()] == ["google-keys.json"]


def test_the_file_holds_public_keys_only(tmp_path: Path) -> None:
    GoogleKeys(tmp_path, Wall().wall_at).post(jwks("google"), "")
    (key,) = json.loads((tmp_path / "google-keys.json").read_text())["keys"]
    assert not {"d", "p", "q"} & key.keys()


# --- the ticket of a batch, with a token -------------------------------------------------------------------


class GoogleRig(AdmissionRig):
    """A service for two nodes of one batch."""

    def __init__(self, folder: Path) -> None:
        super().__init__(
            roster=tuple(
                entry(
                    launch_id(SlotName(f"cloud{number}"), BATCH),
                    f"cloud{number}",
                    provider_id=ProviderId(f"{ZONE}/n-{number}"),
                )
                for number in (1, 2)
            ),
            instance_in=google(folder).instance_in,
        )

    def join(self, identity: str, nonce: str = NONCE) -> Answer:
        return self.admission.redeem_batch(BATCH, KEY.batch_ticket(BATCH), nonce, identity, SOURCE)


def _token_for(number: int, nonce: str = NONCE) -> str:
    return token(f"n-{number}", purpose=purpose_of(BATCH, hash_nonce(nonce)))


def test_each_node_of_a_batch_gets_its_own_slot(tmp_path: Path) -> None:
    rig = GoogleRig(tmp_path)
    assert granted(rig.join(_token_for(1)))["slot"] == "cloud1"
    assert granted(rig.join(_token_for(2, OTHER_NONCE), OTHER_NONCE))["slot"] == "cloud2"


def test_a_token_that_somebody_overheard_is_of_no_use_with_another_nonce(tmp_path: Path) -> None:
    rig = GoogleRig(tmp_path)
    overheard = _token_for(1)
    assert code(rig.join(overheard, OTHER_NONCE)) == "unproven"
    assert granted(rig.join(overheard))["slot"] == "cloud1"
    assert code(rig.join(_token_for(1, OTHER_NONCE), OTHER_NONCE)) == "used"
    assert len(rig.reported(JoinPhase.REPLAYED)) == 1


@pytest.mark.parametrize("identity", ["", f"{ZONE}/n-1", "a.b.c"])
def test_the_ticket_of_a_batch_alone_brings_nothing(tmp_path: Path, identity: str) -> None:
    rig = GoogleRig(tmp_path)
    assert code(rig.join(identity)) == "unproven"
    granted(rig.join(_token_for(1)))  # and nothing was used up


def test_an_instance_that_is_no_node_is_not_let_in(tmp_path: Path) -> None:
    assert code(GoogleRig(tmp_path).join(_token_for(3))) == "not_current"
