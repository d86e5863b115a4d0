"""The error of the node program."""


class NodeError(Exception):
    """An error that a user can fix; the message names what was found and the remedy."""
