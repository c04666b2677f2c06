"""The search of the built site, asked as its pages ask it: the shipped worker over the shipped index, in Node.js."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
SITE = HERE.parents[1] / "build" / "docs"

# A newcomer's question -> pages that answer it, one of which must be among the first three. Each names a page of the
# questions with the heading that answers, or the page on the subject.
QUESTIONS = {
    "which wheel for a V100 under CUDA 12.4": ["questions.html#which-wheel-for-a-v100-under-cuda-124"],
    "why did it compile at run time": ["guides/jit.html"],
    "ship my own .cu": ["questions.html#how-do-i-ship-my-own-cu-file-or-cuda-kernel"],
    "no compiler on the machine": ["questions.html#do-i-need-nvcc-a-cuda-toolkit-or-a-compiler"],
    "install without internet": ["guides/install.html", "install.html"],
    "doctor kernel not found": ["reference/doctor.html"],
    "rms_norm bf16": ["reference/ops/rms_norm.html"],
    "clear the cache": ["reference/cli.html#precast-cache-clear", "concepts/cache.html"],
    "docker image": ["questions.html#how-do-i-use-it-with-docker-ci-or-a-cluster"],
    "is it faster than torch.compile": ["questions.html#is-it-faster-than-torch-or-torchcompile", "benchmarks.html"],
    "environment variables": ["questions.html#which-environment-variables-are-there", "reference/settings.html"],
    "does it run on AMD": ["questions.html#does-it-run-on-an-amd-or-intel-gpu-macos-or-windows"],
    "supported torch versions": ["questions.html#which-torch-cuda-and-python-versions-are-supported", "support.html"],
    "ARM wheel": ["guides/arm.html"],
    "port colossalai": ["guides/port.html"],
    "make a release": ["guides/release.html", "questions.html#how-do-i-make-a-release-with-wheels-for-every-cuda"],
    "undefined symbol": ["questions.html#i-get-undefined-symbol-wrong-abi-or-an-import-error-what-now"],
    "paged kv cache decode": ["reference/ops/paged_decode_attention.html", "reference/python/nn.html"],
}  # fmt: skip


def search(questions: list[str]) -> list[list[str]]:
    """The pages found for each question, best first."""
    command = ["node", str(HERE / "search.js"), str(SITE)]
    done = subprocess.run(
        command, input=json.dumps(questions), capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    found: list[list[str]] = json.loads(done.stdout)
    return found


@pytest.mark.site
@pytest.mark.node
def test_a_newcomer_finds_the_page_among_the_first_three() -> None:
    assert len(QUESTIONS) >= 15
    missed = {
        question: first[:3]
        for (question, wanted), first in zip(QUESTIONS.items(), search(list(QUESTIONS)), strict=True)
        if not any(place in (page, page.partition("#")[0]) for page in first[:3] for place in wanted)
    }
    assert missed == {}


@pytest.mark.site
@pytest.mark.node
def test_nothing_is_found_for_what_nobody_wrote() -> None:
    """Without this, a search that answers every question with the same pages would pass."""
    (nothing, rotary) = search(["xylophone", "rotary_embedding"])
    assert nothing == [] and rotary[0].startswith("reference/ops/rotary_embedding")
