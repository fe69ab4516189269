"""A replacement for the CUDA graphs of `lucidae.arrays.graphs` on the CPU."""


class Tape:
    """Repeats the recorded work at every replay, on the same arrays."""

    def __init__(self):
        self.recordings = self.replays = 0

    def record(self, rehearsal, work):
        rehearsal()
        self.recordings += 1

        def replay():
            self.replays += 1
            work()

        return replay
