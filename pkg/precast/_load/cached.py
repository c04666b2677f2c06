"""Look up in the build cache the pieces that a decision would build, and explain each cache miss."""

from __future__ import annotations

from typing import Any

from precast._abi.decision import BuildAdapter, BuildHost, BuildImage, Refuse
from precast._abi.settings import Settings
from precast._builder import cache_tools
from precast._builder.cache import BuildKey, Cache, open_cache
from precast._builder.catalogue import Family
from precast._load import jit
from precast._load.choose import Choice
from precast.core.host import Builders

Json = dict[str, Any]
Build = BuildHost | BuildAdapter | BuildImage


def describe(family: Family, choice: Choice) -> list[Json]:
    """For each piece that a decision would build: its key, hit or miss, and on a miss the nearest entry."""
    decision = choice.decision
    if isinstance(decision, Refuse):
        return []
    cache = open_cache(choice.settings)
    images = [(f"cuda:{index}", image) for index, image in decision.images]
    pieces = [("host", decision.host), ("torch", decision.binding), *images]
    return [
        {"piece": piece, **_look(cache, _key(family, what, choice.builders, choice.settings, cache))}
        for piece, what in pieces
        if isinstance(what, Build)
    ]


def _look(cache: Cache, key: BuildKey) -> Json:
    path = cache.lookup(key)
    if path is not None:
        return {"state": "hit", "key": str(key), "path": str(path), "note": "", "nearest": None}
    damaged = cache_tools.read_entry(cache.entry(key)).problem if cache.entry(key).is_dir() else None
    note = f"its entry is damaged and will be made again: {damaged}" if damaged else ""
    found = cache_tools.nearest(cache.root, key)
    near = found and {
        "entry": found[0].label,
        "differs": [{"input": d.field, "needed": d.needed, "found": d.found} for d in found[1]],
    }
    return {"state": "miss", "key": str(key), "path": str(cache.entry(key)), "note": note, "nearest": near}


def _key(family: Family, what: Build, builders: Builders, settings: Settings, cache: Cache) -> BuildKey:
    """The key that a build would have. Needs no network, because a build at run time downloads nothing."""
    if isinstance(what, BuildImage):
        from precast._builder import device

        if builders.nvrtc is None:
            raise AssertionError(f"a device build of {family.name} was decided without NVRTC: {builders}")
        program = device.read_program(family)
        return device.image_key(program, what.target, builders.nvrtc, debug=settings.debug)
    from precast._builder import host

    if builders.compiler is None:
        raise AssertionError(f"a build of {family.name} was decided without a compiler: {builders}")
    if isinstance(what, BuildAdapter):
        return host.make_adapter_plan(what.abi, builders.compiler, cache=cache, debug=settings.debug).key
    levels = jit.levels_to_build(settings)
    return host.make_plan((family,), builders.compiler, debug=settings.debug, levels=levels).key
