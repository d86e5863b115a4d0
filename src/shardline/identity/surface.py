"""What user code may import from Shardline: it counts by result version, not by its code."""

from shardline.identity.versions import PUBLIC


def is_public(dotted: str) -> bool:
    """Return whether a dotted name is one that Shardline's result versions answer for.

    Args:
        dotted: a module, or a module and a name in it.
    """
    parent = dotted.rpartition(".")[0]
    return dotted in PUBLIC or (parent != "shardline" and parent in PUBLIC)
