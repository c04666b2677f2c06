"""Proves that a compiled file fits this process, before anything of it is opened."""

# The error names the outer package: precast, or one with a copy of this core.
_archive = getattr(__spec__.loader, "archive", None)  # of the loader for zip files, which the linker cannot read
if _archive is not None:
    raise ImportError(
        f"{__name__.rpartition('.')[0]} cannot be used from the archive {_archive}: its libraries are files on a disk. "
        "Install it with pip, or unpack the archive"
    )
