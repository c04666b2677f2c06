"""Reads, compares and writes the files METADATA and WHEEL of wheels."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path

from precast._version import __version__
from precast.core.manifest import BuildInfo
from precast.core.torch_abi import Exact
from precast.errors import KernelError

# A requirement on torch or precast, which a guarded wheel states itself.
_OURS = re.compile(r"\s*(?P<name>torch|precast)\s*(?:\[(?P<extras>[^]]*)\])?\s*(?![\w.-])", re.IGNORECASE)
_PYTHON = re.compile(r"cp3(\d+)")
# Headers that say how a wheel was made and not what is in it.
_MADE_BY = {"metadata-version", "generator", "tag", "root-is-purelib"}


@dataclass(frozen=True)
class Headers:
    """The headers of one file in order, and the text behind them."""

    items: tuple[tuple[str, str], ...]
    body: str = ""

    def all(self, name: str) -> tuple[str, ...]:
        """The values of a header, whose name has any case."""
        return tuple(value for key, value in self.items if key.lower() == name.lower())

    def without(self, *names: str) -> Headers:
        """These headers but for some."""
        left = {name.lower() for name in names}
        return Headers(tuple(item for item in self.items if item[0].lower() not in left), self.body)

    def with_added(self, name: str, *values: str) -> Headers:
        """These headers and more."""
        return Headers((*self.items, *((name, value) for value in values)), self.body)

    def replaced(self, name: str, value: str) -> Headers:
        """These headers with another value of one, in its place."""
        items = tuple((key, value if key.lower() == name.lower() else old) for key, old in self.items)
        return Headers(items, self.body)

    def __str__(self) -> str:
        head = "".join(f"{name}: {value}\n" for name, value in self.items)
        return f"{head}\n{self.body}" if self.body else head


def parse(data: bytes, where: str) -> Headers:
    """Read headers with any line ends. KernelError if they are no text, or no headers."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise KernelError(
            f"{where} cannot be read", found=str(error), needed="UTF-8", fix=f"save {where} as UTF-8"
        ) from error
    message = HeaderParser().parsestr(re.sub(r"\r\n?", "\n", text))
    if message.defects or not message.items():
        found = ", ".join(type(one).__name__ for one in message.defects) or "no header"
        raise KernelError(
            f"{where} cannot be read",
            found=found,
            needed="headers such as Name: my_ops, an empty line, a text",
            fix="build the wheel again",
        )
    return Headers(tuple((name, str(value)) for name, value in message.items()), str(message.get_payload()))


def merged(files: Mapping[Path, Headers], what: str) -> Headers:
    """The metadata that the wheels of a group share. KernelError if they differ in more than torch and version."""
    first, *others = sorted(files)
    for other in others:
        for name in dict.fromkeys(key.lower() for key, _ in (*files[first].items, *files[other].items)):
            if name in _MADE_BY | {"version"}:
                continue
            pair = [_compared(files[one], name) for one in (first, other)]
            if pair[0] != pair[1]:
                only = [", ".join(sorted({*pair[at]} - {*pair[1 - at]})) or "nothing more" for at in (0, 1)]
                found = f"{what} with {name}: {only[0]} in {first}, and {only[1]} in {other}"
                raise KernelError(
                    f"{first.name} and {other.name} cannot be merged",
                    found=found,
                    needed="the same in both",
                    fix="build both wheels from the same sources",
                )
        if files[first].body.strip() != files[other].body.strip():
            found = f"another description in the {what} of {first} than of {other}"
            raise KernelError(
                f"{first.name} and {other.name} cannot be merged",
                found=found,
                needed="the same in both",
                fix="build both wheels from the same sources",
            )
    made = min(files.values(), key=str)
    for name in ("Metadata-Version", "Generator"):
        made = made.replaced(name, max((value for one in files.values() for value in one.all(name)), default=""))
    ours = sorted({text for one in files.values() for text in one.all("Requires-Dist") if _OURS.match(text)})
    rest = [text for text in made.all("Requires-Dist") if not _OURS.match(text)]
    return made.without("Requires-Dist").with_added("Requires-Dist", *rest, *ours)


def _compared(one: Headers, name: str) -> list[str]:
    """The values of a header that two wheels must share, in one spelling."""
    values = (value for value in one.all(name) if name != "requires-dist" or not _OURS.match(value))
    return sorted(" ".join(value.split()) for value in values)


def why_precast(infos: Iterable[BuildInfo], importing: Iterable[str]) -> str:
    """Why a wheel needs precast where it is installed; empty if it stands alone."""
    launched = sorted({image.family for info in infos for image in info.device})
    if launched:
        return f"device code is launched from Python: {', '.join(launched)}"
    first = next(iter(importing), None)
    return "" if first is None else f"{first} imports it"


def requiring(metadata: str, infos: Iterable[BuildInfo], why_precast: str) -> str:
    """METADATA with the releases of torch that libraries are for, and with precast if there is a reason for it.

    A requirement on precast that an earlier guard added may go; one of the package itself stays.
    """
    said = parse(metadata.encode("utf-8", "surrogateescape"), "METADATA")
    required = [(found["name"].lower(), text) for text in said.all("Requires-Dist") if (found := _OURS.match(text))]
    kept = [text for text in said.all("Requires-Dist") if not _OURS.match(text)]
    of_torch = [text for name, text in required if name == "torch"]
    only = _only(infos)
    if only:
        names = {word.strip() for text in of_torch for word in (_extras(text) or "").split(",")} - {""}
        of_torch = [f"torch[{','.join(sorted(names))}]{only}" if names else f"torch{only}"]
    said_so = [text for name, text in required if name == "precast"]
    of_precast = said_so or ([f"precast>={__version__}"] if why_precast else [])
    return str(said.without("Requires-Dist").with_added("Requires-Dist", *kept, *of_torch, *of_precast))


def _extras(requirement: str) -> str | None:
    found = _OURS.match(requirement)
    return None if found is None else found["extras"]


def _only(infos: Iterable[BuildInfo]) -> str:
    """The releases of torch for which there are libraries, as a requirement states them; empty for any.

    Also for a build of a commit: a requirement of a release excludes its pre-releases.
    """
    exact = [file.abi for info in infos for file in info.host if isinstance(file.abi, Exact)]
    releases = sorted({abi.release for abi in exact})
    if not releases or any(abi.git for abi in exact):
        return ""
    last = releases[-1]
    between = [f"!={last.major}.{minor}.*" for minor in range(releases[0].minor, last.minor)
               if last.major == releases[0].major and not any(r.minor == minor for r in releases)]  # fmt: skip
    return ",".join([f">={releases[0]}", f"<{last.major}.{last.minor + 1}", *between])


def of_python(said: Headers, given: Sequence[str], tag: tuple[str, str]) -> Headers:
    """The headers with the oldest Python that a wheel was tagged for, if its new tag no longer says so.

    A library without Python's functions widens ``cp311`` to ``py3``; the package's own Python was promised for 3.11.
    """
    minors = [int(found[1]) for text in given for found in _PYTHON.finditer(text)]
    if said.all("Requires-Python") or not minors or all(part.startswith("cp3") for part in tag):
        return said
    return said.with_added("Requires-Python", f">=3.{min(minors)}")


def wheel_file(said: Headers, tags: Iterable[str]) -> str:
    """WHEEL with one line for each combination of tags."""
    kept = said.without("Tag", "Root-Is-Purelib").with_added("Root-Is-Purelib", "false")
    return str(kept.with_added("Tag", *tags))
