"""The search of the built site, asked as its pages ask it: the shipped worker over the shipped index, in Node.js."""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

from tests.kit import spawn

HERE = Path(__file__).resolve().parent
SITE = HERE.parents[1] / "build" / "docs"

# A newcomer's question, in words that are no heading -> places that answer it, one of which must come first.
Q = "questions.html#"
OFFLINE = Q + "how-do-i-install-offline-without-internet-or-behind-a-proxy-does-it-need-the-network-at-run-time"
CACHE = Q + "how-large-is-the-cache-and-how-do-i-clear-or-move-it"
QUESTIONS = {
    "swap nn.RMSNorm": [Q + "how-do-i-swap-or-replace-nnrmsnorm-and-nnlayernorm-in-my-model"],
    "replace layernorm in my model": [Q + "how-do-i-swap-or-replace-nnrmsnorm-and-nnlayernorm-in-my-model"],
    "measure on my GPU": [Q + "how-do-i-measure-or-benchmark-it-on-my-own-gpu"],
    "pin version requirements.txt": [Q + "how-do-i-pin-the-version-in-requirementstxt-a-lock-file-or-pyprojecttoml"],
    "offline at run time": [OFFLINE],
    "install without internet": [OFFLINE, "guides/install.html"],
    "nightly torch": [Q + "does-it-work-with-a-nightly-or-development-build-of-torch"],
    "jetson orin": [Q + "how-do-i-install-on-a-jetson-orin-thor"],
    "blackwell": [Q + "does-it-work-on-blackwell-b200-rtx-5090-gb10-dgx-spark"],
    "rtx 5090": [Q + "does-it-work-on-blackwell-b200-rtx-5090-gb10-dgx-spark"],
    "which driver": [Q + "which-wheel-or-label-for-my-gpu-such-as-a-v100-which-driver-do-i-need"],
    "which wheel for my V100": [Q + "which-wheel-or-label-for-my-gpu-such-as-a-v100-which-driver-do-i-need"],
    "licence": ["licence.html", Q + "what-is-the-licence-license-may-i-use-it-commercially"],
    "license commercial use": [Q + "what-is-the-licence-license-may-i-use-it-commercially"],
    "telemetry": [Q + "does-it-collect-telemetry-or-send-data-anywhere"],
    "fp8": [Q + "does-it-support-fp8-int8-or-4-bit-quantization"],
    "conda": [Q + "is-there-a-conda-package"],
    "report a bug": [Q + "how-do-i-report-a-bug-ask-a-question-or-get-help"],
    "provenance": [Q + "how-do-i-verify-the-provenance-or-signature-of-a-wheel"],
    "uninstall": [Q + "how-do-i-uninstall-or-remove-it", "guides/install.html"],
    "compiles at run time, why": [Q + "why-did-it-compile-at-run-time-why-is-the-first-call-slow", "guides/jit.html"],
    "first call is slow": [Q + "why-did-it-compile-at-run-time-why-is-the-first-call-slow"],
    "no compiling": [Q + "how-do-i-forbid-avoid-or-turn-off-compiling"],
    "turn off JIT": [Q + "how-do-i-forbid-avoid-or-turn-off-compiling", "guides/jit.html"],
    "ship my own .cu": [Q + "how-do-i-ship-my-own-cu-file-or-cuda-kernel"],
    "no compiler on the machine": [Q + "do-i-need-nvcc-a-cuda-toolkit-or-a-compiler", "guides/troubleshooting.html"],
    "clear the cache": ["reference/cli.html#precast-cache-clear", CACHE],
    "docker image": [Q + "how-do-i-use-it-with-docker-ci-or-a-cluster"],
    "faster than torch.compile": [Q + "is-it-faster-than-torch-or-torchcompile", "benchmarks.html"],
    "environment variables": [Q + "which-environment-variables-are-there", "reference/settings.html"],
    "does it run on AMD": [Q + "does-it-run-on-an-amd-or-intel-gpu-macos-or-windows"],
    "supported torch versions": [Q + "which-torch-cuda-and-python-versions-are-supported", "support.html"],
    "ARM wheel": ["guides/arm.html"],
    "port colossalai": ["guides/kernel-author.html", Q + "how-do-i-move-from-colossalaikernel-apex-vllm-or-deepspeed"],
    "make a release": ["guides/release.html", Q + "how-do-i-make-a-release-with-wheels-for-every-cuda"],
    "undefined symbol": [Q + "i-get-undefined-symbol-wrong-abi-or-an-import-error-what-now"],
    "upgrade deprecated": [Q + "how-do-i-upgrade-what-is-deprecated", "guides/upgrade.html"],
    "rms_norm bf16": ["reference/ops/rms_norm.html"],
    "silu_and_mul": ["reference/ops/silu_and_mul.html"],
    "paged kv cache decode": ["reference/ops/paged_decode_attention.html", "reference/python/nn.html"],
}  # fmt: skip


def search(questions: list[str]) -> list[list[str]]:
    """The pages found for each question, best first."""
    found: list[list[str]] = json.loads(spawn.run("node", HERE / "search.js", SITE, stdin=json.dumps(questions)).stdout)
    return found


def ranks(questions: Mapping[str, list[str]]) -> dict[str, int | None]:
    """For each question the place of the first answer, from 1; None if it is not among the first ten."""
    found = search(list(questions))
    return {
        question: next(
            (
                rank
                for rank, page in enumerate(pages[:10], start=1)
                if any(place in (page, page.partition("#")[0]) for place in wanted)
            ),
            None,
        )
        for (question, wanted), pages in zip(questions.items(), found, strict=True)
    }


@pytest.mark.site
@pytest.mark.node
def test_a_newcomer_finds_the_answer_first() -> None:
    headings = {
        line.strip("# ?").lower()
        for path in (HERE.parents[1] / "docs").rglob("*.md")
        for line in path.read_text(encoding="utf-8").splitlines()
        if line.startswith("#")
    }
    assert len(QUESTIONS) == 40
    assert {question for question in QUESTIONS if question.lower() in headings} <= {"licence", "uninstall"}
    assert {question: rank for question, rank in ranks(QUESTIONS).items() if rank is None or rank > 1} == {}


ASKED = tomllib.loads((HERE / "asked.toml").read_text(encoding="utf-8"))
# The least number of first answers, and of those within three. Of the 60 fixed first, 54 were asked for; of the
# others 38 of 40, and 39 within three, were found when they were asked once.
LEAST = {"fixed": (54, 57), "once": (36, 38), "since": (25, 30)}


def asked(when: str) -> dict[str, list[str]]:
    """The questions of one kind in asked.toml with the places that answer them."""
    if when == "since":
        return {words: rest[1:] for words, rest in ASKED["since"].items()}
    return {words: ASKED["answers"][answer] for words, (_, answer, one) in ASKED["questions"].items() if one == when}


@pytest.mark.site
@pytest.mark.node
@pytest.mark.parametrize("when", list(LEAST))
def test_what_people_ask_of_packages_like_this_one_is_found(when: str) -> None:
    """The subjects of public threads: see asked.toml."""
    found = ranks(asked(when))
    behind = {words: rank for words, rank in found.items() if rank != 1}
    first, three = LEAST[when]
    assert len(found) - len(behind) >= first, behind
    assert sum(rank is not None and rank <= 3 for rank in found.values()) >= three, behind


def test_the_questions_that_were_fixed_first_are_drawn() -> None:
    rows = list(ASKED["questions"].values())
    drawn = sorted(random.Random(20261128).sample(range(100), 60))
    assert [number for number, (_, _, when) in enumerate(rows) if when == "fixed"] == drawn
    assert len({thread for thread, *_ in rows}) == len(rows) == 100


@pytest.mark.site
@pytest.mark.node
def test_a_word_that_says_nothing_finds_nothing_else() -> None:
    """Without this, "in" would find what begins with it: install, index, inference."""
    (alone, question, typed) = search(["swiglu", "how do I use it in the swiglu", "swigl"])
    assert alone == question and alone and set(alone) <= set(typed)


@pytest.mark.site
@pytest.mark.node
def test_nothing_is_found_for_what_nobody_wrote() -> None:
    """Without this, a search that answers every question with the same pages would pass."""
    (nothing, rotary) = search(["xylophone", "rotary_embedding"])
    assert nothing == [] and rotary[0].startswith("reference/ops/rotary_embedding")
