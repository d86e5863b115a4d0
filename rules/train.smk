rule resolve_run:
    output:
        spec="results/runs/{run}/run.json",
        identity="results/runs/{run}/identity.json",
    log:
        "logs/resolve_run/{run}.log",
    benchmark:
        "benchmarks/resolve_run/{run}.tsv"
    conda:
        "../envs/train.yaml"
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Resolving {params.title}"
    script:
        "../scripts/resolve_run.py"


rule train:
    input:
        spec=ancient(spec_of_run),
        manifest=ancient(manifest_of_run),
        bases=ancient(bases_of_run) if HAS_BASES else [],
        shorter=ancient(JOBS.shorter_of_run) if HAS_CHAINS else [],
        environment=ancient(environment_of_run) if ENVIRONMENT else [],
        script_environment=(
            ancient(script_environment_of_run) if SCRIPT_ENVIRONMENTS else []
        ),
    output:
        model="results/runs/{run}/model.safetensors",
        metrics="results/runs/{run}/metrics.jsonl",
        provenance=report(
            "results/runs/{run}/provenance.json",
            caption="../report/captions/provenance.rst",
            category="Runs",
            labels=JOBS.labels("provenance"),
        ),
    log:
        "logs/train/{run}.log",
    benchmark:
        "benchmarks/train/{run}.tsv"
    # no job makes the models of runs outside of the config, which others begin from
    wildcard_constraints:
        run=TRAINED,
    conda:
        "../envs/train.yaml"
    container:
        None if ENVIRONMENT else CONTAINER
    threads: JOBS.threads
    resources:
        **JOBS.training,
        attempt=lambda wildcards, attempt: attempt,
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Training {params.title}"
    script:
        "../scripts/train.py"


rule evaluate:
    input:
        spec=ancient(spec_of_run),
        manifest=ancient(manifest_of_run),
        model=ancient(model_of_run),
        bases=ancient(members_of_ensemble) if HAS_BASES else [],
        provenance=ancient(provenance_of_run) if HAS_SCRIPTS else [],
    output:
        evaluation=report(
            "results/runs/{run}/evaluations/{evaluation}.json",
            caption="../report/captions/evaluation.rst",
            category="Runs",
            labels=JOBS.labels("evaluation"),
        ),
    log:
        "logs/evaluate/{run}-{evaluation}.log",
    benchmark:
        "benchmarks/evaluate/{run}-{evaluation}.tsv"
    conda:
        "../envs/train.yaml"
    threads: JOBS.threads_of_evaluation
    resources:
        **JOBS.evaluating,
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Evaluating {params.title}"
    script:
        "../scripts/evaluate.py"


# Requested only by `shardline preflight`: no other rule needs its output.
rule run_preflight:
    input:
        environment=ancient(ENVIRONMENT),
    output:
        found="results/preflight/{run}.json",
    log:
        "logs/run_preflight/{run}.log",
    benchmark:
        "benchmarks/run_preflight/{run}.tsv"
    conda:
        "../envs/train.yaml"
    container:
        None if ENVIRONMENT else CONTAINER
    threads: JOBS.threads
    resources:
        **JOBS.training,
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Checking the ranks of {params.title}"
    script:
        "../scripts/run_preflight.py"


# Requested only by `shardline accept --after-steps`.
rule train_first_steps:
    input:
        spec=ancient(spec_of_run),
        manifest=ancient(manifest_of_run),
        bases=ancient(bases_of_run),
        environment=ancient(ENVIRONMENT),
    output:
        metrics="results/first-steps/{run}-{steps}.jsonl",
    log:
        "logs/train_first_steps/{run}-{steps}.log",
    benchmark:
        "benchmarks/train_first_steps/{run}-{steps}.tsv"
    conda:
        "../envs/train.yaml"
    container:
        None if ENVIRONMENT else CONTAINER
    threads: JOBS.threads
    resources:
        **JOBS.training,
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Training the first {wildcards.steps} steps of {params.title}"
    script:
        "../scripts/train_first_steps.py"


# Requested only by `shardline find`.
rule find_setting:
    input:
        manifest=ancient(manifest_of_run),
        bases=ancient(bases_of_run),
        environment=ancient(ENVIRONMENT),
    output:
        found="results/found/{run}-{setting}.json",
    log:
        "logs/find_setting/{run}-{setting}.log",
    benchmark:
        "benchmarks/find_setting/{run}-{setting}.tsv"
    conda:
        "../envs/train.yaml"
    container:
        None if ENVIRONMENT else CONTAINER
    threads: JOBS.threads
    resources:
        **JOBS.training,
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Trying values of {wildcards.setting} for {params.title}"
    script:
        "../scripts/find_setting.py"


# Requested only by `shardline rerun`.
rule train_again:
    input:
        spec=ancient(spec_of_run),
        manifest=ancient(manifest_of_run),
        bases=ancient(bases_of_run),
        environment=ancient(environment_of_run) if ENVIRONMENT else [],
        script_environment=(
            ancient(script_environment_of_run) if SCRIPT_ENVIRONMENTS else []
        ),
    output:
        model="results/reruns/{run}/{number}/model.safetensors",
        metrics="results/reruns/{run}/{number}/metrics.jsonl",
        provenance="results/reruns/{run}/{number}/provenance.json",
    log:
        "logs/train_again/{run}-{number}.log",
    benchmark:
        "benchmarks/train_again/{run}-{number}.tsv"
    conda:
        "../envs/train.yaml"
    container:
        None if ENVIRONMENT else CONTAINER
    threads: JOBS.threads
    resources:
        **JOBS.training,
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Training {params.title} again"
    script:
        "../scripts/train_again.py"


# Requested by name: the runs of all scaling studies, which `all` includes.
rule scaling:
    input:
        models=ancient(JOBS.of_all(run.model for run in MEASURED)),
        evaluations=ancient(JOBS.of_all(run.evaluation for run in MEASURED)),
    localrule: True
