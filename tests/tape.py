"""A stand-in for a device that records steps."""


class Tape:
    """Does the work anew at every replay, on the arrays of the recording."""

    def __init__(self):
        self.recordings = self.replays = 0

    def record(self, rehearsal, work):
        rehearsal()
        self.recordings += 1

        def replay():
            self.replays += 1
            work()

        return replay
