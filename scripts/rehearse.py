"""Let a run's ranks meet, and try every path between them."""

from shardline.pipeline import job, rehearse

with job(snakemake.log[0]) as log:
    rehearse(
        snakemake.config,
        snakemake.wildcards.run,
        log,
        snakemake.output[0],
        dict(snakemake.input.items()),
    )
