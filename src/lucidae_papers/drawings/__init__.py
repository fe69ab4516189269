"""Functions that draw the figures of the experiments for the HTML page (extra `cli`)."""
