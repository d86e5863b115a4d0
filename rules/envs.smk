# Asked for by name alone: it has no output, so it always runs.
rule lock_envs:
    log:
        "logs/lock_envs.log",
    localrule: True
    conda:
        "../envs/tools.yaml"
    message:
        "Writing and solving conda environments"
    script:
        "../scripts/lock_envs.py"


rule create_env:
    input:
        pins=pins_of_env,
    output:
        environment="results/envs/{env}/environment.json",
    log:
        "logs/create_env/{env}.log",
    # its prefix lies in the store, which with a storage only the jobs' machines need to have
    localrule: STORAGE is None
    conda:
        "../envs/tools.yaml"
    message:
        "Making the conda environment {wildcards.env}"
    script:
        "../scripts/create_env.py"
