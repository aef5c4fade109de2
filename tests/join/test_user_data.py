"""The script that a node runs at boot: the same for the same launch, small, and without a key."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from nodemanager.config.load import load_site
from nodemanager.config.site import Site
from nodemanager.core.nodes import LaunchId
from nodemanager.join.key_material import MaterialPaths, make_material
from nodemanager.join.tickets import read_site_key
from nodemanager.join.user_data import SIZE_MAX_BYTES, JoinUserData, UserDataError, join_script

SITE = """
[Site]
cluster = lab
state_dir = state
[Flux]
head_address = 10.0.0.1
join = service
[Cloud]
provider = local
[Limits]
nodes_max = 5
price_per_hour_max = 10
[Join]
flux = sh
{join}
[Node cloud]
cores = 2
memory = 1GiB
price_per_hour = 0.1
slots = cloud[1-2]
"""
CURVE = "# a certificate\nsecret"


def a_site(folder: Path, join: str = "") -> Site:
    (folder / "site.ini").write_text(SITE.format(join=join), encoding="utf-8")
    conf = folder / "state" / "flux" / "conf.d"
    conf.mkdir(parents=True, exist_ok=True)
    (conf / "flux.toml").write_text('[bootstrap]\ncurve_cert = "x"\nhosts = [{host = "head"}]\n', encoding="utf-8")
    (conf.parent / "curve.cert").write_text(CURVE, encoding="utf-8")
    site = load_site(folder / "site.ini")
    make_material(site, conf.parent)
    return site


def test_the_same_launch_always_has_the_same_bytes_and_another_has_others(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    made = JoinUserData(site)(LaunchId("cloud1-1"))
    assert JoinUserData(load_site(tmp_path / "site.ini"))(LaunchId("cloud1-1")) == made
    assert JoinUserData(site)(LaunchId("cloud1-2")) != made


def test_it_is_small_and_holds_the_ticket_and_no_key(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    made = JoinUserData(site)(LaunchId("cloud1-1"))
    paths = MaterialPaths(site.join.material_dir)
    assert len(made.encode()) < SIZE_MAX_BYTES
    assert read_site_key(paths.site_key).ticket(LaunchId("cloud1-1")) in made
    for secret in (paths.site_key.read_text().strip(), "secret", paths.tls_key.read_text().splitlines()[1]):
        assert secret not in made


def test_one_that_would_be_too_large_is_refused_with_the_way_out(tmp_path: Path) -> None:
    addresses = ",".join(f"host{number}.example.org:8443" for number in range(200))
    with pytest.raises(UserDataError, match=r"shorten \[Join\] addresses"):
        JoinUserData(a_site(tmp_path, f"addresses = {addresses}"))(LaunchId("cloud1-1"))


def test_without_its_key_it_says_what_to_do(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    key = MaterialPaths(site.join.material_dir).site_key
    key.chmod(0o640)
    with pytest.raises(UserDataError, match="chmod 600"):
        JoinUserData(site)
    key.unlink()
    with pytest.raises(UserDataError, match="flux-node-manager init"):
        JoinUserData(site)


@settings(max_examples=50, deadline=None)
@given(
    st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=60),
    st.sampled_from(["", "/usr/bin/it's here"]),
)
def test_every_value_reaches_the_client_as_it_is(value: str, client: str) -> None:
    made = join_script({"POWEROFF": value}, client)
    shown = (
        made.replace("exec ", 'printf %s "$FLUX_NODE_JOIN_POWEROFF"; exit; exec ', 1)
        if client
        else (made.partition("export FLUX_NODE_JOIN_PARENT")[0] + 'printf %s "$FLUX_NODE_JOIN_POWEROFF"\n')
    )
    ran = subprocess.run(["sh", "-c", shown], capture_output=True, check=True)
    assert ran.stdout.decode() == value


def test_a_node_whose_folder_cannot_be_made_ends_its_cost(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    values = {"DIR": f"{tmp_path}/file/node", "SILENCE_MAX_S": "0", "POWEROFF": f"touch {tmp_path}/off"}
    subprocess.run(["sh", "-c", join_script(values, "")], capture_output=True, check=True)
    assert (tmp_path / "off").exists()


@pytest.mark.parametrize("join", ["", "client = /usr/bin/flux-node-join"])
def test_it_is_plain_shell(tmp_path: Path, join: str) -> None:
    file = tmp_path / "user-data"
    file.write_text(JoinUserData(a_site(tmp_path, join))(LaunchId("cloud1-1")), encoding="utf-8")
    subprocess.run(["sh", "-n", file], check=True)
    checked = subprocess.run(["shellcheck", "-s", "sh", file], capture_output=True, text=True, check=False)
    assert checked.returncode == 0, checked.stdout


GUESTS = "[access]\nallow-guest-user = true\n"


def test_a_node_of_an_instance_with_guests_learns_what_starts_their_jobs(tmp_path: Path) -> None:
    site = a_site(tmp_path)
    assert "FLUX_NODE_JOIN_IMP=''" in JoinUserData(site)(LaunchId("cloud1-1"))
    more = site.flux.bootstrap_dir / "conf.d" / "more.toml"
    more.write_text(GUESTS + '[exec]\nimp = "/usr/libexec/flux/flux-imp"\n')
    assert "FLUX_NODE_JOIN_IMP='/usr/libexec/flux/flux-imp'" in JoinUserData(site)(LaunchId("cloud1-1"))
    more.write_text(GUESTS)
    with pytest.raises(UserDataError, match=r"no \[exec\] imp"):
        JoinUserData(site)
