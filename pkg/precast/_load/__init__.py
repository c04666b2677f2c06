"""Take a kernel family from a request to loaded kernels: probe, decide, verify, load, register."""

from precast._load import messages
from precast._load.system import require_main_interpreter

require_main_interpreter()
messages.install()
