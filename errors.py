"""Exception for user errors, as opposed to bugs."""

from contextlib import contextmanager


class InputError(ValueError):
    """Invalid input: a setting, a file or a checkpoint.

    problems: lines of the form "<what is wrong>: <what to do>". Programs print them and exit with
    status 2 before anything is changed.
    """

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems


def one_line(error: BaseException, length: int = 200) -> str:
    """Return the beginning of an error's text on one line, or else its type."""
    return " ".join(str(error).split())[:length] or type(error).__name__


@contextmanager
def refusing(
    what: str,
    remedy: str,
    kinds: type[Exception] | tuple[type[Exception], ...] = Exception,
):
    """Turn exceptions of these kinds in the block into an InputError.

    Its line is "<what> (<the exception's text>): <remedy>".
    """
    try:
        yield
    except InputError:
        raise
    except kinds as error:
        raise InputError(f"{what} ({one_line(error)}): {remedy}") from None
