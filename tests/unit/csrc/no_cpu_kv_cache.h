// For emulated_ops.cpp: the ops on paged caches have no kernels of their own for the CPU.
#pragma once

#define NO_CPU_LEVEL(level)
