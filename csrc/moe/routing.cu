// The choice of experts for tokens, and the places of pairs of a token and an expert. Everything is deterministic: no
// atomics, and every order is fixed.
#include "gate.cuh"
#include "sort.cuh"

KERNEL(moe_gate, GatingArgs, 128, 1024, gate)
KERNEL(moe_gate_backward, GatingBackwardArgs, 128, 1024, gate_backward)

KERNEL(moe_sort_count, SortArgs, 1024, 1024, sort_count)
KERNEL(moe_sort_scan, SortArgs, 1024, 1024, sort_scan)
KERNEL(moe_sort_place, SortArgs, 1024, 1024, sort_place)
