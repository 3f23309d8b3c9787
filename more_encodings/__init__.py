"""Positional encodings in addition to those of posenc.py, one module per family.

Importing the package registers them; pe_spec.parse does it when a --pe string needs one. To add a
family, add a module and list it here.
"""

from more_encodings import (  # noqa: F401
    absolute_positions,
    attention_sink,
    dape,
    distance_functions,
    log_decay,
    logit_scale,
    products,
    relative_keys,
    rope_scaling,
    running_rotations,
    sandwich,
    some_heads,
    wide_rotations,
    window,
)
