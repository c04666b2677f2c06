"""The dispatcher side of the ops: their schemas, the stubs that load kernels, and the formulas above the kernels."""
