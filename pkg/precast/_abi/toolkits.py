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

# CUDA label -> the version of its compiler, and the GPU targets of its wheels.
TARGETS = {
    "cu121": ("12.1.105", "sm_70 sm_75 sm_80 sm_86 sm_90 compute_90"),
    "cu124": ("12.4.127", "sm_70 sm_75 sm_80 sm_86 sm_90 compute_90"),
    "cu126": ("12.6.85", "sm_70 sm_75 sm_80 sm_86 sm_90 compute_90"),
    "cu128": ("12.8.93", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_90"),
    "cu129": ("12.9.86", "sm_70 sm_75 sm_80 sm_86 sm_90 sm_100 sm_120 compute_90"),
    "cu130": ("13.0.88", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_110 sm_120 compute_90"),
    "cu132": ("13.2.86", "sm_75 sm_80 sm_86 sm_90 sm_100 sm_110 sm_120 compute_90"),
}

# torch -> its newest patch release, the C++ standard of its headers, the builds that PyPI has.
RELEASES = {
    "2.4": ("2.4.1", 17, {"x86_64": "cu121", "aarch64": "cpu"}),
    "2.5": ("2.5.1", 17, {"x86_64": "cu124", "aarch64": "cpu"}),
    "2.6": ("2.6.0", 17, {"x86_64": "cu124", "aarch64": "cpu"}),
    "2.7": ("2.7.1", 17, {"x86_64": "cu126", "aarch64": "cpu"}),
    "2.8": ("2.8.0", 17, {"x86_64": "cu128", "aarch64": "cpu"}),
    "2.9": ("2.9.1", 17, {"x86_64": "cu128", "aarch64": "cpu"}),
    "2.10": ("2.10.0", 17, {"x86_64": "cu128", "aarch64": "cpu"}),
    "2.11": ("2.11.0", 17, {"x86_64": "cu130", "aarch64": "cu130"}),
    "2.12": ("2.12.1", 17, {"x86_64": "cu130", "aarch64": "cu130"}),
    "2.13": ("2.13.0", 20, {"x86_64": "cu130", "aarch64": "cu130"}),
    "2.14": ("2.14.1", 20, {"x86_64": "cu130", "aarch64": "cu130"}),
    "2.15": ("2.15.0", 20, {"x86_64": "cu132", "aarch64": "cu132"}),
}

# torch's own index has a folder for each build.
INDEX = "https://download.pytorch.org/whl"
