"""The one error of the node program."""


class NodeError(Exception):
    """Something that a user can fix; the message names what was found and the remedy."""
