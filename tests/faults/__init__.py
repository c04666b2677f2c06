"""Real faults, one by one: what the user sees of each, and what is lost. ``make faults`` prints the table."""

from __future__ import annotations

from tests.faults import crowds, damage, devices, disks, hosts, kills, oddities, upgrades
from tests.faults.lab import FAULTS

ROWS = tuple(FAULTS)
__all__ = ["ROWS", "crowds", "damage", "devices", "disks", "hosts", "kills", "oddities", "upgrades"]
