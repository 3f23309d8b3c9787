"""plot.py chooses the plot by its first argument."""

import plot


def test_the_first_argument_chooses_the_plot(refused, capsys):
    for kind, message in (
        ("biases", "one run"),
        ("distances", "no encodings given"),
        ("losses", "no runs given"),
        ("bias", "unknown plot 'bias': use biases, distances, losses"),
    ):
        assert message in refused(plot.main, kind)[0]
    assert "name a plot" in refused(plot.main)[0]
    plot.main(["--help"])
    assert "plot.py distances" in capsys.readouterr().out
