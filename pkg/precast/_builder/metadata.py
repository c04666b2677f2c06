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
    """The address of the repository in the pyproject.toml of ``root``, or ""; MatrixError if it is not one of https."""
    return _addresses(root)["repository"]


def require_addresses(root: Path) -> None:
    """Raise MatrixError if a release would tell nobody where its repository is, or where to report a vulnerability."""
    missing = [f'{name} = ""' for name, address in _addresses(root).items() if not address]
    if missing:
        raise MatrixError(
            "a release needs the address of the repository, and the one for reports of vulnerabilities",
            found=f"{', '.join(missing)} in [tool.precast] of pyproject.toml",
            needed="the repository as https://host/owner/name, and where a vulnerability is reported privately",
            fix="write them into pyproject.toml, and commit",
        )


def _addresses(root: Path) -> dict[str, str]:
    tool = Table(read_toml(root / "pyproject.toml").get("tool", {}).get("precast", {}), "tool.precast")
    addresses = {"repository": tool.take("repository", str), "security": tool.maybe("security", str) or ""}
    tool.finish()
    for name, address in addresses.items():
        if address and not re.fullmatch(r"https://[^\s/]+/\S*[^\s/]", address):
            raise MatrixError(f"tool.precast.{name}: needed https://host/owner/name or nothing; found {address!r}")
    return addresses


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
