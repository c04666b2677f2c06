"""Small shared libraries with one fault each, made by the compiler and linker of this machine."""

from __future__ import annotations

import subprocess
from pathlib import Path

# An export of ours, and a use of torch's stable ABI, so that nothing is wrong but what is meant to be.
_GOOD = 'extern "C" int aoti_torch_device_type_cpu(); extern "C" int precast_register() { return %s; }\n'
_CALL = "aoti_torch_device_type_cpu()"


def _compile(folder: Path, source: str, output: str, *options: str) -> Path:
    (folder / "source.cpp").write_text(source)
    command = ["g++", "-shared", "-nostdlib", "-fvisibility-inlines-hidden", "source.cpp", "-o", output, *options]
    subprocess.run(command, cwd=folder, check=True, capture_output=True, text=True)
    return folder / output


def _torch(folder: Path) -> str:
    return _compile(folder, "", "libtorch_cpu.so", "-fPIC", "-Wl,-soname,libtorch_cpu.so").name


def library(folder: Path, body: str = _CALL, declared: str = "", *options: str) -> bytes:
    """A library whose one function gives ``body``."""
    linked = ["-Wl,--no-as-needed", _torch(folder), "-Wl,-z,noexecstack", "-Wl,-z,now"]
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
    return library(folder, _CALL, code, "-Wl,-z,notext")


def executable_stack(folder: Path) -> bytes:
    return library(folder, _CALL, "", "-Wl,-z,execstack")


def run_path(folder: Path) -> bytes:
    return library(folder, _CALL, "", "-Wl,-rpath,$ORIGIN/../../torch/lib")


def python_symbol(folder: Path) -> bytes:
    return library(folder, "PyLong_AsLong(nullptr)", 'extern "C" int PyLong_AsLong(void*);\n')


def python_needed(folder: Path) -> bytes:
    python = _compile(folder, "", "libpython3.12.so.1.0", "-fPIC", "-Wl,-soname,libpython3.12.so.1.0")
    return library(folder, _CALL, "", f"./{python.name}")


def openmp_needed(folder: Path) -> bytes:
    gomp = _compile(folder, "", "libgomp.so.1", "-fPIC", "-Wl,-soname,libgomp.so.1")
    return library(folder, _CALL, "", f"./{gomp.name}")


def torch_internal(folder: Path) -> bytes:
    """Takes a C++ function of torch, which no stable ABI promises."""
    return library(folder, "at::get_num_threads()", "namespace at { int get_num_threads(); }\n")


def newer_shim(folder: Path) -> bytes:
    """Takes a function that came to the stable ABI after the floor of the library."""
    return library(folder, "torch_from_blob()", 'extern "C" int torch_from_blob();\n')


def cuda_shim(folder: Path) -> bytes:
    """Takes a function of the stable ABI that a CPU build of torch lacks."""
    name = "aoti_torch_get_current_cuda_stream"
    return library(folder, f"{name}()", f'extern "C" int {name}();\n')
