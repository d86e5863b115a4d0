# Only for data modules: the file says that their `prepare_data` has run.
rule prepare_data:
    input:
        # a lock that cannot be installed fails before data is fetched
        environments=(
            ancient(JOBS.script_environments_of_dataset) if SCRIPT_ENVIRONMENTS else []
        ),
    output:
        prepared=f"{PARTS}/{{dataset}}/prepared.json",
    log:
        "logs/prepare_data/{dataset}.log",
    benchmark:
        "benchmarks/prepare_data/{dataset}.tsv"
    conda:
        "../envs/data.yaml"
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Preparing the data of {params.title}"
    script:
        "../scripts/prepare_data.py"


# Only for splits that need a pass over all rows.
rule plan_splits:
    input:
        prepared=ancient(JOBS.prepared_of_dataset),
    output:
        plan=f"{PARTS}/{{dataset}}/splits.json",
    log:
        "logs/plan_splits/{dataset}.log",
    benchmark:
        "benchmarks/plan_splits/{dataset}.tsv"
    conda:
        "../envs/data.yaml"
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Planning the splits of {params.title}"
    script:
        "../scripts/plan_splits.py"


rule build_shards:
    input:
        prepared=ancient(JOBS.prepared_of_dataset),
        read_as=ancient(JOBS.manifest_read_as),
        splits=ancient(JOBS.plan_of_splits),
        # a lock that cannot be installed fails before data is built
        environments=(
            ancient(JOBS.script_environments_of_dataset) if SCRIPT_ENVIRONMENTS else []
        ),
    output:
        part=f"{PARTS}/{{dataset}}/parts/{{part}}.json",
    log:
        "logs/build_shards/{dataset}/{part}.log",
    benchmark:
        "benchmarks/build_shards/{dataset}/{part}.tsv"
    conda:
        "../envs/data.yaml"
    threads: JOBS.threads_of_building
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Cutting shards {wildcards.part} of {params.title}"
    script:
        "../scripts/build_shards.py"


rule seal_dataset:
    input:
        parts=ancient(JOBS.parts_of_dataset),
        prepared=ancient(JOBS.prepared_of_dataset),
        read_as=ancient(JOBS.manifest_read_as),
        splits=ancient(JOBS.plan_of_splits),
    output:
        manifest="results/datasets/{dataset}/manifest.json",
        provenance="results/datasets/{dataset}/provenance.json",
    log:
        "logs/seal_dataset/{dataset}.log",
    benchmark:
        "benchmarks/seal_dataset/{dataset}.tsv"
    # its source may be in the store, which with a storage may exist only on the jobs' machines
    localrule: STORAGE is None
    conda:
        "../envs/data.yaml"
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Sealing the manifest of {params.title}"
    script:
        "../scripts/seal_dataset.py"


rule register_data:
    input:
        manifest=ancient(JOBS.manifest_of_asset),
    output:
        asset="results/datasets/{dataset}/data_asset.json",
    log:
        "logs/register_data/{dataset}.log",
    conda:
        "../envs/azureml.yaml"
    params:
        title=JOBS.title,
        plan=JOBS.plan,
    message:
        "Registering {params.title} as a data asset"
    script:
        "../scripts/register_data.py"
