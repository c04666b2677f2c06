"""What the package knows of CUDA toolkits. ``python -m tools tables`` writes it from matrix.toml."""

# The CUDA labels, oldest toolkit first.
LABELS = ("cu121", "cu124", "cu126", "cu128", "cu129", "cu130", "cu132")

# CUDA major -> the oldest GPU that its toolkits compile for, where that is above our own minimum.
SASS_FLOOR = {13: "7.5"}

# GPU -> the first toolkit that compiles for it, for GPUs newer than CUDA 12.1.
FIRST_TOOLKIT = {
    "8.8": "13.0",
    "10.0": "12.8",
    "10.1": "12.8",
    "10.3": "12.9",
    "11.0": "13.0",
    "12.0": "12.8",
    "12.1": "12.9",
}

# Every GPU that a toolkit compiles for, from our own minimum on.
GPUS = ("7.0", "7.2", "7.5", "8.0", "8.6", "8.7", "8.8", "8.9", "9.0", "10.0", "10.1", "10.3", "11.0", "12.0", "12.1")

# CPU architecture -> torch's CUDA builds that are also labels, those of the newest torch first.
TORCH_BUILDS = {
    "x86_64": ("cu130", "cu132", "cu126", "cu129", "cu128", "cu124", "cu121"),
    "aarch64": ("cu130", "cu132", "cu126", "cu128", "cu129"),
}
