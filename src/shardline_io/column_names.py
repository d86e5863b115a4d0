"""Reserved names in shards and batches; those that begin with a dot are suffixes of a column's name."""

OFFSETS, PADDING, IDS = ".offsets", "padding.", "ids"  # in shards
PRESENT = ".present"  # in shards and batches
LENGTHS, MEAN_COUNT, WEIGHTS = ".lengths", ".mean_count", "weights"  # in batches
WEIGHT = "weight"  # column of the rows' weights, if the schema is weighted
