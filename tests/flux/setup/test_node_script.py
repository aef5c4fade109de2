"""The script of a node whose rank 0 is gone for good, on a local cloud, with a command in place of flux."""

from __future__ import annotations

from pathlib import Path

import pytest
from libcloud.compute.base import NodeImage, NodeSize

from nodemanager.cloud.local.port import LocalNodeDriver
from nodemanager.config.load import load_site
from nodemanager.flux.setup.node_script import user_data
from tests.flux.setup.test_bootstrap import SITE, SLOT, a_flux, eventually

# A broker leaves its socket. A ping succeeds while the file "rank-0" is there.
FLUX = """
case "$1" in
broker) for last; do :; done; touch "${{last#-Srundir=}}/local-2"; exec sleep 600 ;;
ping) echo ping >>{folder}/pings; [ -e {folder}/rank-0 ] ;;
esac
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    text = SITE.format(address="127.0.0.1").replace("[Limits]", "[Timing]\nboot_timeout = 3s\n[Limits]")
    (tmp_path / "site.ini").write_text(text, encoding="utf-8")
    return tmp_path


def test_a_local_node_is_gone_when_rank_0_has_been_away_for_boot_timeout(folder: Path) -> None:
    cloud = LocalNodeDriver(folder / "cloud", terminated_ttl_s=0.0)
    script = user_data(load_site(folder / "site.ini"), SLOT, a_flux(folder, FLUX.format(folder=folder)))
    rank_0, pings = folder / "rank-0", folder / "pings"
    rank_0.touch()
    node = cloud.create_node(
        "n", NodeSize("s", "s", 1, 0, 0, 0.0, cloud), NodeImage("i", "i", cloud), ex_userdata=script
    )
    own_tmp = folder / "cloud" / "nodes" / str(node.id) / "tmp"
    eventually(
        "rank 0 has been asked more often than it may be away", lambda: pings.is_file() and _lines(pings) > 3
    )
    assert [it.extra["status"] for it in cloud.list_nodes()] == ["running"]
    assert own_tmp.is_file()

    rank_0.unlink()
    eventually("the node is gone", lambda: cloud.list_nodes() == [])
    assert _lines(pings) > 5


def _lines(file: Path) -> int:
    return file.read_text(encoding="utf-8").count("\n")


# The first broker dies suddenly and leaves a task behind; the second says whether it still lives.
DYING = """
[ "$1" = broker ] || exit 0
if [ -e {folder}/task ]; then
    kill -0 "$(cat {folder}/task)" 2>/dev/null && echo lives >{folder}/task-was || echo ended >{folder}/task-was
    exec sleep 600
fi
sleep 600 & echo "$!" >{folder}/task.new
mv {folder}/task.new {folder}/task
kill -KILL "$$"
"""


def test_no_broker_starts_beside_a_task_of_the_one_before(folder: Path) -> None:
    cloud = LocalNodeDriver(folder / "cloud", terminated_ttl_s=0.0)
    script = user_data(load_site(folder / "site.ini"), SLOT, a_flux(folder, DYING.format(folder=folder)))
    node = cloud.create_node(
        "n", NodeSize("s", "s", 1, 0, 0, 0.0, cloud), NodeImage("i", "i", cloud), ex_userdata=script
    )
    verdict = folder / "task-was"
    try:
        eventually("the second broker has started", verdict.is_file)
        assert verdict.read_text(encoding="utf-8") == "ended\n"
    finally:
        cloud.destroy_node(node)
