"""The metadata that depends on the address of the repository: its links, and those of the README.

The address is one setting, ``[tool.precast] repository`` in pyproject.toml. It is empty until there is a public
repository, and a fork has its own.
"""

from __future__ import annotations

import re
from pathlib import Path

from precast._builder.tables import MatrixError, Table, read_toml

# Label of a link on the page of the package index -> path below the repository.
LINKS = {
    "Homepage": "",
    "Documentation": "/blob/main/docs/README.md",
    "Source": "",
    "Issues": "/issues",
    "Changelog": "/blob/main/CHANGELOG.md",
}
_PICTURE = re.compile(r"!\[([^\]]*)\]\((?![a-z]+:)([^)\s]+)\)")
_LINK = re.compile(r"(?<!!)\[((?:[^\[\]]|!\[[^\]]*\]\([^)]*\))*)\]\((?![a-z]+:|#)([^)\s]+)\)")


def repository(root: Path) -> str:
    """The address in the pyproject.toml of ``root``, or ""; MatrixError if it is not one of https."""
    tool = Table(read_toml(root / "pyproject.toml").get("tool", {}).get("precast", {}), "tool.precast")
    address = tool.take("repository", str)
    tool.finish()
    if address and not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", address):
        raise MatrixError(f"tool.precast.repository: wanted https://host/owner/name or nothing; found {address!r}")
    return address


def absolute(text: str, address: str) -> str:
    """A README whose relative links lead to the repository. Without an address, their words remain and pictures go."""
    text = _PICTURE.sub(rf"![\1]({address}/raw/main/\2)" if address else "", text)
    return _LINK.sub(rf"[\1]({address}/blob/main/\2)" if address else r"\1", text)


def for_setup(root: Path) -> dict[str, object]:
    """The arguments of ``setup()``."""
    address = repository(root)
    return {
        "long_description": absolute((root / "README.md").read_text(encoding="utf-8"), address),
        "long_description_content_type": "text/markdown",
        "project_urls": {label: address + path for label, path in LINKS.items()} if address else {},
    }
