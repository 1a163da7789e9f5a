"""What a process does for one model beside learning and predicting."""


class Job:
    """Something that goes on for a while; an object each for all of its kind for one model."""

    @property
    def is_busy(self) -> bool:
        """Whether one is under way: the model stays in memory."""
        raise NotImplementedError

    def came_by(self) -> None:
        """Called between two groups: begin what has fallen due."""

    def stop(self) -> None:
        """Leave what is under way to whoever holds the model next."""

    async def close(self) -> None:
        """As `stop`, and wait for it."""
