"""Hostile arguments, made from the example calls of every public function and of every op.

``calls`` finds the calls, ``changes`` makes one argument of a call hostile, ``law`` runs the call and judges it,
``apart`` does so in child processes. A new function or op is in it by its example alone.

The law: a call gives what the same call gives in plain torch, or raises one error that names an argument, with nothing
written and no version counter moved. It never ends in a signal.

``reading`` makes hostile files for ``xray``, and has a law of its own.

    python -m tests.hostile [--seed 0] [--count 500] [--op rms_norm] [--device cuda] [--json results.json]
"""
