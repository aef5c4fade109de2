"""The accounts that ``init --provider`` can survey, by the provider's name."""

from __future__ import annotations

from collections.abc import Mapping

from nodemanager.cli.new_site.azure import AzureAccount
from nodemanager.cli.new_site.ec2 import Ec2Account
from nodemanager.cli.new_site.gce import GceAccount
from nodemanager.cli.new_site.openstack import OpenStackAccount

ACCOUNTS: Mapping[str, type[Ec2Account | OpenStackAccount | GceAccount | AzureAccount]] = {
    "ec2": Ec2Account,
    "openstack": OpenStackAccount,
    "gce": GceAccount,
    "azure": AzureAccount,
}
