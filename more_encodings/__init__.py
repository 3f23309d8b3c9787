"""Further positional encodings, one module per family.

Importing the package registers them; pe_spec.parse does it when a --pe string needs one. To add a
family, add a module and list it here.
"""

from more_encodings import (  # noqa: F401
    absolute_positions,
    dape,
    distance_functions,
    products,
    relative_keys,
    rope_scaling,
    rotations,
    sandwich,
    softmax,
)
