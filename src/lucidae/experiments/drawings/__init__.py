"""The figures of the experiments (extra `cli`): from curves to blocks of the page."""
