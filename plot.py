"""Plot a trained model's biases, biases of the distance alone, or losses of runs.

    python plot.py biases runs/quickstart/cable --text "def double(x): return 2 * x"
    python plot.py distances sandwich alibi --out distances.png
    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png

`python plot.py biases --help`, and so on, list the options.
"""

import sys

from runtime import cli

from errors import InputError
from reporting.plots import biases, distances, losses

PLOTS = {"biases": biases, "distances": distances, "losses": losses}


def main(argv=None):
    kind, *flags = (sys.argv[1:] if argv is None else argv) or [""]
    if kind in ("-h", "--help"):
        print(__doc__)
        return
    if kind not in PLOTS:
        raise InputError(f"unknown plot '{kind}': use {', '.join(PLOTS)}")
    if argv is None:
        sys.argv[0] += f" {kind}"  # the name of the program in its help
    PLOTS[kind].main(flags)


if __name__ == "__main__":
    cli.run(main)
