"""One module a format of recordings, each with ``read(source) -> Iterator[Conversation | LeftOut]``.

``read`` raises DataError where the source as a whole cannot be read; a record that cannot be used is a ``LeftOut``.
"""
