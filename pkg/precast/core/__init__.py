"""Proves that a compiled file fits this process, before anything of it is opened."""

# Of the package around this one: precast, or one with a copy of it.
_archive = getattr(__spec__.loader, "archive", None)  # of the loader for zip files, which the linker cannot read
if _archive is not None:
    raise ImportError(
        f"{__name__.rpartition('.')[0]} cannot be used from the archive {_archive}: its libraries are files on a disk. "
        "Install it with pip, or unpack the archive"
    )
