"""The import path under which extension classes were written before: ``from precast.base_extension import _Extension``.

There is one base class, and it serves C++, CUDA and everything else: how something is built is the extension's own
business. The older ``_CppExtension`` and ``_CudaExtension``, which compile a subclass's source lists, are not here.
"""

from precast.extension.base import Extension

_Extension = Extension
BaseExtension = Extension

__all__ = ["BaseExtension", "Extension", "_Extension"]
