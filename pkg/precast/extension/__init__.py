"""Extensions: what can give a loader its kernels, built in or registered by others."""

from precast.extension.base import Extension
from precast.extension.module import KernelModule

__all__ = ["Extension", "KernelModule"]
