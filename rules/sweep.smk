rule propose:
    input:
        before=ancient(SWEEPS.before),
    output:
        proposal="results/studies/{study}/{trial}/proposal.json",
    log:
        "logs/propose/{study}-{trial}.log",
    benchmark:
        "benchmarks/propose/{study}-{trial}.tsv"
    conda:
        "../envs/train.yaml"
    params:
        title=SWEEPS.title,
        plan=SWEEPS.plan,
    message:
        "Proposing {params.title}"
    script:
        "../scripts/propose.py"


# The run is not known before the proposal, so its files in results/runs/ are not declared. A storage gets them packed.
rule train_trial:
    input:
        proposal=ancient(SWEEPS.proposal),
        manifest=ancient(SWEEPS.of_base(manifests_of)),
        bases=ancient(SWEEPS.of_base(bases_of)),
        environment=ancient(ENVIRONMENT),
        script_environment=ancient(SWEEPS.of_base(script_environment_of)),
    output:
        **SWEEPS.packed,
        result="results/studies/{study}/{trial}/result-{repeat}.json",
    log:
        "logs/train_trial/{study}-{trial}-{repeat}.log",
    benchmark:
        "benchmarks/train_trial/{study}-{trial}-{repeat}.tsv"
    conda:
        "../envs/train.yaml"
    container:
        None if ENVIRONMENT else CONTAINER
    threads: SWEEPS.threads
    resources:
        **SWEEPS.training,
        attempt=lambda wildcards, attempt: attempt,
    params:
        title=SWEEPS.title,
        plan=SWEEPS.plan,
    message:
        "Training {params.title}"
    script:
        "../scripts/train_trial.py"


rule seal_study:
    input:
        results=ancient(SWEEPS.summary),
    output:
        study="results/studies/{study}/study-{number}.json",
    log:
        "logs/seal_study/{study}-{number}.log",
    benchmark:
        "benchmarks/seal_study/{study}-{number}.tsv"
    conda:
        "../envs/train.yaml"
    params:
        title=SWEEPS.title,
        plan=SWEEPS.plan,
    message:
        "Sealing the study {params.title}"
    script:
        "../scripts/seal_study.py"
