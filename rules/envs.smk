# Runs only if requested by name: it has no output, so it always runs.
rule lock_envs:
    log:
        "logs/lock_envs.log",
    localrule: True
    conda:
        "../envs/tools.yaml"
    container:
        None
    params:
        plan=JOBS.plan,
    message:
        "Writing and solving conda environments"
    script:
        "../scripts/lock_envs.py"


rule create_env:
    input:
        pins=JOBS.pins_of_env,
    output:
        environment="results/envs/{env}/environment.json",
    log:
        "logs/create_env/{env}.log",
    # its prefix is in the store, which with a storage may exist only on the jobs' machines
    localrule: STORAGE is None
    conda:
        "../envs/tools.yaml"
    container:
        None
    params:
        plan=JOBS.plan,
    message:
        "Creating the conda environment {wildcards.env}"
    script:
        "../scripts/create_env.py"


# The environment of training scripts that name one.
rule build_environment:
    input:
        lock=local(JOBS.lock_of_environment),
    output:
        environment="results/envs/{environment}/environment.json",
    log:
        "logs/build_environment/{environment}.log",
    # its prefix is in the store, which with a storage may exist only on the jobs' machines
    localrule: STORAGE is None
    conda:
        "../envs/tools.yaml"
    container:
        None
    params:
        title=JOBS.title_of_environment,
        plan=JOBS.plan,
    message:
        "Building the environment of {params.title}"
    script:
        "../scripts/build_environment.py"


rule build_image:
    input:
        lock=local(str(PROJECT.lock_file)),
        code=local(lambda wildcards: image_sources()),
    output:
        image="results/envs/image.json",
    log:
        "logs/build_image.log",
    benchmark:
        "benchmarks/build_image.tsv"
    localrule: True
    conda:
        "../envs/tools.yaml"
    container:
        None
    params:
        plan=JOBS.plan,
    message:
        "Building the container image"
    script:
        "../scripts/build_image.py"
