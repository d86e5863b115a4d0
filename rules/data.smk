rule build_shards:
    output:
        part=f"{STORE}/datasets/{{dataset}}/parts/{{part}}.json",
    log:
        "logs/build_shards/{dataset}/{part}.log",
    benchmark:
        "benchmarks/build_shards/{dataset}/{part}.tsv"
    conda:
        "../envs/data.yaml"
    message:
        "Cutting shards {wildcards.part} of {wildcards.dataset}"
    script:
        "../scripts/build_shards.py"


rule seal_dataset:
    input:
        parts=ancient(parts_of_dataset),
    output:
        manifest="results/datasets/{dataset}/manifest.json",
    log:
        "logs/seal_dataset/{dataset}.log",
    benchmark:
        "benchmarks/seal_dataset/{dataset}.tsv"
    conda:
        "../envs/data.yaml"
    message:
        "Sealing the manifest of {wildcards.dataset}"
    script:
        "../scripts/seal_dataset.py"
