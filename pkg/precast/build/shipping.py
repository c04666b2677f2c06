"""``python -m precast.build ship packages.toml -o out``: from a list of packages to guarded wheels on an index page.

For each package: fetch its archive from the package index and check its hash before it is unpacked, build it once per
torch, guard and merge, run its tests in each torch, and add the wheel to the index at ``out/site``. No source changes.
Tests of a build with CUDA run where there is the driver of a GPU.
``out/report.json`` and ``out/report.md`` say what was built. A build is kept in ``out/parts``, so that the same command
goes on where it was interrupted; remove that folder to build everything again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from precast._abi.settings import Settings
from precast._load import probe
from precast._version import __version__
from precast.build import environments, guarding, index, orders, trying, wheels
from precast.build.environments import Job
from precast.build.orders import Order
from precast.build.trying import Tried
from precast.build.wheels import Built
from precast.core import gpus
from precast.errors import KernelError

_COLUMNS = ("package", "label", "before", "torch releases in one wheel", "MB", "minutes", "tests in each torch")


def main(arguments: Sequence[str]) -> int:
    """Ship the packages of a list. Exit status 1: one was not fetched, built or accepted, or a test of it failed."""
    parser = argparse.ArgumentParser(prog="python -m precast.build ship", description=__doc__)
    parser.add_argument("list", type=Path, help="the TOML file that lists the packages")
    parser.add_argument(
        "-o", "--out", type=Path, default=Path("dist"), metavar="DIR", help="the output folder; default: dist"
    )
    parser.add_argument("--pin", action="store_true", help="write missing sha256 hashes into the list")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="build only these packages of the list")
    options = parser.parse_args(arguments)
    try:
        listed = _pinned(options.list, write=options.pin)
        chosen = [one for one in listed if options.only is None or one.name in options.only]
        missing = sorted(set(options.only or ()) - {one.name for one in chosen})
        if missing or not chosen:
            raise KernelError(
                f"{options.list} has no package {', '.join(missing) or 'at all'}",
                found=", ".join(one.name for one in listed) or "an empty list",
                needed="names of packages in the list",
                fix="repeat the command with one of these names after --only"
                if listed
                else f"add a package to {options.list}",
            )
    except KernelError as error:
        print(error, file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)
    failed = [one.name for one in chosen if not _ship(one, listed, options.out.resolve())]
    if failed:
        print(f"not shipped: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _pinned(path: Path, *, write: bool) -> tuple[Order, ...]:
    """The packages of a list, each with the hash of its archive. KernelError if one has none and may not get it."""
    for order in (one for one in orders.read(path) if not one.sha256):
        if not write:
            fix = (
                f"python -m precast.build ship --pin {shlex.quote(str(path))}  # writes what the package index has now"
            )
            raise KernelError(
                f"{path}: {order.name} {order.version} has no sha256",
                found="a version without a sha256",
                needed="the sha256 of its archive",
                fix=fix,
            )
        found = hash_on_index(order)
        orders.pin(path, order, found)
        print(f"{order.name} {order.version}: sha256 {found}", flush=True)
    return orders.read(path)


def hash_on_index(order: Order) -> str:
    """The hash of a package's archive on the package index, from pip's error about a wrong hash.

    pip compares hashes before it unpacks anything. KernelError if there is no such archive.
    """
    with tempfile.TemporaryDirectory(prefix="precast-pin-") as work:
        try:
            _download(replace(order, sha256="0" * 64), Path(sys.executable), Path(work))
        except KernelError as error:
            found = re.search(r"Got\s+([0-9a-f]{64})", str(error))
            if found is None:
                raise
            return found[1]
    raise AssertionError("pip took an archive of another hash")


def _download(order: Order, interpreter: Path, work: Path) -> None:
    wanted = work / "wanted.txt"
    wanted.write_text(f"{order.name}=={order.version} --hash=sha256:{order.sha256}\n", encoding="utf-8")
    options = ("--no-deps", "--no-binary=:all:", "--no-build-isolation", "--require-hashes", "-r", str(wanted))
    command = environments.pip(interpreter, "download", *options, "-d", str(work / "got"))
    env = environments.plain(os.environ) | dict(order.variables)
    environments.run(command, work, env, f"{order.name} {order.version} from the package index")


def _ship(order: Order, listed: Sequence[Order], out: Path) -> bool:
    """Ship one package of a list; whether all of it passed. The next package is shipped in any case."""
    print(f"{order.name} {order.version}, {order.label or 'several labels'}", flush=True)
    try:
        requires = _required(order, listed, out)
        settings = probe.read_settings(building=True)
        settings = replace(settings, arch_list=order.gpus or settings.arch_list)
        archive = fetched(order, out / "archives", settings)
        with tempfile.TemporaryDirectory(prefix="precast-ship-") as folder:
            tree = wheels.unpacked(archive, Path(folder))
            built = {job: _built(order, job, tree, out / "parts", settings) for job in order.jobs}
            single = [one.wheel for one in built.values()]
            merged = guarding.audited(single, Path(folder) / "merged", how=guarding.How(manylinux=True))
            if not merged:
                return False
            tests = [_test(text, tree) for text in order.tests]
            here = [job for job in order.jobs if tests and (job.label.cuda is None or gpus.driver_version())]
            done = [trying.tried(merged[0], job, tests, requires, settings) for job in here]
            if tests and not here:
                print("  no test was run: there is no driver of a GPU", flush=True)
            for one in done:
                print(f"  {one}", flush=True)
            if any(one.bad for one in done):
                return False
            (placed,) = index.add(merged, out / "site")
    except (KernelError, ValueError) as error:
        print(error, file=sys.stderr)
        return False
    _report(_entry(order, built, done, placed), out)
    print(f"  {placed}: {placed.stat().st_size / 1e6:.2f} MB", flush=True)
    return True


def fetched(order: Order, folder: Path, settings: Settings) -> Path:
    """The archive of a package, from the package index by pip, which checks the hash before it unpacks anything.

    pip then asks the build backend for the metadata, in the environment of the first torch. KernelError if there is no
    such archive, or if it has another hash.
    """
    folder.mkdir(parents=True, exist_ok=True)
    kept = folder / order.sha256
    if not kept.is_dir():
        made = environments.environment(order.jobs[0], settings)
        with tempfile.TemporaryDirectory(dir=folder) as work:
            _download(order, made.python, Path(work))
            (Path(work) / "got").rename(kept)
    (archive,) = kept.iterdir()
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != order.sha256:
        raise KernelError(
            f"{archive} was changed",
            found=f"sha256 {found}",
            needed=f"sha256 {order.sha256}",
            fix=f"rm -r {shlex.quote(str(kept))}  # then repeat the command",
        )
    return archive


def _built(order: Order, job: Job, tree: Path, parts: Path, settings: Settings) -> Built:
    """The wheel of one torch: kept from an earlier run if nothing that decides its bytes differs, else built."""
    targets = environments.targets_of(job.label, settings) if job.label.cuda is not None else ()
    key = json.dumps([order.sha256, job.name, list(map(str, targets)), dict(order.variables), __version__])
    kept = parts / f"{order.name}-{job.name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    record = kept / "built.json"
    if not record.is_file():
        with tempfile.TemporaryDirectory(prefix="precast-part-") as work:
            made = wheels.build(tree, job, Path(work) / "part", settings, order.variables)
            shutil.rmtree(kept, ignore_errors=True)
            kept.mkdir(parents=True)
            shutil.move(made.wheel, kept / made.wheel.name)
            record.write_text(json.dumps({**asdict(made), "wheel": made.wheel.name}) + "\n", encoding="utf-8")
    said: dict[str, Any] = json.loads(record.read_text(encoding="utf-8"))
    return Built(**{**said, "wheel": kept / said["wheel"]})


def _required(order: Order, listed: Sequence[Order], out: Path) -> list[str]:
    """The requirements of the tests: for a package of the list, the wheel that it made for the label, else the name."""
    ours = {one.name: one for one in listed if one.label == order.label}
    made = {one["name"]: one for one in _reported(out) if one["label"] == order.label}
    found = []
    for name in order.requires:
        if name in ours:
            known = made.get(name, {})
            right = known.get("sha256") == ours[name].sha256
            wheels = [*(out / "site" / (order.label or "all")).glob(f"*/{known['wheel']}")] if right else []
            if not wheels:
                raise KernelError(
                    f"the tests of {order.name} cannot be run: they require {name}, of the same list",
                    found=f"no wheel of {name} {ours[name].version} in {out}",
                    needed=f"a wheel of {name} that an earlier step made",
                    fix=f"repeat the command with --only {name} {order.name}",
                )
            name = str(wheels[0])
        found.append(name)
    return found


def _test(text: str, tree: Path) -> Path:
    return tree / text.removeprefix(orders.IN_ARCHIVE) if text.startswith(orders.IN_ARCHIVE) else Path(text)


def _entry(order: Order, built: Mapping[Job, Built], done: Sequence[Tried], placed: Path) -> dict[str, Any]:
    """What the report says of one package."""
    return {
        "name": order.name,
        "version": order.version,
        "sha256": order.sha256,
        "label": order.label,
        "gpus": order.gpus or "",
        "before": order.before,
        "wheel": placed.name,
        "bytes": placed.stat().st_size,
        "builds": {job.name: {"libraries": one.libraries, "seconds": round(one.seconds)} for job, one in built.items()},
        "tests": {one.job.name: [one.passed, one.failed, one.skipped] for one in done},
    }


def _report(entry: Mapping[str, Any], out: Path) -> None:
    """Put one package into the report, in the place of what an earlier run said of it."""
    others = [one for one in _reported(out) if (one["name"], one["label"]) != (entry["name"], entry["label"])]
    whole = sorted([*others, entry], key=lambda one: (one["name"], one["label"]))
    (out / "report.json").write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
    (out / "report.md").write_text(table(whole), encoding="utf-8")


def _reported(out: Path) -> list[dict[str, Any]]:
    """What the report says of each package that was shipped before."""
    path = out / "report.json"
    known: list[dict[str, Any]] = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    return known


def table(report: Sequence[Mapping[str, Any]]) -> str:
    """The report as a table in Markdown."""
    rows = [_COLUMNS, ("---",) * len(_COLUMNS)]
    for one in report:
        torches = ", ".join(name.partition("-")[0].removeprefix("torch") for name in one["builds"])
        minutes = sum(build["seconds"] for build in one["builds"].values()) / 60
        counts = {tuple(count) for count in one["tests"].values()}
        tests = "; ".join(f"{ok} passed" + f", {skipped} skipped" * bool(skipped) for ok, _, skipped in sorted(counts))
        name = f"{one['name']} {one['version']}"
        label = one["label"] + f" ({one['gpus']})" * bool(one["gpus"])
        size, took = f"{one['bytes'] / 1e6:.2f}", f"{minutes:.1f}"
        rows.append((name, label, one["before"], torches, size, took, tests or "none was run"))
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)
