"""The command line, as a user meets it."""

import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog

from nodemanager.cli import cloud_test, main
from nodemanager.cli.in_job import command as in_job_command
from nodemanager.cli.verbs.failures import report_failure
from nodemanager.cloud.local.port import Store
from nodemanager.config.load import load_site
from nodemanager.config.site import name_file
from nodemanager.core.ports import FluxError
from nodemanager.flux.bindings import BindingsMissing, BindingsTooOld
from nodemanager.service.assembly.cluster import NotInitialised, record_cluster_name
from nodemanager.service.assembly.ports import NodesCannotJoin
from tests.paths import ROOT

EMBEDDED = ROOT / "config" / "embedded.ini"
LOCAL = ROOT / "config" / "local.ini"


@pytest.fixture(autouse=True)
def _logs_as_before() -> Iterator[None]:
    """Undo a verb's configuration of the logging, which writes to a stream of the test."""
    yield
    structlog.reset_defaults()


@pytest.mark.parametrize("arguments", [["check", "--config", str(EMBEDDED)], ["--config", str(EMBEDDED), "check"]])
def test_the_config_stands_before_or_after_the_verb(
    arguments: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(arguments) == 0
    assert "good; 3 node types, 10 slots, mode act" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("only_for", "note"),
    [
        ("", ""),
        ("gpu", "only_for = gpu: a job without GPUs that fits on no other type never runs"),
        ("any", "only_for = any: jobs without GPUs may pay 0.375 a core-hour there; small costs 0.05"),
    ],
)
def test_check_says_what_follows_from_only_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], only_for: str, note: str
) -> None:
    key = f"only_for = {only_for}\n" if only_for else ""
    site = tmp_path / "site.ini"
    site.write_text(EMBEDDED.read_text().replace("gpus = 1\n", f"gpus = 1\n{key}"))
    assert main.main(["check", "--config", str(site)]) == 0
    notes = [line for line in capsys.readouterr().out.splitlines() if "[Node" in line]
    assert notes == ([f"{site}: note: [Node gpu] {note}"] if note else [])


def test_check_marks_its_warnings_and_notes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("price_per_hour_max = 10.00", "price_per_hour_max = 0.50"))
    assert main.main(["check", "--config", str(site)]) == 0
    said = capsys.readouterr()
    marks = [line.removeprefix(f"{site}: ").partition(":")[0] for line in (said.out + said.err).splitlines()]
    assert set(marks) == {"warning", "note", "good; 2 node types, 6 slots, mode act"}, said


def test_check_as_json_has_every_line_with_its_verdict(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.ini"
    text = LOCAL.read_text().replace("price_per_hour_max = 10.00", "price_per_hour_max = 0.50")
    site.write_text(text)
    assert main.main(["check", "--config", str(site)]) == 0
    said = capsys.readouterr()
    assert main.main(["check", "--json", "--config", str(site)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["good"] is True
    found = {f"{it['subject']}: {it['verdict']}: {it['text']}" for it in document["findings"]}
    assert found == {line for line in (said.out + said.err).splitlines() if "good;" not in line}
    site.write_text(text + "[Web]\ntokens_file = none\n")
    assert main.main(["check", "--json", "--config", str(site)]) == 78
    document = json.loads(capsys.readouterr().out)
    assert document["good"] is False
    assert any(it["verdict"] == "fault" and "[Web] tokens_file" in it["text"] for it in document["findings"])


def test_check_warns_of_a_state_dir_that_cannot_be_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    (tmp_path / "file").touch()
    site.write_text(LOCAL.read_text().replace("../state/local", str(tmp_path / "file" / "state")))
    assert main.main(["check", "--config", str(site)]) == 0
    said = capsys.readouterr().err
    assert "warning: [Site] state_dir" in said
    assert "nobody could steer it" in said
    assert main.main(["check", "--online", "--config", str(site)]) == 1
    said = capsys.readouterr().out
    assert "fault    state_dir: " in said
    assert "fault    account: " in said, "a finding, no traceback"


def test_check_warns_if_nodes_will_find_no_bootstrap(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state/local", str(tmp_path)))
    assert main.main(["check", "--config", str(site)]) == 0
    assert "bootstrap_dir" not in capsys.readouterr().err, "init has not run yet"
    (tmp_path / "cluster-uuid").write_text("5c5ac7be-9b89-4213-bfba-faf44a0f9aec\n")
    assert main.main(["check", "--config", str(site)]) == 0
    assert f"bootstrap_dir = {tmp_path}/flux: nodes read" in capsys.readouterr().err
    (tmp_path / "flux" / "conf.d").mkdir(parents=True)
    assert main.main(["check", "--config", str(site)]) == 0
    assert "bootstrap_dir" not in capsys.readouterr().err


def test_every_fault_of_a_site_is_said_and_the_status_is_78(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    site.write_text(EMBEDDED.read_text().replace("nodes_max = 8", "nodes_mx = eight").replace("20.00", "-1"))
    assert main.main(["check", "--config", str(site)]) == 78
    said = capsys.readouterr().err
    assert "nodes_mx" in said
    assert "nodes_max" in said
    assert "price_per_hour_max" in said


def test_a_real_site_without_its_uuid_is_refused_with_the_way_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state", str(tmp_path)))
    assert main.main(["--config", str(site)]) == 78
    assert "flux-node-manager init" in capsys.readouterr().err


def test_a_cluster_that_has_run_cannot_be_renamed_unnoticed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    site = tmp_path / "site.ini"
    text = LOCAL.read_text().replace("../state", str(tmp_path))
    site.write_text(text)
    record_cluster_name(load_site(site))
    record_cluster_name(load_site(site))
    assert main.main(["check", "--config", str(site)]) == 0
    name, state_dir = load_site(site).cluster, load_site(site).state_dir
    site.write_text(text.replace(f"cluster = {name}", f"cluster = {name}2"))
    capsys.readouterr()
    assert main.main(["check", "--config", str(site)]) == 78
    assert f"this cluster's nodes carry the name {name}." in capsys.readouterr().err
    name_file(state_dir).unlink()
    assert main.main(["check", "--config", str(site)]) == 0


def test_a_simulated_instance_keeps_no_name(tmp_path: Path) -> None:
    site = tmp_path / "site.ini"
    site.write_text(EMBEDDED.read_text())
    record_cluster_name(load_site(site))
    assert not name_file(load_site(site).state_dir).exists()


def test_a_name_that_cannot_be_kept_keeps_nothing_from_running(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "local").write_text("a file where the folder should be")
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state", str(tmp_path)))
    record_cluster_name(load_site(site))
    said = capsys.readouterr()
    assert "cluster_name_not_kept" in said.out + said.err


def test_an_argument_that_a_verb_does_not_take_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["check", "it", "--config", str(LOCAL)]) == 2
    assert "check takes no argument: it" in capsys.readouterr().err


WRONG_USES = {
    "chek": 'no verb "chek": did you mean check?',
    "frobnicate": "Read more: flux-node-manager --help",
    "explain jop f2": '"jop" is not allowed: did you mean job?',
    "explain job f2 --att 2h": "explain: there is no option --att: did you mean --at?",
    "hold": "required: NODE",
    "hold a b": "does not take so many arguments",
    "--json status": "no option --json is allowed before the verb",
    "status": "give the site file: --config SITE.INI",
    "ensemble check --config site.ini": "no option --config",
    "--config site.ini ensemble check a.yaml": "ensemble takes no --config",
    "expand f2 -N 0 --config site.ini": '"0": give a whole number of 1 or more',
    "ensemble lst": "did you mean list?",
    f"init --config {LOCAL}": "--output DIR",
}


@pytest.mark.parametrize("words", WRONG_USES)
def test_a_wrong_command_line_names_what_is_nearest(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(words.split()) == 2
    assert WRONG_USES[words] in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("verb", main.VERBS)
def test_the_help_of_a_verb_has_its_own_options_and_an_example_that_parses(
    verb: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        main.main([verb, "--help"])
    said = capsys.readouterr().out
    assert ended.value.code == 0
    assert ("--keep" in said) is (verb == "cloud-test")
    _, *example = shlex.split(said.partition("example:\n")[2])
    assert main.make_parser(example).parse_args(example).verb == verb


def test_names_for_the_shell_are_one_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["names", "types", "--config", str(EMBEDDED)]) == 0
    assert capsys.readouterr().out.split() == ["small", "large", "gpu"]


def test_init_without_flux_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state", str(tmp_path)))
    assert main.main(["init", "--config", str(site), "--output", str(tmp_path / "flux")]) == 1
    assert "flux-core" in capsys.readouterr().err


def test_a_verb_in_a_job_says_how_to_get_flux_in_lines(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def missing(uri: str) -> object:
        raise BindingsMissing(f"none at {uri}\nget them")

    monkeypatch.setattr(in_job_command, "connection", missing)
    assert main.main(["data-safe", "f2", "--uri", "local:///x"]) == 69
    assert capsys.readouterr().err == "none at local:///x\nget them\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_embedded_site_runs_until_told_to_stop(number: signal.Signals) -> None:
    command = [sys.executable, "-m", "nodemanager", "--config", str(EMBEDDED)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as service:
        assert service.stderr is not None
        for line in service.stderr:
            if '"was": "requested", "now": "booting"' in line:
                service.send_signal(number)
                break
        rest = service.stderr.read()
        assert service.wait(10) == 0
    assert '"event": "stopped"' in rest


def test_flux_finds_it_by_name(tmp_path: Path) -> None:
    flux = shutil.which("flux")
    if flux is None:
        pytest.skip("no flux on PATH")
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    ran = subprocess.run(
        [flux, "node-manager", "check", "--config", str(EMBEDDED)],
        env={**os.environ, "PATH": path},
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert (ran.returncode, "good" in ran.stdout) == (0, True), ran.stderr


def _local_site(tmp_path: Path) -> Path:
    site = tmp_path / "site.ini"
    site.write_text(LOCAL.read_text().replace("../state", str(tmp_path / "state")))
    return site


def test_cloud_test_makes_a_node_and_takes_it_away(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cloud_test, "POLL_S", 0.1)
    site = _local_site(tmp_path)
    before = signal.getsignal(signal.SIGTERM)
    try:
        assert main.main(["cloud-test", "--config", str(site)]) == 0
    finally:
        signal.signal(signal.SIGTERM, before)
    said = capsys.readouterr().out
    assert "running" in said
    assert "destroyed, and seen gone" in said
    assert Store(tmp_path / "state" / "local" / "cloud").read_all()[0].terminated_at is not None


def test_cloud_test_on_sigterm_takes_the_node_away(tmp_path: Path) -> None:
    site = _local_site(tmp_path)
    site.write_text(site.read_text().replace("boot_delay = 0s", "boot_delay = 1h"))
    command = [sys.executable, "-m", "nodemanager", "cloud-test", "--config", str(site)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as testing:
        assert testing.stdout is not None
        for line in testing.stdout:
            if "listed, with its tags" in line:
                testing.send_signal(signal.SIGTERM)
                break
        said = testing.stdout.read()
        assert testing.wait(timeout=60) == 130
    assert "destroyed, and seen gone" in said
    assert Store(tmp_path / "state" / "local" / "cloud").read_all()[0].terminated_at is not None


def test_cloud_test_has_nothing_to_test_in_a_simulated_cloud(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["cloud-test", "--config", str(EMBEDDED)]) == 1
    assert "there is no account to test" in capsys.readouterr().err


def test_prices_marks_what_the_table_lacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = tmp_path / "prices.toml"
    assert main.main(["prices", "--config", str(EMBEDDED)]) == 1
    assert capsys.readouterr().out.count("not in the list") == 3
    sizes = {node.size: node.price_per_hour for node in load_site(EMBEDDED).node_types}
    table.write_text("[here]\n" + "".join(f'"{size}" = {price}\n' for size, price in sizes.items()))
    assert main.main(["prices", "--config", str(EMBEDDED), "--table", str(table), "--region", "here"]) == 0
    assert "not in the list" not in capsys.readouterr().out


def test_prices_of_gce_are_those_of_the_region_of_each_types_zones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    site = tmp_path / "site.ini"
    text = (ROOT / "config" / "gce.ini").read_text()
    site.write_text(text.replace("zones = europe-west3-a, europe-west3-b\n", "").replace("[Node small]\n", (
        "[Node small]\nzones = europe-west3-a, us-central1-b\n")).replace(
        "[Node spot]\n", "[Node spot]\nzones = europe-west3-b\n"))  # fmt: skip
    main.main(["prices", "--config", str(site)])
    said = capsys.readouterr().out
    rows = [line.split() for line in said.splitlines() if "n2-standard-" in line]
    assert [row[:3] for row in rows] == [
        ["small", "n2-standard-4", "europe-west3"],
        ["small", "n2-standard-4", "us-central1"],
        ["spot", "n2-standard-16", "europe-west3"],
    ]
    assert "in USD, regions europe-west3, us-central1." in " ".join(said.split())


def test_prices_names_a_table_it_cannot_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.main(["prices", "--config", str(EMBEDDED), "--table", str(tmp_path / "none.toml")]) == 1
    assert "none.toml" in capsys.readouterr().err


# --- output that cannot be written ------------------------------------------------------------------------


def printing(*arguments: str, stdout: int, unbuffered: str) -> tuple[int, str]:
    """Run a process with that standard output. Returns its exit status and its standard error."""
    command = [sys.executable, "-m", "nodemanager", *arguments]
    done = subprocess.run(
        command,
        stdout=stdout,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
        cwd=ROOT,
        env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
    )
    return done.returncode, done.stderr


CHECK, PRICES = ["check", "--config", str(EMBEDDED)], ["prices", "--config", str(EMBEDDED)]
PRINTS = [(CHECK, ""), (CHECK, "1"), (PRICES, ""), (PRICES, "1"), (["--help"], ""), (["simulate", "--help"], "")]


@pytest.mark.parametrize(("arguments", "unbuffered"), PRINTS)
def test_a_verb_ends_in_peace_where_nobody_reads_on(arguments: list[str], unbuffered: str) -> None:
    read, write = os.pipe()
    os.close(read)
    assert printing(*arguments, stdout=write, unbuffered=unbuffered) == (141, "")
    os.close(write)


@pytest.mark.parametrize(("arguments", "unbuffered"), PRINTS)
def test_a_verb_says_that_its_output_could_not_be_written(arguments: list[str], unbuffered: str) -> None:
    with Path("/dev/full").open("wb") as full:
        status, said = printing(*arguments, stdout=full.fileno(), unbuffered=unbuffered)
    assert (status, said.count("\n")) == (1, 1), said
    assert "No space left on device" in said


@pytest.mark.parametrize("arguments", [CHECK, PRICES])
def test_a_verb_without_an_output_says_so(arguments: list[str]) -> None:
    closed = ["sh", "-c", 'exec "$@" >&-', "sh", sys.executable, "-m", "nodemanager", *arguments]
    done = subprocess.run(closed, stderr=subprocess.PIPE, text=True, check=False, cwd=ROOT)
    assert (done.returncode, "standard output is closed" in done.stderr) == (1, True), done.stderr


def test_a_flux_that_is_too_old_is_refused_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """By check and by init, before anything is written."""
    flux = tmp_path / "flux"
    flux.write_text("#!/bin/sh\nprintf 'libflux-core:\\t0.71.0\\n'\n", encoding="utf-8")
    flux.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    site = tmp_path / "site.ini"
    shutil.copy(LOCAL, site)
    for arguments in (["check"], ["init", "--output", str(tmp_path / "made")]):
        assert main.main([*arguments, "--config", str(site)]) == 69
        said = capsys.readouterr().err
        assert "flux-core 0.71" in said
        assert "0.72 or later" in said
    assert not (tmp_path / "made").exists()


@pytest.mark.skipif(os.getuid() == 0 and shutil.which("setpriv") is None, reason="root may read everything")
@pytest.mark.parametrize("verb", [["status"], ["explain", "job", "f2"]])
@pytest.mark.parametrize("closed", ["site.ini", "state"])
def test_a_guest_is_told_what_a_guest_has(tmp_path: Path, verb: list[str], closed: str) -> None:
    """The site is closed to others, or only its socket is."""
    text = LOCAL.read_text(encoding="utf-8").replace("../state/local", "state")
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "web.sock").touch()
    for folder in (tmp_path, *tmp_path.parents):
        if not folder.stat().st_mode & 0o001:
            folder.chmod(folder.stat().st_mode | 0o011)
    (tmp_path / "site.ini").chmod(0o644)
    (tmp_path / closed).chmod(0)
    as_guest = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"] if os.getuid() == 0 else []
    command = [sys.executable, "-m", "nodemanager", *verb, "--config", str(tmp_path / "site.ini")]
    ran = subprocess.run([*as_guest, *command], capture_output=True, text=True, check=False, cwd=ROOT)
    if "Permission denied" in ran.stderr and ran.returncode == 126:
        pytest.skip("this Python is closed to others")
    assert ran.returncode == 77, ran.stderr
    assert "Permission denied" in ran.stderr
    assert "node-manager-info.explain" in ran.stderr
    assert "user.nodes" in ran.stderr


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (BindingsMissing("no flux is on PATH"), 69),
        (BindingsTooOld("flux-core 0.71"), 69),
        (NotInitialised("run flux-node-manager init"), 78),
        (NodesCannotJoin("there is no certificate"), 78),
        (FluxError("rank 0 is away"), 1),
    ],
)
def test_the_exit_status_tells_who_must_act(
    error: Exception, status: int, capsys: pytest.CaptureFixture[str]
) -> None:
    assert report_failure(error) == status
    assert capsys.readouterr().err == f"{error}\n"
