# Token files, made once for each digest of source, tokenizer and split.


rule data:
    input:
        [f"scratch/data/{digest}/leakage.json" for digest in SUITE.data],


rule prepare:
    output:
        "scratch/data/{digest}/manifest.json",
    retries: 0  # data that are not there do not come by asking again
    resources:
        mem_mb=2000,
        runtime="60m",
        **SUITE.site_words(),
    params:
        name=lambda wildcards: SUITE.data[wildcards.digest],
    shell:
        "python -m repro data prepare {params.name:q}"


# Training waits for this file: no document of the validation split may stand in the training split.
rule leakage:
    input:
        ancient("scratch/data/{digest}/manifest.json"),
    output:
        "scratch/data/{digest}/leakage.json",
    retries: 0  # data that are not there do not come by asking again
    resources:
        mem_mb=2000,
        runtime="60m",
        **SUITE.site_words(),
    params:
        name=lambda wildcards: SUITE.data[wildcards.digest],
    shell:
        "python -m repro data leakage {params.name:q} --out {output:q}"
