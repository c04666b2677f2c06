"""Small shared libraries with one fault each, made by the compiler and linker of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

# An export of ours that needs nobody, as a host library does, so that nothing is wrong but what is meant to be.
_GOOD = 'extern "C" int precast_register() { return %s; }\n'


def _compile(folder: Path, source: str, output: str, *options: str) -> Path:
    (folder / "source.cpp").write_text(source)
    command = ["g++", "-shared", "-nostdlib", "-fvisibility-inlines-hidden", "source.cpp", "-o", output, *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return folder / output


def library(folder: Path, body: str = "0", declared: str = "", *options: str) -> bytes:
    """A library whose one function gives ``body``."""
    linked = ["-Wl,--no-as-needed", "-Wl,-z,noexecstack", "-Wl,-z,now"]
    return _compile(folder, declared + _GOOD % body, "made.so", "-fPIC", *linked, *options).read_bytes()


def newer_glibc(folder: Path) -> bytes:
    """Takes ``memfd_secret`` from a C library that no machine has yet."""
    (folder / "libc.map").write_text("GLIBC_2.99 { global: memfd_secret; local: *; };\n")
    stub = 'extern "C" int memfd_secret() { return 0; }\n'
    options = ("-fPIC", "-Wl,-soname,libc.so.6", "-Wl,--version-script=libc.map")
    _compile(folder, stub, "libc.so.6", *options)
    return library(folder, "memfd_secret()", 'extern "C" int memfd_secret();\n', "./libc.so.6")


def newer_glibcxx(folder: Path) -> bytes:
    """Takes a function of a C++ runtime that is newer than torch's own."""
    (folder / "cxx.map").write_text("GLIBCXX_3.4.31 { global: _ZSt5fancyv; local: *; };\n")
    stub = "namespace std { int fancy() { return 0; } }\n"
    _compile(folder, stub, "libstdc++.so.6", "-fPIC", "-Wl,-soname,libstdc++.so.6", "-Wl,--version-script=cxx.map")
    return library(folder, "std::fancy()", "namespace std { int fancy(); }\n", "./libstdc++.so.6")


def text_relocation(folder: Path) -> bytes:
    """Code that the dynamic linker would have to patch: the address of a function, in the text section."""
    code = 'asm(".text\\n.globl precast_table\\nprecast_table: .quad precast_register\\n");\n'
    return library(folder, "0", code, "-Wl,-z,notext")


def executable_stack(folder: Path) -> bytes:
    return library(folder, "0", "", "-Wl,-z,execstack")


def run_path(folder: Path) -> bytes:
    return library(folder, "0", "", "-Wl,-rpath,$ORIGIN/../../torch/lib")


def python_symbol(folder: Path) -> bytes:
    return library(folder, "PyLong_AsLong(nullptr)", 'extern "C" int PyLong_AsLong(void*);\n')


def python_needed(folder: Path) -> bytes:
    python = _compile(folder, "", "libpython3.12.so.1.0", "-fPIC", "-Wl,-soname,libpython3.12.so.1.0")
    return library(folder, "0", "", f"./{python.name}")


def openmp_needed(folder: Path) -> bytes:
    gomp = _compile(folder, "", "libgomp.so.1", "-fPIC", "-Wl,-soname,libgomp.so.1")
    return library(folder, "0", "", f"./{gomp.name}")


def torch_internal(folder: Path) -> bytes:
    """Takes a C++ function of torch, which only an adapter may."""
    return library(folder, "at::get_num_threads()", "namespace at { int get_num_threads(); }\n")


def torch_function(folder: Path) -> bytes:
    """Takes by name a function that a library has from its table."""
    return library(folder, "aoti_torch_get_dim()", 'extern "C" int aoti_torch_get_dim();\n')
