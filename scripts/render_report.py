"""Write the page that compares all runs."""

from shardline.jobs import job, report

with job(snakemake.log[0]):
    report(snakemake.config, snakemake.output.page, dict(snakemake.input.items()))
