"""One pass from the host to a loaded kernel: probe, decide, verify, load, register."""

from precast._load import messages
from precast._load.system import require_main_interpreter

require_main_interpreter()
messages.install()
