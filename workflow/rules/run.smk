# One job for each chunk of runs. The stamp is the output; records are side effects that Snakemake never deletes.


rule runs:
    input:
        SUITE.stamps(),


rule run:
    input:
        lambda wildcards: ancient(SUITE.leakage_of(wildcards.chunk)),
    output:
        "scratch/done/{chunk}.json",
    threads: lambda wildcards: SUITE.resources(wildcards.chunk)["threads"]
    resources:
        **SUITE.site_words(),
        mem_mb=lambda wildcards: SUITE.resources(wildcards.chunk)["mem_mb"],
        runtime=lambda wildcards: f"{SUITE.resources(wildcards.chunk)['minutes']}m",
        gpu=lambda wildcards: SUITE.resources(wildcards.chunk)["gpu"],
    params:
        tier=TIER,
    shell:
        "python -m repro run {wildcards.chunk:q} --tier {params.tier:q} --stamp {output:q}"
