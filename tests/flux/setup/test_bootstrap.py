from __future__ import annotations

import os
import shlex
import shutil
import signal
import stat
import subprocess
import time
import tomllib
import uuid
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from nodemanager.config.load import load_site
from nodemanager.config.site import Site, uuid_file
from nodemanager.core.slots import SlotName
from nodemanager.flux.setup.bootstrap import (
    BootstrapError,
    find_bootstrap,
    find_flux,
    flux_toml,
    guest_warnings,
    nested_command,
    open_run_folder,
    write_bootstrap,
)
from nodemanager.flux.setup.node_script import follower_command, user_data

SITE = """
[Site]
cluster = lab
state_dir = state
[Flux]
head_host = boss
head_address = {address}
port = 9000
head_cores = 2
[Cloud]
provider = local
[Limits]
nodes_max = 5
price_per_hour_max = 10
[Node cloud]
cores = 2
memory = 1GiB
price_per_hour = 0.1
slots = cloud[01-03]
[Node gpu]
cores = 1
gpus = 2
memory = 1GiB
price_per_hour = 0.5
properties = gpu, big
slots = gpu[1-2]
"""
SLOT = SlotName("cloud02")

KEYGEN = 'if [ "$1" = keygen ]; then echo secret > "$3"; exit 0; fi\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "site.ini").write_text(SITE.format(address="127.0.0.1"), encoding="utf-8")
    return tmp_path


@pytest.fixture
def site(folder: Path) -> Site:
    return load_site(folder / "site.ini")


@pytest.fixture
def output(folder: Path) -> Path:
    return folder / "state" / "flux"


def a_flux(folder: Path, script: str) -> str:
    """A command in place of flux."""
    command = folder / "bin of flux" / "flux"
    command.parent.mkdir(exist_ok=True)
    command.write_text(f'#!/bin/sh\n[ "$1" = version ] && exit\n{script}', encoding="utf-8")
    command.chmod(0o755)
    return str(command)


def everything_in(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def eventually(what: str, holds: Callable[[], object]) -> None:
    deadline_s = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < deadline_s, f"not within 20 s: {what}"
        time.sleep(0.01)


# --- rank 0 -----------------------------------------------------------------------------------------------


def test_the_configuration_names_every_host_and_what_it_offers(site: Site) -> None:
    assert tomllib.loads(flux_toml(site, Path("/x/curve.cert"))) == {
        "bootstrap": {
            "curve_cert": "/x/curve.cert",
            "hosts": [
                {"host": "boss", "bind": "tcp://127.0.0.1:9000", "connect": "tcp://127.0.0.1:9000"},
                {"host": "cloud[01-03]"},
                {"host": "gpu[1-2]"},
            ],
        },
        "resource": {
            "noverify": True,
            "exclude": "0",
            "config": [
                {"hosts": "boss", "cores": "0-1"},
                {"hosts": "cloud[01-03]", "cores": "0-1"},
                {"hosts": "gpu[1-2]", "cores": "0", "gpus": "0-1", "properties": ["big", "gpu"]},
            ],
        },
        "kvs": {"checkpoint-period": "10s"},
        "sched-fluxion-qmanager": {"queue-policy": "easy"},
        "node-manager": {"slots": {"cloud": "cloud[01-03]", "gpu": "gpu[1-2]"}},
    }


def test_flux_refuses_jobs_that_nodes_max_never_allows(folder: Path) -> None:
    """Four of the five slots: the largest four nodes have seven cores."""
    text = SITE.format(address="127.0.0.1")
    assert "nodes_max = 5" in text
    (folder / "site.ini").write_text(text.replace("nodes_max = 5", "nodes_max = 4"), encoding="utf-8")
    toml = tomllib.loads(flux_toml(load_site(folder / "site.ini"), Path("/x/curve.cert")))
    assert toml["policy"] == {"limits": {"job-size": {"max": {"nnodes": 4, "ncores": 7}}}}


@pytest.mark.parametrize(
    ("address", "bind"),
    [("10.0.0.1", "tcp://*:9000"), ("boss.example.org", "tcp://*:9000"), ("127.0.0.9", "tcp://127.0.0.9:9000")],
)
def test_only_a_loopback_address_is_bound_as_it_is(folder: Path, address: str, bind: str) -> None:
    (folder / "site.ini").write_text(SITE.format(address=address), encoding="utf-8")
    toml = tomllib.loads(flux_toml(load_site(folder / "site.ini"), Path("/x/curve.cert")))
    assert toml["bootstrap"]["hosts"][0] == {"host": "boss", "bind": bind, "connect": f"tcp://{address}:9000"}
    assert "enable_ipv6" not in toml["bootstrap"]


@pytest.mark.parametrize(("address", "bind"), [("fd00::5", "tcp://*:9000"), ("::1", "tcp://[::1]:9000")])
def test_brokers_use_ipv6_if_rank_0_has_such_an_address(folder: Path, address: str, bind: str) -> None:
    (folder / "site.ini").write_text(SITE.format(address=address), encoding="utf-8")
    bootstrap = tomllib.loads(flux_toml(load_site(folder / "site.ini"), Path("/x/curve.cert")))["bootstrap"]
    assert bootstrap["enable_ipv6"] is True
    assert bootstrap["hosts"][0] == {"host": "boss", "bind": bind, "connect": f"tcp://[{address}]:9000"}


@pytest.mark.parametrize("path", ['/a "quoted" \\ path', "/ü/\x7f/\t"])
def test_any_path_is_written_as_toml(site: Site, path: str) -> None:
    assert tomllib.loads(flux_toml(site, Path(path)))["bootstrap"]["curve_cert"] == path


def test_all_is_written_and_only_its_owner_may_read_it(folder: Path, site: Site, output: Path) -> None:
    flux = a_flux(folder, KEYGEN)
    written = write_bootstrap(site, output, flux)
    assert everything_in(folder / "state") == {
        "cluster-uuid",
        "flux",
        "flux/conf.d",
        "flux/conf.d/flux.toml",
        "flux/curve.cert",
        "flux/run",
        "flux/state",
    }
    assert stat.S_IMODE(output.stat().st_mode) == 0o700
    assert stat.S_IMODE((output / "curve.cert").stat().st_mode) == 0o600
    assert (output / "conf.d" / "flux.toml").read_text() == flux_toml(site, output / "curve.cert")
    assert written.uri == f"local://{output}/run/local-0"
    assert written.start_command == (
        flux,
        "broker",
        f"--config-path={output}/conf.d",
        "-Sbroker.boot-method=config",
        "-Shostname=boss",
        "-Sbroker.rc2_none",
        "-Sbroker.quorum=1",
        f"-Sstatedir={output}/state",
        f"-Srundir={output}/run",
        f"-Slocal-uri={written.uri}",
    )
    assert written.warnings == ()
    assert shlex.join(written.start_command) in str(written)


def test_the_uuid_is_new_and_the_site_knows_it_from_then_on(folder: Path, site: Site, output: Path) -> None:
    assert site.cluster_uuid == ""
    written = write_bootstrap(site, output, a_flux(folder, KEYGEN))
    assert uuid.UUID(written.cluster_uuid).version == 4
    assert load_site(folder / "site.ini").cluster_uuid == written.cluster_uuid


def test_a_uuid_that_the_site_has_is_kept(folder: Path, site: Site, output: Path) -> None:
    flux = a_flux(folder, KEYGEN)
    first = write_bootstrap(site, output, flux).cluster_uuid
    shutil.rmtree(output)
    assert write_bootstrap(load_site(folder / "site.ini"), output, flux).cluster_uuid == first


def test_a_uuid_that_appeared_meanwhile_is_not_overwritten(folder: Path, site: Site, output: Path) -> None:
    uuid_file(site.state_dir).parent.mkdir()
    uuid_file(site.state_dir).write_text("other", encoding="ascii")
    with pytest.raises(BootstrapError, match="cluster-uuid exists"):
        write_bootstrap(site, output, a_flux(folder, KEYGEN))
    assert everything_in(folder / "state") == {"cluster-uuid"}
    assert uuid_file(site.state_dir).read_text(encoding="ascii") == "other"


@pytest.mark.parametrize("existing", ["conf.d/flux.toml", "anything"])
def test_nothing_that_exists_is_overwritten(folder: Path, site: Site, output: Path, existing: str) -> None:
    (output / existing).parent.mkdir(parents=True)
    (output / existing).write_text("mine", encoding="utf-8")
    before = everything_in(folder / "state")
    with pytest.raises(BootstrapError, match=f"{existing.partition('/')[0]} exists and is not overwritten"):
        write_bootstrap(site, output, a_flux(folder, KEYGEN))
    assert everything_in(folder / "state") == before


def test_its_own_unchanged_folder_is_recognised(folder: Path, site: Site, output: Path) -> None:
    flux = a_flux(folder, KEYGEN)
    assert find_bootstrap(site, output, flux) is None
    written = write_bootstrap(site, output, flux)
    site = load_site(folder / "site.ini")
    before = everything_in(folder / "state")
    found = find_bootstrap(site, output, flux)
    assert found == replace(written, is_new=False)
    assert str(found) == str(written).replace("Written", "Unchanged")
    assert everything_in(folder / "state") == before
    (output / "conf.d" / "flux.toml").write_text("[bootstrap]", encoding="utf-8")
    assert find_bootstrap(site, output, flux) is None


def test_a_nested_rank_0_records_its_path_as_it_is_written(folder: Path, site: Site) -> None:
    """The job's shell must run nothing that stands in the path."""
    output = folder / "$(touch ran)"
    *_, script = nested_command(site, output, a_flux(folder, 'echo "$@" >>memo'))
    subprocess.run(["sh", "-c", script], cwd=folder, env={"PATH": "/usr/bin:/bin"}, check=True)
    assert not (folder / "ran").exists()
    assert f"{output}/run/local-0" in (folder / "memo").read_text(encoding="utf-8").splitlines()[0]


def test_a_file_or_a_dangling_link_in_the_place_of_the_folder_is_not_overwritten(
    folder: Path, site: Site, output: Path
) -> None:
    output.parent.mkdir()
    output.symlink_to("nowhere")
    with pytest.raises(BootstrapError, match="flux exists"):
        write_bootstrap(site, output, a_flux(folder, KEYGEN))


@pytest.mark.parametrize("script", ["echo no entropy >&2; exit 3", "exit 0"])
def test_a_failure_leaves_nothing_behind(folder: Path, site: Site, output: Path, script: str) -> None:
    with pytest.raises(BootstrapError, match="keygen failed"):
        write_bootstrap(site, output, a_flux(folder, script))
    assert everything_in(folder / "state") == set()


def test_a_folder_that_appears_meanwhile_is_kept_and_the_uuid_taken_back(
    folder: Path, site: Site, output: Path
) -> None:
    script = f"mkdir {shlex.quote(str(output))}; touch {shlex.quote(str(output))}/theirs; {KEYGEN}"
    with pytest.raises(BootstrapError, match="not empty"):
        write_bootstrap(site, output, a_flux(folder, script))
    assert everything_in(folder / "state") == {"flux", "flux/theirs"}


def test_without_flux_the_error_says_how_to_get_it(site: Site, output: Path) -> None:
    with pytest.raises(BootstrapError, match="install flux-core"):
        write_bootstrap(site, output, "flux-that-is-not-there")


def test_a_folder_too_deep_for_a_socket_is_refused(folder: Path, site: Site) -> None:
    with pytest.raises(BootstrapError, match="too long for a socket"):
        write_bootstrap(site, folder / ("d" * 80), a_flux(folder, KEYGEN))


def test_the_output_may_not_hold_the_state(folder: Path, site: Site) -> None:
    with pytest.raises(BootstrapError, match="must not contain state_dir"):
        write_bootstrap(site, folder / "state", a_flux(folder, KEYGEN))


def test_a_folder_that_cannot_be_made_is_named(folder: Path, site: Site) -> None:
    (folder / "file").touch()
    with pytest.raises(BootstrapError, match="file"):
        write_bootstrap(site, folder / "file" / "flux", a_flux(folder, KEYGEN))


def test_what_the_site_would_look_for_elsewhere_is_a_warning(folder: Path) -> None:
    text = SITE.format(address="127.0.0.1").replace("port = 9000", "uri = local://elsewhere")
    (folder / "site.ini").write_text(text, encoding="utf-8")
    written = write_bootstrap(load_site(folder / "site.ini"), folder / "out", a_flux(folder, KEYGEN))
    in_dir, in_uri = written.warnings
    assert f"bootstrap_dir = {folder}/state/flux" in in_dir
    assert f"uri = local://{folder}/elsewhere" in in_uri
    assert f"Warning: {in_dir}" in str(written)


def test_a_simulated_flux_has_no_bootstrap(folder: Path, output: Path) -> None:
    text = SITE.format(address="127.0.0.1").replace("port = 9000", "uri = simulated")
    (folder / "site.ini").write_text(text, encoding="utf-8")
    with pytest.raises(BootstrapError, match="needs no bootstrap"):
        write_bootstrap(load_site(folder / "site.ini"), output, a_flux(folder, KEYGEN))


# --- a node -----------------------------------------------------------------------------------------------


def test_a_follower_shares_the_configuration_of_rank_0(site: Site, output: Path) -> None:
    assert follower_command(site, SLOT, "/usr/bin/flux") == [
        "/usr/bin/flux",
        "broker",
        f"--config-path={output}/conf.d",
        "-Sbroker.boot-method=config",
        "-Shostname=cloud02",
    ]


def test_a_slot_that_the_site_does_not_have_is_refused(site: Site) -> None:
    with pytest.raises(ValueError, match="not a slot"):
        follower_command(site, SlotName("cloud9"), "flux")


def test_flux_is_found_as_an_absolute_path(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    command = a_flux(folder, "")
    monkeypatch.chdir(folder)
    monkeypatch.setenv("PATH", "bin of flux", prepend=os.pathsep)
    assert find_flux() == command


def test_the_user_data_is_clean_shell(folder: Path, site: Site) -> None:
    script = user_data(site, SLOT, a_flux(folder, ""))
    checked = subprocess.run(
        ["shellcheck", "--shell=sh", "-"], input=script, capture_output=True, text=True, check=False
    )
    assert checked.stdout == ""


def test_the_user_data_starts_the_broker_again_whenever_it_ends(folder: Path, site: Site) -> None:
    node = _boot(folder, site, f'echo "$@" >> {shlex.quote(str(folder / "starts"))}')
    starts = folder / "starts"
    eventually("two starts", lambda: starts.exists() and starts.read_text().count("\n") >= 2)
    node.terminate()
    assert node.wait(20) == 0
    first, second = starts.read_text().splitlines()[:2]
    assert first == second
    assert first.startswith(shlex.join(follower_command(site, SLOT)[1:]))


def test_the_user_data_ends_with_its_broker_at_sigterm(folder: Path, site: Site) -> None:
    seen = shlex.quote(str(folder / "broker"))
    node = _boot(folder, site, f'echo "$$ ${{5#-Srundir=}}" > {seen}.new; mv {seen}.new {seen}; exec sleep 600')
    eventually("a broker", (folder / "broker").exists)
    pid, rundir = (folder / "broker").read_text().split()
    assert Path(rundir).is_dir()
    node.send_signal(signal.SIGTERM)
    assert node.wait(20) == 0
    assert not Path("/proc", pid).exists()
    assert not Path(rundir).exists()


# --- guests -----------------------------------------------------------------------------------------------


def admit_guests(site: Site) -> None:
    conf_d = site.flux.bootstrap_dir / "conf.d"
    conf_d.mkdir(parents=True, exist_ok=True)
    (conf_d / "guests.toml").write_text("[access]\nallow-guest-user = true\n", encoding="utf-8")


@pytest.mark.parametrize("guests", [False, True])
def test_guests_reach_the_socket_of_a_node_only_if_the_instance_admits_them(
    folder: Path, site: Site, *, guests: bool
) -> None:
    if guests:
        admit_guests(site)
    own_tmp, seen = folder / "tmp", folder / "seen"
    own_tmp.mkdir(mode=0o700)
    script = folder / "user-data"
    modes = f'stat -c %a "$TMPDIR" "${{5#-Srundir=}}" > {seen}.new; mv {seen}.new {seen}; exec sleep 600'
    script.write_text(user_data(site, SLOT, a_flux(folder, modes)), encoding="utf-8")
    node = subprocess.Popen(["sh", script], env={"PATH": "/usr/bin:/bin", "TMPDIR": str(own_tmp)}, umask=0o077)
    eventually("a broker", seen.exists)
    node.terminate()
    assert node.wait(20) == 0
    assert seen.read_text().split() == (["711", "755"] if guests else ["700", "700"])


def test_the_user_data_of_an_instance_with_guests_is_clean_shell_too(folder: Path, site: Site) -> None:
    admit_guests(site)
    checked = subprocess.run(
        ["shellcheck", "--shell=sh", "-"],
        input=user_data(site, SLOT, a_flux(folder, "")),
        capture_output=True,
        text=True,
        check=False,
    )
    assert checked.stdout == ""


def modes_of(*paths: Path) -> list[str]:
    return [oct(stat.S_IMODE(path.stat().st_mode)) for path in paths]


def test_guests_reach_the_socket_of_rank_0_only_if_the_instance_admits_them(folder: Path, output: Path) -> None:
    site = load_site(folder / "site.ini")
    write_bootstrap(site, output, a_flux(folder, KEYGEN))
    open_run_folder(site)
    assert modes_of(output, output / "run") == ["0o700", "0o700"]
    admit_guests(site)
    open_run_folder(site)
    assert modes_of(output, output / "run") == ["0o711", "0o755"]
    assert modes_of(output / "conf.d", output / "state", output / "curve.cert") == ["0o700", "0o700", "0o600"]


def test_a_folder_that_keeps_guests_from_rank_0_is_named(folder: Path, output: Path) -> None:
    text = (folder / "site.ini").read_text().replace("[Flux]", f"[Flux]\nuri = local://{output}/run/local-0")
    (folder / "site.ini").write_text(text)
    site = load_site(folder / "site.ini")
    write_bootstrap(site, output, a_flux(folder, KEYGEN))
    (folder / "state").chmod(0o700)
    assert guest_warnings(site) == ()
    admit_guests(site)
    (warning,) = guest_warnings(site)
    assert f"{folder}/state" in warning
    assert f"{output}," not in warning  # the manager opens this one itself
    for above in (folder / "state", *(it for it in folder.parents if not it.stat().st_mode & stat.S_IXOTH)):
        above.chmod(above.stat().st_mode | stat.S_IXOTH)
    folder.chmod(0o711)
    assert guest_warnings(site) == ()


def test_a_configuration_that_cannot_be_read_is_not_taken_for_one_without_guests(folder: Path, site: Site) -> None:
    admit_guests(site)
    (site.flux.bootstrap_dir / "conf.d" / "more.toml").write_text("[access", encoding="utf-8")
    with pytest.raises(BootstrapError, match=r"more\.toml"):
        user_data(site, SLOT, a_flux(folder, ""))


# --- other ways to join -----------------------------------------------------------------------------------


def joining(folder: Path, join: str) -> Site:
    """The site with another join method; with FLUB it has one node type only."""
    text = SITE.format(address="127.0.0.1").replace("[Cloud]", f"join = {join}\n[Cloud]")
    if join.startswith("flub"):
        text = text[: text.index("[Node gpu]")]
    (folder / "site.ini").write_text(text, encoding="utf-8")
    return load_site(folder / "site.ini")


def test_an_image_gets_only_its_slot(folder: Path) -> None:
    site = joining(folder, f'image\nimage_start = echo "$SLOT" > {folder}/slot')
    script = user_data(site, SLOT)  # with no flux on this machine
    subprocess.run(["/bin/sh", "-c", script], check=True)
    assert (folder / "slot").read_text() == "cloud02\n"


def test_by_flub_rank_0_has_a_rank_for_each_slot_and_no_table(folder: Path, output: Path) -> None:
    site = joining(folder, "flub")
    written = write_bootstrap(site, output, a_flux(folder, KEYGEN))
    assert "-Ssize=4" in written.start_command
    assert "-Sbroker.boot-method=config" not in written.start_command
    toml = tomllib.loads((output / "conf.d" / "flux.toml").read_text())
    assert "bootstrap" not in toml
    assert [table["hosts"] for table in toml["resource"]["config"]] == ["boss", "cloud[01-03]"]


def test_by_flub_a_node_brings_a_configuration_and_asks_the_server_for_a_rank(folder: Path) -> None:
    site = joining(folder, "flub\nboot_server = ssh://boss/run/flux/local")
    seen = folder / "seen"
    node = _boot(
        folder, site, f'for last; do :; done; cat "${{last#-Srundir=}}/node.toml" > {seen}; echo "$@" >> {seen}'
    )
    eventually("a broker", lambda: seen.exists() and "broker" in seen.read_text())
    node.terminate()
    assert node.wait(20) == 0
    config, _, command = seen.read_text().partition("broker ")
    assert tomllib.loads(config) == {"resource": {"noverify": True}}
    assert command.startswith(
        "-Sbroker.boot-server=ssh://boss/run/flux/local -Shostname=cloud02 -Stbon.topo=kary:0"
    )


def test_by_flub_the_user_data_is_clean_shell_too(folder: Path) -> None:
    script = user_data(joining(folder, "flub"), SLOT, a_flux(folder, ""))
    checked = subprocess.run(
        ["shellcheck", "--shell=sh", "-"], input=script, capture_output=True, text=True, check=False
    )
    assert checked.stdout == ""


def _boot(folder: Path, site: Site, flux_script: str) -> subprocess.Popen[bytes]:
    script = folder / "user-data"
    script.write_text(user_data(site, SLOT, a_flux(folder, flux_script)), encoding="utf-8")
    script.chmod(0o700)
    return subprocess.Popen(
        [script], env={"PATH": "/usr/bin:/bin"}, stdin=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
