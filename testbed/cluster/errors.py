"""What the user reads in one line."""


class Failure(Exception):
    """The test bed cannot do it; the text says what to do. Exit code 1."""

    exit_code = 1


class Usage(Failure):
    """What was asked for makes no sense. Exit code 2."""

    exit_code = 2
