"""The twins: the ops on rows and on lists once more, in Triton, for GPUs that the kernels of ``csrc`` do not reach.

Triton compiles for what is there (NVIDIA GPUs without a cubin and without NVRTC, AMD's, Intel's) at the first call of
each kind of shape. The loader puts a twin in the place of a family that it has to refuse, and says so; see
``_abi/twin.py``. A twin has the arguments of its op's schema. A program of Triton has one row, or a block of one tensor
of a list.
"""
