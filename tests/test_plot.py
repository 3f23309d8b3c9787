"""plot.py chooses the plot by its first argument."""

import pytest

import plot


def test_unknown_plots_are_refused(refused):
    assert refused(plot.main, "bias") == [
        "error: unknown plot 'bias': use biases, distances, losses"
    ]
    assert "name a plot" in refused(plot.main)[0]


@pytest.mark.parametrize(
    "kind, message",
    [
        ("biases", "one run"),
        ("distances", "no encodings given"),
        ("losses", "no runs given"),
    ],
)
def test_the_first_argument_chooses_the_plot(kind, message, refused):
    assert message in refused(plot.main, kind)[0]


def test_help_lists_the_plots(capsys):
    plot.main(["--help"])
    output = capsys.readouterr().out
    assert "plot.py distances" in output and "plot.py biases --help" in output
