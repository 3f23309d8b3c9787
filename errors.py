"""Exception for user errors, as opposed to bugs."""


class InputError(ValueError):
    """Invalid input: a setting, a file or a checkpoint.

    problems: lines of the form "<what is wrong>: <what to do>".
    Programs print them and exit with status 2 before anything is
    changed.
    """

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems
