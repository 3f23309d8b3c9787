"""Places of encodings' weights in the layers of a checkpoint."""

import pytest

from training import initialization


@pytest.mark.parametrize(
    "pe, place",
    [
        ("rope+cable", (0, "cable", "weight")),
        ("cable", (0, "cable", "parts.1.weight")),  # of an encoding with `parts` of its own
    ],
)
def test_number_of_a_part_belongs_to_a_combination_only(pe, place):
    name = "posenc.0.parts.1.weight"
    assert initialization._locate([name, "wte.weight"], pe) == {name: place}
