rule render_report:
    input:
        runs=ancient([str(run.folder / "run.json") for run in PROJECT.runs.values()]),
        evaluations=ancient([str(run.evaluation) for run in PROJECT.runs.values()]),
    output:
        page="results/reports/{report}/index.html",
    log:
        "logs/render_report/{report}.log",
    benchmark:
        "benchmarks/render_report/{report}.tsv"
    conda:
        "../envs/report.yaml"
    message:
        "Writing the report"
    script:
        "../scripts/render_report.py"
