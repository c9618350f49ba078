# Token files, made once for each digest of source, tokenizer and split.


rule data:
    input:
        [f"scratch/data/{digest}/leakage.json" for digest in DAG.data],


rule prepare:
    output:
        "scratch/data/{digest}/manifest.json",
    params:
        name=lambda wildcards: DAG.data[wildcards.digest],
    resources:
        mem_mb=2000,
        runtime="60m",
    shell:
        "python -m repro data prepare {params.name:q}"


# Training waits for this file: no document of the validation split may stand in the training split.
rule leakage:
    input:
        ancient("scratch/data/{digest}/manifest.json"),
    output:
        "scratch/data/{digest}/leakage.json",
    params:
        name=lambda wildcards: DAG.data[wildcards.digest],
    resources:
        mem_mb=2000,
        runtime="60m",
    shell:
        "python -m repro data leakage {params.name:q} --out {output:q}"
