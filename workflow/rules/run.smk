# One job for each chunk of runs. The stamp is the output; records are side effects that Snakemake never deletes.


rule runs:
    input:
        lambda wildcards: SUITE.stamps(),


if SUITE.missing:

    rule run:
        input:
            ancient(SUITE.checked_data()),
        output:
            "scratch/done/{chunk}.json",
        threads: SUITE.threads()
        resources:
            **SUITE.job_resources(),
            **SUITE.site_words(),
        shell:
            "python -m repro run {wildcards.chunk:q} --tier {TIER:q} --stamp {output:q}"
