# Token files, made once for each digest of source, tokenizer and split.


rule data:
    input:
        [f"scratch/data/{digest}/leakage.json" for digest in SUITE.data],


rule prepare:
    output:
        "scratch/data/{digest}/manifest.json",
    log:
        "scratch/logs/jobs/prepare-{digest}.log",
    retries: 0  # data that are not there do not come by asking again
    conda:
        "../../environment.yml"
    threads: lambda wildcards: SUITE.workers(wildcards.digest)
    resources:
        **SUITE.site_words(),
        **SUITE.after("prepare"),
        mem_mb=4000,
        runtime="60m",
    params:
        name=lambda wildcards: SUITE.data[wildcards.digest],
    shell:
        "python -m repro data prepare {params.name:q} --workers {threads} 2>&1 | tee -i {log:q}"


# Training waits for this file: no document of the validation split may stand in the training split.
rule leakage:
    input:
        ancient("scratch/data/{digest}/manifest.json"),
    output:
        "scratch/data/{digest}/leakage.json",
    log:
        "scratch/logs/jobs/leakage-{digest}.log",
    retries: 0  # data that are not there do not come by asking again
    conda:
        "../../environment.yml"
    threads: lambda wildcards: SUITE.workers(wildcards.digest)
    resources:
        **SUITE.site_words(),
        **SUITE.after("leakage"),
        mem_mb=4000,
        runtime="60m",
    params:
        name=lambda wildcards: SUITE.data[wildcards.digest],
    shell:
        "python -m repro data leakage {params.name:q} --out {output:q} --workers {threads} 2>&1 | tee -i {log:q}"
