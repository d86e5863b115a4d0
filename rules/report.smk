rule render_report:
    input:
        runs=ancient(files_of_runs("run.json")),
        metrics=ancient(files_of_runs("metrics.jsonl")),
        provenances=ancient(files_of_runs("provenance.json")),
        evaluations=ancient(EVALUATIONS),
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
