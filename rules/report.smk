rule render_report:
    input:
        runs=ancient(JOBS.files_of_runs("run.json")),
        identities=ancient(JOBS.files_of_runs("identity.json")),
        metrics=ancient(JOBS.files_of_runs("metrics.jsonl")),
        provenances=ancient(JOBS.files_of_runs("provenance.json")),
        evaluations=ancient(EVALUATIONS),
        studies=ancient(SWEEPS.summaries),
        manifests=ancient(JOBS.manifests_of_report),
        datasets=ancient(JOBS.provenances_of_report),
    output:
        page=report(
            "results/reports/{report}/index.html",
            caption="../report/captions/page.rst",
            category="Report",
            labels={"file": "page"},
        ),
        data=report(
            "results/reports/{report}/report.json",
            caption="../report/captions/data.rst",
            category="Report",
            labels={"file": "report.json"},
        ),
        table=report(
            "results/reports/{report}/runs.csv",
            caption="../report/captions/table.rst",
            category="Report",
            labels={"file": "runs.csv"},
        ),
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
