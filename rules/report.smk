rule render_report:
    input:
        runs=ancient(files_of_runs("run.json")),
        identities=ancient(files_of_runs("identity.json")),
        metrics=ancient(files_of_runs("metrics.jsonl")),
        provenances=ancient(files_of_runs("provenance.json")),
        evaluations=ancient(EVALUATIONS),
        manifests=ancient(manifests_of_report),
        datasets=ancient(provenances_of_report),
    output:
        page="results/reports/{report}/index.html",
        crate="results/reports/{report}/ro-crate-metadata.json",
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
