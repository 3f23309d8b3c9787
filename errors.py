"""How is a user's mistake told apart from our own? By its type, and one line that names the mend."""


class InputError(ValueError):
    """Bad input found at a border (config, shards, checkpoints): `problems`, one line each, every one naming its mend.

    Programs print the lines and exit with status 2 before anything is changed. Every other exception is a bug and keeps
    its traceback.
    """

    def __init__(self, *problems: str):
        super().__init__("\n".join(problems))
        self.problems = problems
