"""``bias_act`` and ``upfirdn2d`` with the names and arguments of these modules, on top of precast's ops.

Code written for ``torch_utils.ops`` works if you change the imports::

    from precast.compat.torch_utils.ops import bias_act, upfirdn2d
"""
