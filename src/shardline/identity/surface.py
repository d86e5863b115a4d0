"""What user code may import from Shardline: it counts by result version, not by its code."""

# Modules of the documentation's examples, each with all that lies below it. A name that is not
# below one of them is no promise: code that reaches it counts as the user's own does.
PUBLIC_MODULES = (
    "shardline.errors",  # DataError, raised by sources
    "shardline.ledger",  # read_ledger
    "shardline.models",  # shipped models and their base class
    "shardline.script",  # around a training script
    "shardline.sources",  # Source, Table, Schema, shard_range and the shipped sources
    "shardline.splits",
)


def is_public(dotted: str) -> bool:
    """Return whether a dotted name is one that Shardline's result versions answer for.

    Args:
        dotted: a module, or a module and a name in it.
    """
    if dotted == "shardline":  # the package alone has nothing but its version
        return True
    return any(dotted == module or dotted.startswith(f"{module}.") for module in PUBLIC_MODULES)
