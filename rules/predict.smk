rule predict:
    input:
        model=ancient(model_of_prediction),
        bases=ancient(members_of_prediction),
        manifest=ancient(manifests_of_prediction),
        predicted=ancient(rows_of_prediction),
    output:
        record=temp("results/runs/{run}/predictions/{prediction}.parts.json"),
    log:
        "logs/predict/{run}-{prediction}.log",
    benchmark:
        "benchmarks/predict/{run}-{prediction}.tsv"
    conda:
        "../envs/train.yaml"
    threads: JOBS.threads_of_prediction
    resources:
        **JOBS.predicting,
    params:
        title=JOBS.title_of_prediction,
        plan=JOBS.plan,
    message:
        "Predicting {params.title}"
    script:
        "../scripts/predict.py"


rule write_predictions:
    input:
        record=ancient(record_of_prediction),
    output:
        predictions="results/runs/{run}/predictions/{prediction}.parquet",
        described="results/runs/{run}/predictions/{prediction}.json",
    log:
        "logs/write_predictions/{run}-{prediction}.log",
    benchmark:
        "benchmarks/write_predictions/{run}-{prediction}.tsv"
    conda:
        "../envs/data.yaml"
    params:
        title=JOBS.title_of_prediction,
        plan=JOBS.plan,
    message:
        "Writing the predictions {params.title}"
    script:
        "../scripts/write_predictions.py"
