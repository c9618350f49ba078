"""Parts of a method's card, one file each, found by their names: PAPER, and lines(subject) -> Iterator[Line]."""
