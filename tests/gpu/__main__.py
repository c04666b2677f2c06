"""``python -m tests.gpu check [WHEEL] [--minutes 8] [--state FOLDER] [--json FILE]``."""

from __future__ import annotations

import sys

from tests.gpu import check

if __name__ == "__main__":
    if sys.argv[1:2] != ["check"]:
        sys.exit(f"{__doc__} found {' '.join(sys.argv[1:]) or 'no verb'}; needed check")
    sys.exit(check.main(sys.argv[2:]))
