"""The exit statuses of all verbs."""

from __future__ import annotations

GOOD = 0
NO = 1
USAGE = 2
FAILED = 3
INTERRUPTED = 130

# The verdicts of report.describe_kernel with which a call works.
LOADABLE = ("prebuilt", "jit", "torch")

MEANINGS = {
    GOOD: "done, or the answer is yes",
    NO: "the answer is no: a kernel cannot be loaded, a cache entry is damaged",
    USAGE: "an invalid command, name or setting",
    FAILED: "failed; the error says why and how to fix it",
    INTERRUPTED: "interrupted with Ctrl-C",
}
