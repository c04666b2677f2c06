// For emulated_ops.cpp: the ops over lists of tensors have no kernels for the CPU.
#pragma once

#define NO_CPU_LEVEL(level)
