"""Names that shards and batches use themselves, beside those of a dataset's columns."""

OFFSETS, PRESENT = (
    ".offsets",
    ".present",
)  # behind a column's name, in a shard; the second in a batch too
PADDING, IDS = "padding.", "ids"
LENGTHS, MEAN_COUNT, WEIGHTS = ".lengths", ".mean_count", "weights"  # of batches alone
