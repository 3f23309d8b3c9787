"""Plots of a run's biases and of training losses.

    python plot.py biases runs/quickstart/cable --text "def double(x): return 2 * x" --out biases.png
    python plot.py losses runs/medium/cable runs/medium/rope --out losses.png

`python plot.py biases --help` and `python plot.py losses --help` list the options.
"""

import sys

from errors import InputError
from reporting import bias_plots, loss_plots
from runtime import cli

PLOTS = {"biases": bias_plots.main, "losses": loss_plots.main}


def main(argv=None):
    kind, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if kind in ("-h", "--help"):
        print(__doc__)
    elif kind in PLOTS:
        PLOTS[kind](rest)
    else:
        raise InputError(f"unknown plot '{kind}': choose one of {' '.join(PLOTS)}")


if __name__ == "__main__":
    cli.run(main)
