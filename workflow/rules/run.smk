# One job for each chunk of runs. The stamp is the output; records are side effects that Snakemake never deletes.


rule runs:
    input:
        DAG.stamps(),


rule run:
    input:
        lambda wildcards: ancient(DAG.leakage_of(wildcards.chunk)),
    output:
        "scratch/done/{chunk}.json",
    params:
        tier=TIER,
    threads: lambda wildcards: DAG.resources(wildcards.chunk)["threads"]
    resources:
        mem_mb=lambda wildcards: DAG.resources(wildcards.chunk)["mem_mb"],
        runtime=lambda wildcards: f"{DAG.resources(wildcards.chunk)['minutes']}m",
        gpu=lambda wildcards: DAG.resources(wildcards.chunk)["gpu"],
    shell:
        "python -m repro run {wildcards.chunk:q} --tier {params.tier:q} --stamp {output:q}"
