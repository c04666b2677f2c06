"""The exit statuses of all verbs."""

from __future__ import annotations

GOOD = 0
NO = 1
USAGE = 2
FAILED = 3
INTERRUPTED = 130

# The verdicts of report.describe_kernel with which a call works.
LOADABLE = ("prebuilt", "jit", "triton")

MEANINGS = {
    GOOD: "it was done, or the answer is yes",
    NO: "the answer is no: a kernel that should be there cannot be loaded, an entry of the cache is damaged",
    USAGE: "the command, a name in it, or a setting cannot be understood",
    FAILED: "it could not be done; the error says why and how to fix it",
    INTERRUPTED: "interrupted with Ctrl-C",
}
