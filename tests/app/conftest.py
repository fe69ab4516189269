"""Fixtures of the tests of the command line."""

import pytest

from lucidae_app import main


@pytest.fixture
def call_main(capsys):
    """Return a function from arguments to (exit code, standard output, standard error)."""

    def call(*arguments):
        with pytest.raises(SystemExit) as end:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        return end.value.code, captured.out, captured.err

    return call
